"""The page of results on prior trust."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pages.runs import fill

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
    rows = []
    for (study, method), of in groups.items():
        nothing = _regrets(of, "relabelled", "nothing")
        names = [study, method, str(len(of)), f"{of[0]['rounds']:,}"]
        for mode, name in MODES.items():
            same, moved = _regrets(of, "as it is", mode), _regrets(of, "relabelled", mode)
            ratio = "" if mode == "nothing" or not len(moved) else f"{moved.mean() / nothing.mean():.2f}"
            rows.append([*names, name, _mean(same), _mean(moved), ratio])
            names = [""] * 4  # said once for all modes
    commands = sorted({f"{record['command']} --out DIR    # commit {record['commit']}" for record in records})
    return fill("prior-trust", rows=rows, commands=commands)


def _regrets(records: Sequence[Record], target: str, mode: str) -> Any:
    found = [record["regret"][target].get(mode) for record in records]
    return np.array([regret for regret in found if regret is not None])


def _mean(values: Any) -> str:
    if not len(values):
        return ""
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
    return f"{values.mean():,.0f}" + (f" ± {error:,.0f}" if len(values) > 1 else "")
