"""Serving: a policy as one file that decides on raw rows, without anything that it was trained on.

numpy and safetensors are all that this room needs; torch, numba and polars stay where policies are trained.
"""

from daband._table_transform import RowWarning
from daband.serving._deployed_policy import Deployed, DeployedDecision, load_deployed
from daband.serving._export import ExportWarning, export
from daband.serving._frozen_policy import FrozenParts, FrozenPolicy
from daband.serving._members import Member
from daband.serving._monitor import MOST_CONTEXTS, Monitor, MonitorReport
from daband.serving._numpy_networks import Network, TreeNetwork, empty_trees, network_from

__all__ = [
    "MOST_CONTEXTS", "Deployed", "DeployedDecision", "ExportWarning", "FrozenParts", "FrozenPolicy", "Member",
    "Monitor", "MonitorReport", "Network", "RowWarning", "TreeNetwork", "empty_trees", "export", "load_deployed",
    "network_from",
]  # fmt: skip
