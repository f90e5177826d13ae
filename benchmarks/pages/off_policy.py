"""The page of results on logs: coverage of intervals, values beside obp's, and ways to learn with propensities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pages.runs import fill
from pages.text import number, table

ESTIMATORS = ("dr", "snips", "ips", "switch-dr", "dm")
WEIGHTINGS = ("none", "flattened", "importance", "doubly_robust")

Record = dict[str, Any]


def off_policy(record: Record, learning: Record) -> str:
    """The page, from the records of ``off_policy.py`` and ``log_learning.py``."""
    rows, obp, records = record["coverage"], record["obp"], learning["records"]
    worst = {row["log"]: max(abs(row["obp"][name] - row["daband"][name]) for name in ESTIMATORS) for row in obp}
    beside = [
        [row["log"], f"{row['rounds']:,}", str(row["arms"]), *(f"{row['daband'][name]:.5f}" for name in ESTIMATORS),
         f"{worst[row['log']]:.0e}"]
        for row in obp
    ]  # fmt: skip
    by_rounds, by_log = [], []
    for policy in dict.fromkeys(one["policy"] for one in records):
        of_policy = [one for one in records if one["policy"] == policy]
        skewed = [one for one in of_policy if one["log"] != "even"]
        for rewards in ("linear", "nonlinear"):
            for rounds in sorted({one["rounds"] for one in skewed if one["rewards"] == rewards}):
                cells = _gains([one for one in skewed if (one["rewards"], one["rounds"]) == (rewards, rounds)])
                by_rounds.append([policy, rewards, f"{rounds:,}", *cells])
        by_rounds.append([f"**{policy}**", "**all**", "", *_gains(skewed)])
        for log in dict.fromkeys(one["log"] for one in records):
            of_log = [one for one in of_policy if one["log"] == log]
            by_log += [[policy, log, *_gains(of_log)]] if of_log else []
    return fill(
        "off-policy", record=record, logs=rows[0]["logs"], share_error=float(np.sqrt(0.95 * 0.05 / rows[0]["logs"])),
        source=[row for row in rows if not row["shift"]], target=[row for row in rows if row["shift"]],
        wave=[row for row in rows if row["shift"] == "wave"], coverage=_coverage, lowest=_lowest, obp=obp,
        largest=f"{max(worst.values()):.0e}", beside=beside, by_rounds=by_rounds, by_log=by_log,
        runs=[*record["runs"], *learning["runs"]],
    )  # fmt: skip


def _coverage(rows: Sequence[Record]) -> str:
    lines = []
    for row in rows:
        of = row["estimators"]
        cells = [f"{of[name]['coverage']:.1%} ({number(of[name]['rmse'])})" for name in ESTIMATORS]
        lines.append([row["problem"], *cells, f"{of['dr']['effective_sample_size']:,.0f}"])
    return "\n".join(table(["log", *(f"`{name}`" for name in ESTIMATORS), "effective sample"], lines))


def _lowest(rows: Sequence[Record], names: Iterable[str]) -> str:
    names = list(names)
    return f"{min(row['estimators'][name]['coverage'] for row in rows for name in names):.1%}"


def _gains(records: Sequence[Record]) -> list[str]:
    """A cell for each weighting; a dash where the policy does not offer it."""
    plain = _by_key(records, "none")
    cells = []
    for weighting in WEIGHTINGS:
        gains = _by_key(records, weighting)
        if not gains:
            cells.append("-")
            continue
        mean = number(float(np.mean(list(gains.values()))))
        differences = np.array([gains[key] - plain[key] for key in gains])
        error = differences.std(ddof=1) / np.sqrt(len(differences))
        cells.append(mean if weighting == "none" or not error else f"{mean} ± {number(float(error))}")
    return cells


def _by_key(records: Sequence[Record], weighting: str) -> dict[tuple[Any, ...], float]:
    """The gain of every log, by what names the log."""
    return {
        (r["rewards"], r["log"], r["rounds"], r["seed"]): (r["values"][weighting] - r["even"]) / (r["best"] - r["even"])
        for r in records
        if weighting in r["values"]
    }
