"""The hand-over: a policy as one file that decides on raw rows, without anything that it was trained on."""

from daband.handover.deployed import Deployed, DeployedDecision, load_deployed
from daband.handover.export import ExportWarning, export
from daband.handover.table_rows import RowWarning

__all__ = ["Deployed", "DeployedDecision", "ExportWarning", "RowWarning", "export", "load_deployed"]
