"""Deploy a policy as one file, which decides on raw rows and has no training data.

``export`` writes the file, ``load_deployed`` reads it as a ``DeployedPolicy``, and a ``Monitor``
detects when contexts change. This package needs numpy and safetensors. It imports neither torch nor
polars.
"""

from daband.features._table_transform import RowWarning
from daband.serving._deployed_policy import DeployedDecision, DeployedPolicy, load_deployed
from daband.serving._export import ExportWarning, export
from daband.serving._monitor import Monitor, MonitorReport
from daband.serving._rule import Rule

__all__ = [
    "DeployedDecision",
    "DeployedPolicy",
    "ExportWarning",
    "Monitor",
    "MonitorReport",
    "RowWarning",
    "Rule",
    "export",
    "load_deployed",
]
