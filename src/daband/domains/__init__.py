"""Domains: where contexts come from and who pays. One source/target pair per file, and readers for users' own data."""

from daband.domains.arrays import ArrayContexts, ArrayEvaluation, ArraySource, from_arrays
from daband.domains.callables import from_callable
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
from daband.domains.datasets import from_datasets
from daband.domains.image_folder import Reading, from_image_folder
from daband.domains.images import Framing, imagenet_normalise
from daband.domains.logs import ArrayLog, from_log
from daband.domains.pairs import PairEntry, load, pairs, register_pair
from daband.domains.places import cache_directory, data_directory
from daband.domains.synthetic import Shift
from daband.domains.table_transform import TableTransform
from daband.domains.tables import Columns, from_table

__all__ = [
    "About",
    "ArrayContexts",
    "ArrayEvaluation",
    "ArrayLog",
    "ArraySource",
    "Columns",
    "Contexts",
    "EvaluationDomain",
    "Framing",
    "LoggedDomain",
    "LoggedRounds",
    "Pair",
    "PairEntry",
    "PayingDomain",
    "Reading",
    "Rounds",
    "Shift",
    "TableTransform",
    "cache_directory",
    "data_directory",
    "from_arrays",
    "from_callable",
    "from_datasets",
    "from_image_folder",
    "from_log",
    "from_table",
    "imagenet_normalise",
    "load",
    "pairs",
    "register_pair",
]
