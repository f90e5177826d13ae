"""A policy as one file that decides on raw rows, without its training data.

This package needs numpy and safetensors. It imports neither torch nor polars.
"""

from daband._table_transform import RowWarning
from daband.serving._deployed_policy import DeployedDecision, DeployedPolicy, load_deployed
from daband.serving._export import ExportWarning, export
from daband.serving._monitor import Monitor, MonitorReport

__all__ = [
    "DeployedDecision", "DeployedPolicy", "ExportWarning", "Monitor", "MonitorReport", "RowWarning", "export",
    "load_deployed",
]  # fmt: skip
