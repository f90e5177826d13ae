"""Reports: tables, figures and one HTML page. Reads run folders only."""

from daband.report.page import markdown_table, write_report
from daband.report.summary import MethodSummary, read_records, summarise, with_spread

__all__ = ["MethodSummary", "markdown_table", "read_records", "summarise", "with_spread", "write_report"]
