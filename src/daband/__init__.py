"""daband: cross-domain contextual bandits.

Learn where feedback is cheap, act where it is expensive.

The packages, from the highest layer to the lowest; a package imports only from lower ones:

* ``cli``: the commands; they parse options, call the library and print results.
* ``bench``: experiments with many runs, such as the paper's tables.
* ``service``: decisions and rewards over HTTP.
* ``trust``: ``choose``, ``assess``, ``audit``, pilots and rules. ``trust/_assess.py`` makes the
  verdict, and ``trust/_choose.py`` compares candidates.
* ``ledger``: decisions and rewards after the verdict.
* ``checks``: requirements of policies and pairs.
* ``training``: ``train`` (``_loop.py``), ``evaluate`` and ``learn_log``.
* ``neural``: Algorithm 1 of the paper and its four terms (``daband.py``), and Neural-LinUCB.
* ``policies``: all other policies. ``_ridge.py`` has LinUCB.
* ``logs``: estimates from logged rounds.
* ``domains``: pairs of domains. ``readers/`` reads the users' CSV files.
* ``serving``: the exported file that decides without training data.
* ``linear``: ridge regression and exploration. ``_ridge.py`` has the update of A and b.
* ``features``: from raw values to features.
* ``base`` and ``errors``: arrays, arguments, files and exceptions.

>>> import daband
>>> pair = daband.domains.load("synthetic")
>>> policy = daband.LinUCB.for_pair(pair, seed=0)
>>> run = daband.train(policy, source=pair.source, target=pair.target, episodes=20)
>>> accuracy = daband.evaluate(policy, pair.target_test).accuracy
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from daband.base._registry import neural_importers

if TYPE_CHECKING:
    from daband import domains
    from daband.errors import (
        CheckpointError,
        DabandError,
        DataError,
        InvalidInput,
        NotFitted,
        TrainingDiverged,
    )
    from daband.features import PCA, Shift, Standardise
    from daband.ledger import open_market
    from daband.linear import Decision
    from daband.logs import LogCheck, LogEstimate, check_log, evaluate_log
    from daband.neural import DABand, NeuralLinUCB, Recipe, recipe_for
    from daband.policies import (
        Constant,
        LinUCB,
        LogPolicy,
        Mixture,
        Policy,
        Random,
        RulePolicy,
        Supervised,
        Trees,
    )
    from daband.policies import load_policy as load
    from daband.serving import export, load_deployed
    from daband.training import Evaluation, Run, continue_on_target, evaluate, train
    from daband.training._fit_log import fit_log, learn_log
    from daband.trust import Assessment, Audit, Choice, Rules
    from daband.trust._assess import assess
    from daband.trust._audit import audit
    from daband.trust._budgets import budget_curve
    from daband.trust._choose import choose
    from daband.trust._pilot import plan_pilot
    from daband.trust._rules import rules

__version__ = "0.4.0"

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
    "LogCheck",
    "LogEstimate",
    "LogPolicy",
    "Mixture",
    "NeuralLinUCB",
    "NotFitted",
    "Policy",
    "Random",
    "Recipe",
    "RulePolicy",
    "Rules",
    "Run",
    "Shift",
    "Standardise",
    "Supervised",
    "TrainingDiverged",
    "Trees",
    "assess",
    "audit",
    "budget_curve",
    "check_log",
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
    "open_market",
    "plan_pilot",
    "recipe_for",
    "rules",
    "train",
]


#: The public names of each package that can be imported from ``daband``.
_NAMES_BY_PACKAGE = {
    "errors": "CheckpointError DabandError DataError InvalidInput NotFitted TrainingDiverged",
    "features": "PCA Shift Standardise",
    "neural": "DABand NeuralLinUCB Recipe recipe_for",
    "ledger": "open_market",
    "linear": "Decision",
    "logs": "LogCheck LogEstimate check_log evaluate_log",
    "policies": "Constant LinUCB LogPolicy Mixture Policy Random RulePolicy Supervised Trees load",
    "serving": "export load_deployed",
    "training": "Evaluation Run continue_on_target evaluate fit_log learn_log train",
    "trust": "Assessment Audit Choice Rules assess audit budget_curve choose plan_pilot rules",
}
#: The package of each public name.
_PACKAGE_BY_NAME = {
    name: package for package, names in _NAMES_BY_PACKAGE.items() for name in names.split()
}
#: The packages and modules that are attributes of ``daband``.
_PACKAGES = {"bench", "checks", "cli", "domains", "sklearn", *_NAMES_BY_PACKAGE}
#: The name that the object has in its package, if it is not the same.
_NAME_IN_PACKAGE = {"load": "load_policy"}


def _import_neural() -> None:
    """Import ``daband.neural``, which registers policies and encoders, if torch is installed."""
    if importlib.util.find_spec("torch") and importlib.util.find_spec("daband.neural"):
        import daband.neural  # noqa: F401


neural_importers.append(_import_neural)


def __getattr__(name: str) -> Any:
    """Import a name from its package when it is first used, so that serving needs numpy only."""
    package = _PACKAGE_BY_NAME.get(name, name)
    if package in _PACKAGES:
        try:
            module = importlib.import_module(f"daband.{package}")
        except ModuleNotFoundError as error:
            if error.name == "torch":
                raise ImportError(
                    f"daband.{name} needs torch: pip install 'daband[deep]'"
                ) from None
            if error.name != f"daband.{package}":
                raise
            raise ImportError(
                f"daband.{name} is not part of daband-serving: pip install daband"
            ) from None
        if name not in _PACKAGE_BY_NAME:
            return module
        public_object = getattr(module, _NAME_IN_PACKAGE.get(name, name))
        globals()[name] = public_object
        return public_object
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return all public names, also those that are not yet imported."""
    return sorted({*globals(), *__all__})
