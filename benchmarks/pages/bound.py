"""The page of the regret bound's observable terms on DIGIT, from ``benchmarks/records/attribution.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from daband.bench.report._method_summaries import growth_exponent
from pages.runs import fill
from pages.text import commits, is_on, recipe_hash

Record = Mapping[str, Any]
TERMS = {
    "source_regret": "source regret", "regression_error": "regression error", "divergence": "divergence",
    "predicted_reward_target": "predicted reward, target", "predicted_reward_source": "predicted reward, source",
    "exploration": "exploration", "total": "their sum",
}  # fmt: skip
METHODS = {"nlinucb": "Neural-LinUCB", "nlinucb-p": "NLinUCB-P", "daband": "DABand"}


def bound(records: Sequence[Record]) -> str:
    """The page as Markdown."""
    measured = [record for record in records if "bound" in record and is_on("digit", record)]
    runs = {name: [record for record in measured if record["method"] == method] for method, name in METHODS.items()}
    runs = {name: own for name, own in runs.items() if own}
    return fill(
        "bound", first=measured[0], seeds=len(next(iter(runs.values()))), commits=commits(measured),
        age=_age(runs["DABand"]),
        head=["term", *(f"{name}, {what}" for name in runs for what in ("a round", "exponent"))],
        rows=[[text, *(cell for own in runs.values() for cell in _cells(own, term))] for term, text in TERMS.items()],
    )  # fmt: skip


def _age(records: Sequence[Record]) -> str:
    """What to say of runs of an older default."""
    if all(record["recipe_hash"] == recipe_hash() for record in records):
        return ""
    return f" DABand is an older default here (hash `{records[0]['recipe_hash']}`; today's is `{recipe_hash()}`)."


def _cells(records: Sequence[Record], term: str) -> list[str]:
    if any(term not in record["bound"] for record in records):
        return ["-", "-"]
    share = np.mean([record["bound"][term][-1] / record["bound"]["rounds"][-1] for record in records])
    slopes = [growth_exponent(np.array(r["bound"]["rounds"]), np.array(r["bound"][term])) for r in records]
    return [f"{share:.3f}", f"{np.mean(slopes):.2f} ± {np.std(slopes, ddof=1):.2f}"]
