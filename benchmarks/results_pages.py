"""Pages of results, written from the records in ``benchmarks/records`` and never by hand.

python benchmarks/results_pages.py            # write the pages
python benchmarks/results_pages.py --check    # fail where a page is not what its records say
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pages.attribution import attribution
from pages.audit import audit_page
from pages.bound import bound
from pages.digit import digit, signs
from pages.fit_log import fit_log_page
from pages.front_door import front_door
from pages.front_figure import front_figure
from pages.linear_readings import linear_readings
from pages.methods import baselines, methods
from pages.off_policy import off_policy
from pages.paper_digit import paper_digit
from pages.performance import performance
from pages.prior_trust import prior_trust_page
from pages.runs import fill
from pages.service import service_page
from pages.text import recipes_of, shown_in_front, todays_hashes
from pages.trust import rewards_page, shared_page, tables_page, trust_page

from daband.bench.report._method_summaries import paper_accuracy

ROOT = Path(__file__).resolve().parents[1]
RECORDS, PAGES = ROOT / "benchmarks" / "records", ROOT / "docs" / "results"

READINGS = ("fifth", "fourth", "third", "fresh")
"""Records of the sets that were for the report; what is not read before comes first."""
PAGE_OF: dict[str, tuple[Callable[..., str], tuple[str, ...]]] = {
    "attribution": (attribution, ("attribution",)),
    "audit": (audit_page, ("audit",)),
    "baselines": (baselines, ("baselines",)),
    "bound": (bound, ("attribution",)),
    "choose": (rewards_page, READINGS),
    "digit": (digit, ("attribution", "linear-readings", "paper-digit")),
    "fit-log": (fit_log_page, ("fit-log",)),
    "front-door": (front_door, ("front-door",)),
    "latency": (lambda record: fill("latency", record=record), ("latency",)),
    "linear-readings": (linear_readings, ("linear-readings",)),
    "methods": (methods, ("choose",)),
    "off-policy": (off_policy, ("off-policy", "log-learning")),
    "paper-digit": (paper_digit, ("paper-digit", "attribution")),
    "performance": (performance, ("step-variants", "adaptation-peers", "choose-cost", "waiting", "linear")),
    "prior-trust": (prior_trust_page, ("prior-trust",)),
    "service": (service_page, ("service-load", "service-kill")),
    "shared": (shared_page, ("shared", "attribution", "linear-readings")),
    "signs": (signs, ("attribution", "linear-readings", "choose")),
    "tables": (tables_page, (*READINGS, "shared", "default-development")),
    "trust": (trust_page, (*READINGS, "fresh-development", "trust-development")),
}
"""By page, the function that writes it and the records that it is written from."""
IMAGES = ROOT / "docs" / "images"
TRAINED = (
    *READINGS, "audit", "baselines", "choose", "choose-cost", "fresh-development", "prior-trust", "shared",
    "trust-development",
)  # fmt: skip
"""Records of networks whose pages end with a line on their recipe; other pages say it of every table."""


def _records(name: str) -> Any:
    return json.loads((RECORDS / f"{name}.json").read_text())


def page_of(name: str) -> str:
    """The page; one that calls something today's has to show the hash of a recipe that the code has now."""
    write, names = PAGE_OF[name]
    records = {record: _records(record) for record in names}
    notes = [recipes_of(record, found) for record, found in records.items() if record in TRAINED]
    files = ", ".join(f"benchmarks/records/{record}.json" for record in names)
    head = f"<!-- Written by benchmarks/results_pages.py from {files}. Do not edit. -->\n\n"
    text = head + write(*records.values()) + "".join(f"\n{note}\n" for note in notes)
    if re.search(r"\btoday", text, re.IGNORECASE) and not todays_hashes() & set(re.findall("`([0-9a-f]{12})`", text)):
        sys.exit(f"{name}.md calls something today's, and its records have no hash of a recipe of today")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    written = {PAGES / f"{name}.md": page_of(name) for name in PAGE_OF}
    written[IMAGES / "front.svg"] = front_figure(
        shown_in_front(*map(_records, ("attribution", "linear-readings", "paper-digit"))),
        IMAGES / "digits.png",
        reported=paper_accuracy("digit")["daband"].average,
    )
    for path, text in written.items():
        if not check:
            path.write_text(text)
        elif not path.is_file() or path.read_text() != text:
            sys.exit(f"{path} is not what its records say; run benchmarks/results_pages.py")


if __name__ == "__main__":
    main()
