"""daband: cross-domain contextual bandits. Learn where feedback is cheap, act where it is dear.

>>> import daband
>>> pair = daband.domains.load("synthetic")
>>> policy = daband.LinUCB(context_shape=pair.context_shape, n_arms=pair.n_arms, seed=0)
>>> run = daband.train(policy, source=pair.source, target=pair.target, episodes=20)
>>> accuracy = daband.evaluate(policy, pair.target_test).accuracy
"""

from daband import domains
from daband.errors import CheckpointError, DabandError, DataError, InvalidInput, NotFitted
from daband.evaluation import Evaluation, evaluate
from daband.linear import PCA
from daband.policies import Decision, LinUCB, Policy, Random, load
from daband.training import Run, continue_on_target, train

__version__ = "0.1.0"

__all__ = [
    "PCA",
    "CheckpointError",
    "DabandError",
    "DataError",
    "Decision",
    "Evaluation",
    "InvalidInput",
    "LinUCB",
    "NotFitted",
    "Policy",
    "Random",
    "Run",
    "continue_on_target",
    "domains",
    "evaluate",
    "load",
    "train",
]
