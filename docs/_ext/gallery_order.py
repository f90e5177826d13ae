"""The order of the tutorials: what most people come for first."""

from __future__ import annotations

from typing import Any

__all__ = ["TutorialOrder"]

ORDER = [
    "ab_test",
    "rules_in_sql",
    "own_table",
    "llm_routing",
    "daily_loop",
    "served_market",
    "own_loop",
    "trust",
    "five_markets",
    "photo_service",
    "own_images",
    "own_encoder",
    "other_log",
    "sim_to_real",
    "reproduce_paper",
    "add_your_own",
]


class TutorialOrder:
    """A sort key; what is not listed comes last, by name."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, name: str) -> Any:
        """The place of a file."""
        stem = name.removesuffix(".py")
        return (ORDER.index(stem) if stem in ORDER else len(ORDER), stem)
