"""The pages of held-out data sets (default, ``assess``, ``choose``), of baselines, of the audit and of logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pages.text import commits, fill, mean_and_deviation, number, percent

Record = Mapping[str, Any]
SIMPLE = ("constant", "linucb", "linucb-p", "nlinucb")
KINDS = ("tables", "patients", "texts", "features", "images")
SETS = {
    "fifth": "held-out 5", "fourth": "held-out 4", "third": "held-out 3", "report": "held-out 2",
    "development": "development", "shared": "development, all",
}  # fmt: skip
"""The name of a set of data sets on pages, by its name in the record."""
RIVALS = {
    "Wilson, even draw": "Wilson's interval, contexts drawn uniformly",
    "strata of equal size, score": "ten strata of equal size, the audit's interval",
    "the audit's strata, Wald": "the audit's strata, normal interval",
    "prediction-powered, even draw": "PPI++, contexts drawn uniformly, normal interval",
    "active inference": "active inference, normal interval",
}


def tables(*records: Any) -> str:
    """Return the page of the default against the best simple method on held-out data sets."""
    *sets, unseen = records
    rows = []
    for record in sets:
        kinds = [(SETS[record["half"]], record["runs"])]
        if record is sets[0]:
            by_kind = {kind: [run for run in record["runs"] if run["data"].endswith(kind)] for kind in KINDS}
            kinds += [(f"... {kind}", own) for kind, own in by_kind.items() if own]
        rows += [[name, *_against_simple(runs)] for name, runs in kinds]
    gains = [_of_adaptation(runs) for runs in _by_data_set(run for record in sets for run in record["runs"]).values()]
    gains = [gain for gain in gains if gain]
    return fill(
        "tables", rows=rows, unseen=unseen, commits=commits(sets), n=len(gains),
        helps=sum(max(gain) > 0.02 for gain in gains), hurts=sum(min(gain) < -0.02 for gain in gains),
    )  # fmt: skip


def _by_data_set(runs: Iterable[Record]) -> dict[tuple[str, str], list[Record]]:
    found: dict[tuple[str, str], list[Record]] = {}
    for run in runs:
        if run["data"] != "named":
            found.setdefault((run["data"], run["name"]), []).append(run)
    return found


def _against_simple(runs: Sequence[Record]) -> list[str]:
    """Return data sets, runs, the mean gain of the default, how often it is close, and the lowest mean."""
    means = []
    for own in _by_data_set(runs).values():
        values = {name: np.mean([run["values"][name] for run in own]) for name in own[0]["values"]}
        means.append(float(values["daband"] - max(values[name] for name in SIMPLE if name in values)))
    close = [percent(float(np.mean(np.array(means) >= -limit))) for limit in (0.02, 0.04)]
    return [str(len(means)), str(len(runs)), number(float(np.mean(means)), sign=True), *close,
            number(min(means), sign=True)]  # fmt: skip


def _of_adaptation(runs: Sequence[Record]) -> list[float]:
    """Return the mean gain of each other assumption over the default."""
    names = [name for name in runs[0]["values"] if name.startswith("daband, other")]
    return [float(np.mean([run["values"][name] - run["values"]["daband"] for run in runs])) for name in names]


def trust(*records: Record) -> str:
    """Return the page of what ``assess`` estimates, and what was true."""
    rows = []
    for record in records:
        for row in (row for row in record["assess"] if row["data"] == "all"):
            how = {"kinds": "with other methods", "seeds": "with a second seed"}[row["how"]]
            rows.append([
                SETS[record["half"]], how, str(row["policies"]), number(row["error"]), percent(row["covered"], 1),
                f"{row['handed_over']} ({row['handed_over_below_constant']})",
                f"{row['good_handed_over']} of {row['good']}",
            ])  # fmt: skip
    first = next(row for row in records[0]["assess"] if row["data"] == "all")
    return fill("trust", rows=rows, first=first, commits=commits(records))


def choose(*records: Record) -> str:
    """Return the page of what target rewards buy."""
    rows = []
    for record in records:
        bought = {row["rewards"]: row for row in record["rewards"] if row["data"] == "all"}
        cells = [percent(bought[budget]["asked_within"]) for budget in (25, 50, 100, 200)]
        even = [percent(bought[budget]["even_within"]) for budget in (50, 200)]
        rows.append([SETS[record["half"]], *cells, *even])
    last = {row["rewards"]: row for row in records[0]["rewards"] if row["data"] == "all"}
    total = next(row for row in records[0]["default"] if row["data"] == "all")
    return fill("choose", rows=rows, fifty=last[50], total=total, commits=commits(records))


def baselines(record: Record) -> str:
    """Return the page of trees, CORAL and subspace alignment."""
    methods = list(next(iter(record["values"].values())))
    rows = [
        [pair, *(mean_and_deviation(own[method], 2) for method in methods)] for pair, own in record["values"].items()
    ]
    return fill("baselines", rows=rows, head=["pair", *methods], record=record)


def audit(content: Record) -> str:
    """Return the page of simulated audits."""
    records = content["records"]
    intervals = {"**the audit**": [(r["coverage"], r["width_ratio"]) for r in records]}
    for name, words in RIVALS.items():
        intervals[words] = [(r["rivals"][name]["coverage"], r["rivals"][name]["width_ratio"]) for r in records]
    intervals["the audit with `anytime=True`"] = [(r["anytime_coverage"], r["anytime_ratio"]) for r in records]
    rows = []
    for name, pairs in intervals.items():
        coverage, width = np.array(pairs).T
        rows.append([name, number(coverage.min()), number(coverage.mean()), number(width.mean(), 2)])
    return fill("audit", content=content, rows=rows, policies=len(records) // 2)
