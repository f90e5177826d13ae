"""The page of the simulated audits, from ``benchmarks/records/audit.json``; ``results_pages.py`` writes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pages.runs import fill

GOOD = 0.85
"""The accuracy above which the interval is to be narrower than Wilson's by a named factor."""
MADE_UP = "made-up"
"""Policies of which rewards and predictions were drawn, not trained."""
RIVALS = {
    "Wilson, even draw": "Wilson's interval, contexts drawn evenly",
    "strata of equal size, score": "ten strata of equal size by prediction, the audit's interval",
    "the audit's strata, Wald": "the audit's strata and draw, the textbook's normal interval",
    "prediction-powered, even draw": "PPI++, contexts drawn evenly, normal interval",
    "active inference": "active inference with the audit's probabilities, normal interval",
}

Record = dict[str, Any]


def audit_page(content: Record) -> str:
    """The page, in Markdown."""
    records = content["records"]
    intervals = {"**the audit**": [(r["coverage"], r["width_ratio"]) for r in records]}
    for name, words in RIVALS.items():
        intervals[words] = [(r["rivals"][name]["coverage"], r["rivals"][name]["width_ratio"]) for r in records]
    intervals["the audit with `anytime=True`"] = [(r["anytime_coverage"], r["anytime_ratio"]) for r in records]
    are_good = np.array([r["budget"] == 200 and r["accuracy"] > GOOD and r["data"] != MADE_UP for r in records])
    rivals = []
    for name, pairs in intervals.items():
        coverage, width = np.array(pairs).T
        last = f"{width[are_good].mean():.2f}" if are_good.any() else ""
        rivals.append([name, _share(coverage.min()), _share(coverage.mean()), f"{width.mean():.2f}", last])
    return fill(
        "audit", content=content, records=records, rivals=rivals, limit=_share(GOOD, 2), filters={"share": _share},
        coverage=np.array([r["coverage"] for r in records]), domain=np.array([r["coverage_domain"] for r in records]),
        widest=max(r["width_ratio"] for r in records),
        good=[r["width_ratio"] for r, good in zip(records, are_good, strict=True) if good],
        tables={data: _rows(data, records) for data in dict.fromkeys(r["data"] for r in records)},
    )  # fmt: skip


def _rows(data: str, records: Sequence[Record]) -> list[list[str]]:
    policies: dict[tuple[str, str, int], dict[int, Record]] = {}
    for record in records:
        if record["data"] == data:
            key = (record["pair"], record["method"], record["episodes"])
            policies.setdefault(key, {})[record["budget"]] = record
    rows = []
    for (pair, method, episodes), by_budget in sorted(policies.items()):
        first = by_budget[100]
        name = f"{method}, {episodes} episodes" if pair == "all" else f"{pair}, {method}, {episodes} episodes"
        name = f"right for about {pair} %" if data == MADE_UP else name
        cells = [name, f"{first['contexts']:,}", _share(first["accuracy"]), _share(first["predicted"])]
        for budget in (100, 200):
            of = by_budget[budget]
            cells += [f"{_share(of['coverage'])} ({_share(of['coverage_domain'])})", f"{of['width_ratio']:.2f}"]
        rows.append(cells)
    return rows


def _share(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}f}".replace("0.", ".", 1) if value < 1 else f"{value:.{digits}f}"
