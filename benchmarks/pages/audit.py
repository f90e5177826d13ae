"""The page of the simulated audits, from ``benchmarks/records/audit.json``; ``results_pages.py`` writes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pages.text import paragraph

__all__ = ["audit_page"]

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
    simulations = content["simulations"]
    lines = [
        "# Does the audit's interval hold, and is it narrow?",
        "",
        "<!-- Written by benchmarks/results_pages.py from benchmarks/records/audit.json. Do not edit. -->",
        "",
        paragraph(
            f"{simulations} simulated audits of each of {len(records) // 2} policies with budgets of 100 and 200",
            "rewards. *Coverage* is how often the 95% interval holds the policy's true accuracy, over the target's",
            "contexts and, in brackets, over the domain, with the target's contexts drawn anew each time.",
            "*Width* is the mean width beside that of Wilson's interval from as many evenly drawn rewards.",
        ),
        "",
        paragraph(_summary(records, simulations)),
        "",
    ]
    for data in dict.fromkeys(record["data"] for record in records):
        lines += _table(data, [record for record in records if record["data"] == data])
    lines += [
        paragraph(
            "The made-up policies are there because no data set here has one that is nearly always right: their",
            "mistakes are drawn with the probabilities that they predict.",
        ),
        "",
        "## What else was tried",
        "",
        paragraph(
            "Other intervals from as many rewards, over all policies above. The lowest coverage counts: an interval",
            "that fails for some policies cannot be relied on for any.",
        ),
        "",
        f"| | lowest coverage | mean coverage | mean width | mean width at 200, accuracy above {_number(GOOD, 2)} |",
        "| --- | ---: | ---: | ---: | ---: |",
        _row("**the audit**", [(r["coverage"], r["width_ratio"], r) for r in records]),
    ]
    for name, words in RIVALS.items():
        own = [(r["rivals"][name]["coverage"], r["rivals"][name]["width_ratio"], r) for r in records]
        lines.append(_row(words, own))
    lines.append(
        _row("the audit with `anytime=True`", [(r["anytime_coverage"], r["anytime_ratio"], r) for r in records])
    )
    lines += [
        "",
        paragraph(
            "Normal intervals fail where rewards are mostly alike: with few mistakes among the answers, or none in a",
            "stratum, the estimated variance is too small. The confidence sequence pays for the right to stop at any",
            "time.",
        ),
        "",
        "## How this was run",
        "",
        paragraph(
            "LinUCB, Neural-LinUCB and DABand (the recipe `small`), seed 0, kept at several stages of training so that",
            "accuracies differ. The policy's own predicted rewards guide the draw; nothing is calibrated.",
            f"{simulations} simulations, a fifth of it for the confidence sequence; commit `{content['commit'][:12]}`,",
            f"{content['machine']}, {content['seconds']} s.",
        ),
        "",
        "```",
        "python benchmarks/audit.py policies --out policies",
        f"{content['command']} --policies policies --out benchmarks/records/audit.json",
        "```",
        "",
    ]
    return "\n".join(lines)


def _summary(records: Sequence[Record], simulations: int) -> str:
    lowest, mean = _lowest_and_mean([record["coverage"] for record in records])
    lowest_domain, mean_domain = _lowest_and_mean([record["coverage_domain"] for record in records])
    widest = max(record["width_ratio"] for record in records)
    good = [record["width_ratio"] for record in records if _is_good(record)]
    text = (
        f"**Coverage is at least {lowest}** for every policy and budget, {mean} on average; over the domain at least "
        f"{lowest_domain}, {mean_domain} on average (an error of .01 is to be expected of {simulations} simulations). "
        f"The width is never above {widest:.2f} of Wilson's."
    )
    if good:
        text += (
            f" With 200 rewards and an accuracy above {_number(GOOD, 2)} ({len(good)} trained policies) it is "
            f"{min(good):.2f} to {max(good):.2f} of it."
        )
    return text


def _table(data: str, records: Sequence[Record]) -> list[str]:
    lines = [
        f"## {data}",
        "",
        "| policy | contexts | accuracy | predicted | coverage, 100 | width, 100 | coverage, 200 | width, 200 |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    policies: dict[tuple[str, str, int], dict[int, Record]] = {}
    for record in records:
        key = (record["pair"], record["method"], record["episodes"])
        policies.setdefault(key, {})[record["budget"]] = record
    for (pair, method, episodes), own in sorted(policies.items()):
        first = own[100]
        name = f"{method}, {episodes} episodes" if pair == "all" else f"{pair}, {method}, {episodes} episodes"
        if data == MADE_UP:
            name = f"right for about {pair} %"
        cells = [name, f"{first['contexts']:,}", _number(first["accuracy"]), _number(first["predicted"])]
        for budget in (100, 200):
            found = own[budget]
            cells += [
                f"{_number(found['coverage'])} ({_number(found['coverage_domain'])})",
                f"{found['width_ratio']:.2f}",
            ]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _row(name: str, found: Sequence[tuple[float, float, Record]]) -> str:
    coverage, ratio = np.array([own[0] for own in found]), np.array([own[1] for own in found])
    good = [ratio for _, ratio, record in found if _is_good(record)]
    last = f"{np.mean(good):.2f}" if good else ""
    return f"| {name} | {_number(coverage.min())} | {_number(coverage.mean())} | {ratio.mean():.2f} | {last} |"


def _lowest_and_mean(coverage: Sequence[float]) -> tuple[str, str]:
    return _number(min(coverage)), _number(float(np.mean(coverage)))


def _is_good(record: Record) -> bool:
    return bool(record["budget"] == 200 and record["accuracy"] > GOOD and record["data"] != MADE_UP)


def _number(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}f}".replace("0.", ".", 1) if value < 1 else f"{value:.{digits}f}"
