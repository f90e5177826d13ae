"""Reports: tables, figures and one HTML page; and data frames for notebooks. Reads run folders only."""

from daband.report.frames import compare, episodes, frame
from daband.report.page import markdown_table, write_report
from daband.report.reference import PaperAccuracy, paper_ablation, paper_accuracy, paper_tables
from daband.report.runs import read_records
from daband.report.summary import MethodSummary, summarise, with_spread

__all__ = [
    "MethodSummary",
    "PaperAccuracy",
    "compare",
    "episodes",
    "frame",
    "markdown_table",
    "paper_ablation",
    "paper_accuracy",
    "paper_tables",
    "read_records",
    "summarise",
    "with_spread",
    "write_report",
]
