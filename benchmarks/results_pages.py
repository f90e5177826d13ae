"""Write the pages of docs/results from ``benchmarks/records``.

python benchmarks/results_pages.py            # write the pages
python benchmarks/results_pages.py --check    # fail if a page differs from its records
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pages import images, speed, tables
from pages.bandits import bandits, bandits_figure
from pages.budget_figure import budget_figure
from pages.front_figure import front_figure

from daband.bench import read_paper_tables

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "benchmarks" / "records"
RESULTS = ROOT / "docs" / "results"
IMAGES = ROOT / "docs" / "images"
PAGE_OF: dict[str, tuple[Callable[..., str], tuple[str, ...]]] = {
    "arms": (tables.arms, ("arms",)),
    "attribution": (images.attribution, ("attribution",)),
    "bandits": (bandits, ("bandits",)),
    "bound": (images.bound, ("attribution",)),
    "budgets": (tables.budgets, ("budgets",)),
    "digit": (images.digit, ("attribution",)),
    "fit-log": (speed.fit_log, ("fit-log",)),
    "install": (speed.install, ("install",)),
    "latency": (speed.latency, ("latency",)),
    "members": (images.members, ("members",)),
    "paper-digit": (images.paper_digit, ("attribution",)),
    "performance": (speed.performance, ("choose-cost", "waiting")),
    "pilots": (tables.pilots, ("pilots",)),
    "pretrained": (images.pretrained, ("pretrained",)),
    "routing": (tables.routing, ("routing",)),
    "rules": (tables.rules, ("rules",)),
    "service": (speed.service, ("service-load", "service-kill")),
    "tables": (tables.tables, ("full-labels",)),
    "target-streams": (tables.target_streams, ("target-streams", "six-weeks")),
    "trials": (tables.trials, ("trials",)),
    "trust": (tables.trust, ("questions", "table-verdicts")),
    "verdicts": (tables.verdicts, ("verdicts",)),
}
"""By page, the function that writes it and its records."""


def read(name: str) -> Any:
    """Return a record."""
    return json.loads((RECORDS / f"{name}.json").read_text())


def page_of(name: str) -> str:
    """Return a page as Markdown."""
    write, names = PAGE_OF[name]
    files = ", ".join(f"benchmarks/records/{record}.json" for record in names)
    head = f"<!-- Written by benchmarks/results_pages.py from {files}. Do not edit. -->\n\n"
    return head + write(*map(read, names))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    written = {RESULTS / f"{name}.md": page_of(name) for name in PAGE_OF}
    runs = images.Runs(read("attribution"))
    shown = {name: runs.of("methods", name) for name in runs.variants("methods")}
    for name, kind in (("nlinucb", "neural"), ("daband", "members")):
        ensembles = [
            run for run in read("members") if (run["pair"], run["kind"]) == ("digit", kind)
        ]
        shown[name] = [{**shown[name][0], "target_accuracy": run["accuracy"]} for run in ensembles]
    written[IMAGES / "front.svg"] = front_figure(
        shown,
        IMAGES / "digits.png",
        reported=read_paper_tables()["accuracy"]["digit"]["methods"]["daband"]["average"],
    )
    written[IMAGES / "bandits.svg"] = bandits_figure(read("bandits"))
    written[IMAGES / "budgets.svg"] = budget_figure(read("budgets"))
    for path, text in written.items():
        if not check:
            path.write_text(text)
        elif not path.is_file() or path.read_text() != text:
            sys.exit(f"{path} differs from its records; run benchmarks/results_pages.py")


if __name__ == "__main__":
    main()
