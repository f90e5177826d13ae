"""Domains: where contexts come from and who pays. One source/target pair per file, and readers for users' own data.

A new reader is one file of ``readers`` with a function ``from_...``: it is found here by its name.
"""

import importlib
import pkgutil
from typing import Any

from daband._domain_names import DomainNames
from daband._image_layout import imagenet_normalise
from daband._shift import Shift
from daband._table_transform import TableTransform
from daband.domains import readers
from daband.domains._contract import (
    About,
    Contexts,
    EvaluationDomain,
    LoggedDomain,
    LoggedRounds,
    Pair,
    RewardDomain,
    Rounds,
)
from daband.domains._download import check_data, data_of, get_data
from daband.domains._mixtures import join_pairs, mixed, origins, restrict_pair
from daband.domains._registry import (
    PairEntry,
    allocate,
    cache_directory,
    data_directory,
    load,
    pair_names,
    pairs,
    register_pair,
)
from daband.domains.datasets._synthetic import SyntheticView
from daband.domains.datasets._user_files import PICTURE_SIDE, FilesRead, read_files
from daband.domains.readers._arrays import ArrayContexts, ArrayEvaluation, ArraySource, from_arrays
from daband.domains.readers._callables import from_callable
from daband.domains.readers._columns import ColumnRoles, Columns, column_notices
from daband.domains.readers._image_folder import Reading, from_image_folder
from daband.domains.readers._image_store import Framing
from daband.domains.readers._logs import ArrayLog, from_log
from daband.domains.readers._parquet_log import ParquetLog, open_log, refuse_nulls, resolve_columns
from daband.domains.readers._reading import (
    LogColumns,
    LogPart,
    PlainLog,
    log_files,
    read_footer,
    read_frames,
    read_table,
)
from daband.domains.readers._tables import from_table
from daband.domains.readers._torch_datasets import from_datasets

__all__ = [
    "PICTURE_SIDE", "About", "ArrayContexts", "ArrayEvaluation", "ArrayLog", "ArraySource", "ColumnRoles", "Columns",
    "Contexts", "DomainNames",
    "EvaluationDomain", "FilesRead", "Framing", "LogColumns", "LogPart", "LoggedDomain", "LoggedRounds", "Pair",
    "PairEntry", "ParquetLog", "PlainLog", "Reading", "RewardDomain", "Rounds", "Shift", "SyntheticView",
    "TableTransform",
    "allocate", "cache_directory", "check_data", "column_notices", "data_directory", "data_of",
    "from_arrays", "from_callable", "from_datasets", "from_image_folder", "from_log", "from_table", "get_data",
    "imagenet_normalise", "join_pairs", "load", "log_files", "mixed", "open_log", "origins",
    "pair_names", "pairs",
    "read_files", "read_footer", "read_frames", "read_table", "refuse_nulls", "register_pair", "resolve_columns",
    "restrict_pair",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name.startswith("from_"):
        for module in pkgutil.iter_modules(readers.__path__, f"{readers.__name__}."):
            if hasattr(imported := importlib.import_module(module.name), name):
                return getattr(imported, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
