"""Domains: where contexts come from and who pays. One source/target pair per file, and readers for users' own data."""

from daband.domains.arrays import ArrayContexts, ArrayEvaluation, ArraySource, from_arrays
from daband.domains.contract import (
    About,
    Contexts,
    EvaluationDomain,
    LoggedDomain,
    LoggedRounds,
    Pair,
    PayingDomain,
    Rounds,
)
from daband.domains.pairs import PairEntry, load, pairs, register_pair
from daband.domains.synthetic import Shift

__all__ = [
    "About",
    "ArrayContexts",
    "ArrayEvaluation",
    "ArraySource",
    "Contexts",
    "EvaluationDomain",
    "LoggedDomain",
    "LoggedRounds",
    "Pair",
    "PairEntry",
    "PayingDomain",
    "Rounds",
    "Shift",
    "from_arrays",
    "load",
    "pairs",
    "register_pair",
]
