"""Provide pairs of domains: sources with rewards and targets with contexts.

``load`` returns a research pair by its name. The functions ``from_...`` build pairs from users'
data.
"""

from daband.domains._contract import (
    About,
    Contexts,
    EvaluationDomain,
    LoggedDomain,
    Pair,
    RewardDomain,
)
from daband.domains._data_options import DataOptions
from daband.domains._mixtures import restrict_pair
from daband.domains._registry import load, register_pair
from daband.domains.readers._arrays import from_arrays
from daband.domains.readers._columns import Columns
from daband.domains.readers._images import from_images
from daband.domains.readers._logs import from_log
from daband.domains.readers._parquet_log import ParquetLog
from daband.domains.readers._tables import from_table, from_texts
from daband.features._table_transform import TableTransform
from daband.rounds._rounds import Guardrail

__all__ = [
    "About",
    "Columns",
    "Contexts",
    "DataOptions",
    "EvaluationDomain",
    "Guardrail",
    "LoggedDomain",
    "Pair",
    "ParquetLog",
    "RewardDomain",
    "TableTransform",
    "from_arrays",
    "from_images",
    "from_log",
    "from_table",
    "from_texts",
    "load",
    "register_pair",
    "restrict_pair",
]
