"""The hand-over: a policy as one file that decides on raw rows, without anything that it was trained on."""

from daband.handover.decision import DeployedDecision
from daband.handover.deployed import Deployed, load_deployed
from daband.handover.export import ExportWarning, export
from daband.handover.monitor import Monitor, MonitorReport
from daband.handover.table_rows import RowWarning

__all__ = [
    "Deployed",
    "DeployedDecision",
    "ExportWarning",
    "Monitor",
    "MonitorReport",
    "RowWarning",
    "export",
    "load_deployed",
]
