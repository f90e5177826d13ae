"""The pages of ``assess``, of ``choose`` with rewards, and of adaptation on tables; from the halves that are read once.

First the fresh data sets (``benchmarks/fresh.toml``), of which nobody had seen a result, then those in the shared data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from split import recorded
from trust_report import SIMPLE, assessments, bound

from daband.trust.estimate import ALONE, MISSED, SHARED
from pages.runs import fill
from pages.text import commits, number

Record = Mapping[str, Any]
KINDS = {
    "natural_tables": "natural tables", "amazon": "amazon reviews", "office_caltech": "office_caltech",
    "office31_features": "Office-31 features", "warfarin": "warfarin", "sat12": "SAT12 solvers",
    "handwritten": "handwritten digits", "images": "DIGIT", "synthetic": "synthetic", "markets": "made markets",
    "fresh_tables": "fresh tables", "fresh_patients": "fresh patients", "fresh_texts": "fresh texts",
    "fresh_features": "fresh features", "fresh_digits": "fresh digits", "all": "**all**",
}  # fmt: skip
WAYS = {"kinds": "with candidates of other kinds", "seeds": "one method, its seeds"}


def trust_page(*records: Record) -> str:
    """What ``assess`` promises, and what was true: fresh data sets and others, report halves before development."""
    return fill("trust", halves=[_half(record) for record in records], kinds=KINDS)


def _half(record: Record) -> Record:
    """What the page says of a half."""
    seen = [run for run in record["runs"] if not (run["data"] == "markets" and run["name"].startswith("moved"))]
    off = [abs(one["value"] - one["true"]) for run in seen for one in run["assessed"] if one["how"] == "kinds"]
    return {
        "record": {"note": "", **record}, "title": _title(record), "sizes": _sizes(record),
        "left_out": _left_out(record),
        "shipped": _shipped(record), "error_without_moved": float(np.mean(off)),
        "assessed": {title: [row for row in record["assess"] if row["how"] == how] for how, title in WAYS.items()},
    }  # fmt: skip


def _shipped(record: Record) -> list[Record]:
    """Where a record is of another bound than the library has, how often that one would be true on the same runs."""
    if all(run["constants"] == [ALONE, MISSED, SHARED] for run in record["runs"]):
        return []
    found: list[Record] = []
    for how, title in WAYS.items():
        held: dict[str, list[bool]] = {}
        for run in record["runs"]:
            own = [one for one in assessments(run) if one["how"] == how]
            lows = [bound(one, MISSED, SHARED, alone=run["constants"][0]) for one in own]
            truths = [one["true"] >= low - 1e-9 for one, low in zip(own, lows, strict=True)]
            held[run["data"]] = held.get(run["data"], []) + truths
        least, worst = min((float(np.mean(own)), kind) for kind, own in held.items())
        every = float(np.mean([one for own in held.values() for one in own]))
        found.append({"title": title, "every": every, "least": least, "worst": KINDS[worst]})
    return found


def _is_fresh(kind: str) -> bool:
    return kind.startswith("fresh_")


def _title(record: Record) -> str:
    return f"{'Fresh data sets, t' if _is_fresh(record['runs'][0]['data']) else 'T'}he {record['half']} half"


def _sizes(record: Record) -> str:
    names = {(run["data"], run["name"]) for run in record["runs"]}
    seeds = {run["seed"] for run in record["runs"]}
    whole = len(names) * len(seeds) == len(record["runs"])
    most = "one seed" if len(seeds) == 1 else f"{len(seeds)} seeds {'each' if whole else 'at most'}"
    return f"{len(names)} data sets, {most}, {len(record['runs'])} runs"


def _left_out(record: Record) -> str:
    """Which data sets there is no run of, in a sentence or two."""
    half = recorded(record["half"])
    known = {(run["data"], run["name"]) for run in record["runs"]}
    kinds = {data: names for data, names in half.items() if _is_fresh(data) == _is_fresh(record["runs"][0]["data"])}
    missing = sorted(f"{data}/{name}" for data, names in kinds.items() for name in names if (data, name) not in known)
    text = f"Not in it: {', '.join(missing)}. " if missing else ""
    if not any("trees" in run["values"] for run in record["runs"]):
        text += "Trees are no candidate here."
    return text


def rewards_page(*records: Record) -> str:
    """What rewards of the target buy, on the report halves; and the default against the best simple method."""
    halves = []
    for record in records:
        runs = [run["values"] for run in record["runs"] if "linucb" in run["values"]]
        gap = [v["daband"] - max(v[method] for method in SIMPLE[:3] if method in v) for v in runs]
        halves.append({
            "record": {"note": "", **record}, "title": _title(record), "sizes": _sizes(record), "compared": len(runs),
            "same": sum(values["daband"] == values.get("nlinucb") for values in runs),
            "above_linear": float(np.mean(gap)),
        })  # fmt: skip
    return fill("choose", halves=halves, kinds=KINDS)


def tables_page(*records: Record) -> str:
    """When adaptation helps on tables, and when it hurts; and what was tried for the default on vectors."""
    methods = ("linucb", "nlinucb", "daband", "daband, other units", "daband, other style")
    tables: dict[str, list[Record]] = {}
    prefixes = {"natural_tables": "", "warfarin": "", "markets": "market ", "fresh_tables": "", "fresh_patients": ""}
    *halves, tried = records
    for run in [run for record in halves for run in record["runs"]]:
        if run["data"] in prefixes:
            tables.setdefault(prefixes[run["data"]] + run["name"], []).append(run)
    rows: list[tuple[float, list[str]]] = []
    helps, worse = [], 0
    for name, runs in tables.items():
        means = {
            method: float(np.mean([run["values"][method] for run in runs if method in run["values"]]))
            for method in methods
            if any(method in run["values"] for run in runs)
        }
        gains = [means.get(method, means["daband"]) - means["daband"] for method in methods[3:]]
        helps += [name] if max(gains) > 0.02 else []
        worse += min(gains) < -0.02
        constant = number(float(np.mean([run["constant"] for run in runs])))
        cells = [number(means[method]) if method in means else "" for method in methods]
        rows.append((max(gains), [name, constant, *cells]))
    return fill(
        "tables", commits=commits(halves), rows=[cells for _, cells in sorted(rows, key=lambda row: row[0])],
        worse=worse, helps=sorted(helps), about=tried["about"], tried=_tried(tried["values"]),
    )  # fmt: skip


def _tried(changes: Record) -> list[Sequence[str]]:
    """Each change less what stood before it, on the same pairs and seeds; and both less the best simple method."""
    rows: list[Sequence[str]] = []
    for change, values in changes.items():
        group = change.split(": ")[0] + ": " if ": " in change else ""
        before = changes[f"{group}before"]
        runs = [
            (*before[pair][seed], *pairs[seed])
            for pair, pairs in values.items()
            for seed in pairs
            if seed in before.get(pair, {})
        ]
        if not change.endswith("before") and runs:
            was, simple, now, simple_now = np.array(runs).T
            means = [number(float(x.mean()), sign=True) for x in (now - was, was - simple, now - simple_now)]
            rows.append([change, str(len(values)), str(len(runs)), *means])
    return rows
