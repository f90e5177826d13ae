"""The paper's own numbers, shipped with the package so that every report can stand beside them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

__all__ = ["PaperAccuracy", "paper_ablation", "paper_accuracy", "paper_tables"]


@dataclass(frozen=True)
class PaperAccuracy:
    """One method in one of the paper's accuracy tables: by class name, and its average as printed."""

    average: float
    average_spread: float
    per_class: dict[str, float]
    spread: dict[str, float]


@lru_cache(maxsize=1)
def paper_tables() -> dict[str, Any]:
    """All tables of the paper as they stand in ``reference/paper.toml``."""
    return tomllib.loads((resources.files("daband.report") / "reference" / "paper.toml").read_text())


def paper_accuracy(pair: str) -> dict[str, PaperAccuracy]:
    """The paper's accuracy table for a pair, by method; empty for pairs that the paper does not have."""
    table = paper_tables()["accuracy"].get(pair, {})
    return {
        method: PaperAccuracy(
            average=row["average"],
            average_spread=row["average_spread"],
            per_class=dict(zip(table["classes"], row["per_class"], strict=True)),
            spread=dict(zip(table["classes"], row["spread"], strict=True)),
        )
        for method, row in table.get("methods", {}).items()
    }


def paper_ablation(pair: str) -> dict[str, tuple[float, float]]:
    """The paper's full ablation for a pair: accuracy and spread by the letters of the terms that are kept."""
    table = paper_tables()["full_ablation"].get(pair)
    if table is None:
        return {}
    return {letters: (accuracy, table["spread"][letters]) for letters, accuracy in table["accuracy"].items()}
