"""Provide the policies. All have the interface of ``Policy``, and each is registered by its
name.
"""

from daband.policies._checkpoints import load_policy
from daband.policies._log_policy import LogPolicy
from daband.policies._mixture import Mixture
from daband.policies._policy import Policy
from daband.policies._random import Random
from daband.policies._registered import policies
from daband.policies._ridge import Constant, LinUCB
from daband.policies._rule_policy import RulePolicy
from daband.policies._supervised import Supervised
from daband.policies._trees import Trees

__all__ = [
    "Constant",
    "LinUCB",
    "LogPolicy",
    "Mixture",
    "Policy",
    "Random",
    "RulePolicy",
    "Supervised",
    "Trees",
    "load_policy",
    "policies",
]
