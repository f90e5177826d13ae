"""The page of results on prior trust."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pages.text import paragraph

__all__ = ["prior_trust_page"]

Record = dict[str, Any]

MODES = {
    "full": "full trust",
    "adaptive": "**adaptive** (the default)",
    "none": "none",
    "nothing": "never in the source",
}


def prior_trust_page(records: Sequence[Record]) -> str:
    """The page, from the records of ``prior_trust.py``."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record["study"], record["method"]), []).append(record)
    lines = [
        "# Prior trust",
        "",
        "<!-- Written by benchmarks/results_pages.py from benchmarks/records/prior-trust.json. Do not edit. -->",
        "",
        paragraph(
            "A policy that learned in the source is handed over, and target rewards begin to arrive. How much",
            "should the",
            "source count? Regret of the next rounds, in the target as it is, and in a target where every",
            "label has",
            "moved on to the next arm, so that what the source taught is wrong. `prior_trust` of",
            "`daband.continue_on_target` says how much a source round counts: 1, 0, or the best of 1, .1, .01 and 0 as",
            "rewards tell. A policy of the same settings that was never in the source plays the same rounds.",
        ),
        "",
        "| pair | method | seeds | rounds | prior trust | as it is | relabelled | ratio |",
        "| --- | --- | ---: | ---: | --- | ---: | ---: | ---: |",
    ]
    for (study, method), own in groups.items():
        nothing = _regrets(own, "relabelled", "nothing")
        for number, (mode, name) in enumerate(MODES.items()):
            same, moved = _regrets(own, "as it is", mode), _regrets(own, "relabelled", mode)
            cells = [
                study if number == 0 else "",
                method if number == 0 else "",
                str(len(own)) if number == 0 else "",
                f"{own[0]['rounds']:,}" if number == 0 else "",
                name,
                _mean(same),
                _mean(moved),
                "" if mode == "nothing" or not len(moved) else f"{moved.mean() / nothing.mean():.2f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        paragraph(
            "Means and standard errors over seeds; the ratio is that to a policy that was never in the source, of",
            "means in the relabelled target. DABand has the recipe `default` and all of its budget. `none`",
            "keeps the encoder and the transform, and forgets the rewards; on LinUCB it differs from a policy that was",
            "never in the source by the luck of ties alone. In the version that was measured on amazon with DABand,",
            "contexts of the target did not count for the share of the network: a DABand that was never in the source",
            "is its LinUCB alone there.",
        ),
        "",
        "```",
        *sorted({f"{record['command']} --out DIR    # commit {record['commit']}" for record in records}),
        "```",
        "",
    ]
    return "\n".join(lines)


def _regrets(records: Sequence[Record], target: str, mode: str) -> Any:
    found = [record["regret"][target].get(mode) for record in records]
    return np.array([regret for regret in found if regret is not None])


def _mean(values: Any) -> str:
    if not len(values):
        return ""
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
    return f"{values.mean():,.0f}" + (f" ± {error:,.0f}" if len(values) > 1 else "")
