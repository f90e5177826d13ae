"""daband: cross-domain contextual bandits. Learn where feedback is cheap, act where it is expensive.

>>> import daband
>>> pair = daband.domains.load("synthetic")
>>> policy = daband.LinUCB.for_pair(pair, seed=0)
>>> run = daband.train(policy, source=pair.source, target=pair.target, episodes=20)
>>> accuracy = daband.evaluate(policy, pair.target_test).accuracy
"""

from typing import TYPE_CHECKING, Any

from daband import domains
from daband.errors import CheckpointError, DabandError, DataError, InvalidInput, NotFitted, TrainingDiverged
from daband.evaluation import Evaluation, LogEstimate, evaluate, evaluate_log
from daband.linear import PCA, Standardise
from daband.policies import Constant, Decision, LinUCB, Policy, Random, load
from daband.serving import export, load_deployed
from daband.shift import Shift
from daband.training import Run, continue_on_target, fit_log, learn_log, train
from daband.trust import Assessment, Audit, Choice, assess, audit, choose

if TYPE_CHECKING:
    from daband.policies import DABand, NeuralLinUCB, Recipe, recipe_for

__version__ = "0.3.0"

__all__ = [
    "PCA",
    "Assessment",
    "Audit",
    "CheckpointError",
    "Choice",
    "Constant",
    "DABand",
    "DabandError",
    "DataError",
    "Decision",
    "Evaluation",
    "InvalidInput",
    "LinUCB",
    "LogEstimate",
    "NeuralLinUCB",
    "NotFitted",
    "Policy",
    "Random",
    "Recipe",
    "Run",
    "Shift",
    "Standardise",
    "TrainingDiverged",
    "assess",
    "audit",
    "choose",
    "continue_on_target",
    "domains",
    "evaluate",
    "evaluate_log",
    "export",
    "fit_log",
    "learn_log",
    "load",
    "load_deployed",
    "recipe_for",
    "train",
]


def __getattr__(name: str) -> Any:
    # What needs torch is imported when it is first asked for.
    if name in ("DABand", "NeuralLinUCB", "Recipe", "recipe_for"):
        from daband import policies

        return getattr(policies, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
