"""The page of every method on every shared data set, from ``benchmarks/records/choose.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from daband.evaluation._paired_test import Paired, compare_paired
from pages.runs import fill
from pages.text import NAMES, commits, count, number

Record = Mapping[str, Any]


def methods(records: Sequence[Record]) -> str:
    """The page as Markdown."""
    by_family = families(records)
    first = ["daband", *(method for method in NAMES if method != "daband")]  # seen without scrolling
    shown = [method for method in first if any(of_method(own, method) for own in by_family.values())]
    by_family_rows, by_pair = [], []
    for family, own in by_family.items():
        cells = [number(float(np.mean(values))) if (values := of_method(own, one)) else "" for one in shown]
        by_family_rows.append([family, str(len(_pairs(own))), *cells])
    for pair, own in _pairs(records).items():
        cells = [_mean_and_deviation(values) if (values := of_method(own, method)) else "" for method in shown]
        by_pair.append([pair, count(own[0]["rounds"]), *cells])
    seeds = sorted({record["seed"] for record in records})
    return fill(
        "methods", seeds=f"{seeds[0]} to {seeds[-1]}", names=[NAMES[method].strip("*") for method in shown],
        by_family=by_family_rows, by_pair=by_pair, differences=_differences(by_family), commits=commits(records),
        devices=list(dict.fromkeys(device for record in records for device in record["device"].values())),
        form=by_family["digit"][0]["data"].rpartition("; ")[2] if "digit" in by_family else "",
    )  # fmt: skip


def families(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records by data set: what a pair's name begins with."""
    found: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: (record["pair"], record["seed"])):
        found.setdefault(record["pair"].partition("/")[0], []).append(record)
    return found


def of_method(records: Sequence[Record], method: str, field: str = "target_accuracy") -> list[float]:
    """A method's target accuracy, or another field, in every record; nothing where one of them lacks it."""
    values: list[float] = []
    for record in records:
        known = dict(record.get(field, {}))
        if field == "target_accuracy":
            known |= record.get("baselines", {})
        if method not in known:
            return []
        values.append(known[method])
    return values


def _differences(by_family: Mapping[str, Sequence[Record]]) -> list[list[str]]:
    rows = []
    for family, own in by_family.items():
        daband, plain = of_method(own, "daband"), of_method(own, "nlinucb")
        pairs = list(_pairs(own).values())
        over_pairs = ""
        if len(pairs) > 1:
            means = [[float(np.mean(of_method(one, name))) for one in pairs] for name in ("daband", "nlinucb")]
            over_pairs = _interval(compare_paired(*means))
        regrets = [of_method(own, name, "source_regret") for name in ("daband", "nlinucb")]
        ratio = f"{np.mean(regrets[0]) / np.mean(regrets[1]):.2f}" if all(regrets) else ""
        rows.append([
            family, str(len(daband)), _interval(compare_paired(daband, plain)), over_pairs,
            *(_less(own, name) for name in ("linucb", "constant")), ratio,
        ])  # fmt: skip
    return rows


def _less(records: Sequence[Record], name: str) -> str:
    """DABand less another method, where all records have it."""
    other = of_method(records, name)
    return _interval(compare_paired(of_method(records, "daband"), other)) if other else ""


def _pairs(records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record["pair"], []).append(record)
    return found


def _interval(paired: Paired) -> str:
    low, high = (number(value, sign=True) for value in (paired.low, paired.high))
    text = f"{number(paired.difference, sign=True)} ({low} to {high})"
    return f"**{text}**" if paired.low > 0 else text


def _mean_and_deviation(values: Sequence[float]) -> str:
    return f"{number(float(np.mean(values)))} ± {number(float(np.std(values, ddof=1)))}"


def baselines(record: Record) -> str:
    """The page of trees, CORAL and subspace alignment."""
    values = {
        pair: [_mean_and_deviation(seeds) for seeds in by_method.values()]
        for pair, by_method in record["values"].items()
    }
    return fill("baselines", record=record, values=values, methods=list(next(iter(record["values"].values()))))
