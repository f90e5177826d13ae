"""The page of results on logs: coverage of intervals, values beside obp's, and ways to learn with propensities."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pages.text import number, paragraph

__all__ = ["off_policy"]

LEARNING = Path(__file__).parents[1] / "records" / "log-learning.json"
ESTIMATORS = ("dr", "snips", "ips", "switch-dr", "dm")
WEIGHTINGS = ("none", "flattened", "importance", "doubly_robust")

Record = dict[str, Any]


def off_policy(record: Record) -> str:
    """The page, from the records of ``off_policy.py`` and ``log_learning.py``."""
    learning = json.loads(LEARNING.read_text())
    lines = [
        "# Logs: estimates and learning",
        "",
        "<!-- Written by benchmarks/results_pages.py from benchmarks/records/off-policy.json and log-learning.json. "
        "Do not edit. -->",
        "",
        paragraph(
            "What `daband.evaluate_log` says of a policy from another policy's log, and what a policy learns from one.",
            "[Logs](../guide/logs.md) explains the calls.",
        ),
        "",
        *_coverage(record),
        *_beside_obp(record["obp"]),
        *_learning(learning["records"]),
        "## How this was run",
        "",
        "```",
        *[run["command"] for run in (*record["runs"], *learning["runs"])],
        "```",
        "",
        paragraph(
            f"One core ({record['runs'][0]['machine']}), numpy {record['runs'][0]['numpy']}. Logs are drawn by the",
            "seeds 0, 1, ...; every script takes `--part I/N`. Of the first run, the rows of the log's own domain and",
            "those beside obp are shown.",
        ),
        "",
    ]
    return "\n".join(lines)


def _coverage(record: Record) -> list[str]:
    rows = record["coverage"]
    source = [row for row in rows if not row["shift"]]
    target = [row for row in rows if row["shift"]]
    logs = rows[0]["logs"]
    return [
        "## Coverage of intervals",
        "",
        paragraph(
            f"{logs} logs of {record['rounds']:,} rounds with 5 arms, 6 features and propensities of at least",
            f"{record['smallest_propensity']:g}; Bernoulli rewards. The policy that is valued is a LinUCB with",
            "`epsilon=0.1`. A cell is the share of 95% intervals that hold the true value, and behind it the root mean",
            f"squared error of the estimate. Shares of {logs} logs have a standard error of about",
            f"{number(float(np.sqrt(0.95 * 0.05 / logs)))}. Nonlinear rewards are none that the reward model of `dr`",
            "and `dm`, a ridge regression, can represent.",
        ),
        "",
        *_coverage_table(source),
        "",
        paragraph(
            "`dm` trusts its model, and its interval is short of the model's bias; it says so in `.warnings`. In these",
            f"logs `snips` and `dr` have a coverage of at least {_lowest(source, ('snips', 'dr'))}.",
        ),
        "",
        "With `target=`, the policy is valued on 2,000 contexts of another domain; ratios of densities are estimated:",
        "",
        *_coverage_table(target),
        "",
        paragraph(
            "A normal shift moves the mean and the variance of contexts; in a shift of a product, contexts whose first",
            "two features agree in sign are more frequent. The logistic regression of the ratio can represent both,",
            "and every estimator but `dm` covers at least",
            f"{_lowest([row for row in target if row['shift'] != 'wave'], ('dr', 'snips', 'ips', 'switch-dr'))}.",
            *_beyond_the_ratio([row for row in target if row["shift"] == "wave"]),
        ),
        "",
    ]


def _beyond_the_ratio(rows: Sequence[Record]) -> list[str]:
    if not rows:
        return []
    return [
        "In a shift of a wave, contexts whose first feature is near 0 or 2 are more frequent, which it cannot",
        "represent: `dr` then rests on its reward model, and where that is wrong as well, nothing guards it. In",
        f"these rows `dr` covers at least {_lowest(rows, ('dr',))}, `snips` {_lowest(rows, ('snips',))}.",
    ]


def _coverage_table(rows: Sequence[Record]) -> list[str]:
    lines = [
        f"| log | {' | '.join(f'`{name}`' for name in ESTIMATORS)} | effective sample |",
        f"| --- |{' ---: |' * (len(ESTIMATORS) + 1)}",
    ]
    for row in rows:
        found = row["estimators"]
        cells = [f"{found[name]['coverage']:.1%} ({number(found[name]['rmse'])})" for name in ESTIMATORS]
        lines.append(f"| {row['problem']} | {' | '.join(cells)} | {found['dr']['effective_sample_size']:,.0f} |")
    return lines


def _lowest(rows: Sequence[Record], names: Iterable[str]) -> str:
    return f"{min(row['estimators'][name]['coverage'] for row in rows for name in names):.1%}"


def _beside_obp(rows: Sequence[Record]) -> list[str]:
    largest = max(abs(row["obp"][name] - row["daband"][name]) for row in rows for name in ESTIMATORS)
    lines = [
        "## Beside obp",
        "",
        paragraph(
            f"obp {rows[0]['obp_version']} ships with a sample of the Open Bandit Dataset: 10,000 rounds of each",
            "campaign and logging policy. A LinUCB that learned the first half is valued on the second, by both",
            f"libraries with the same predicted rewards; `switch-dr` has a threshold of {rows[0]['threshold']:g}.",
            '"generated" is a log',
            f"that the tests repeat. The largest difference is {largest:.0e}. Values are mean rewards (clicks).",
        ),
        "",
        f"| log | rounds | arms | {' | '.join(f'`{name}`' for name in ESTIMATORS)} | largest difference |",
        f"| --- |{' ---: |' * (len(ESTIMATORS) + 3)}",
    ]
    for row in rows:
        worst = max(abs(row["obp"][name] - row["daband"][name]) for name in ESTIMATORS)
        cells = [f"{row['daband'][name]:.5f}" for name in ESTIMATORS]
        lines.append(f"| {row['log']} | {row['rounds']:,} | {row['arms']} | {' | '.join(cells)} | {worst:.0e} |")
    return [*lines, ""]


def _learning(records: Sequence[Record]) -> list[str]:
    policies = list(dict.fromkeys(record["policy"] for record in records))
    lines = [
        "## Learning with propensities",
        "",
        paragraph(
            "A policy learns from a simulated log of 5 arms and 6 features, and its greedy choices are valued on fresh",
            "contexts: 0 is choosing evenly, 1 the best arm of every context. Logs are even, or skewed (a softmax with",
            "propensities down to .01): towards good arms, towards bad ones, or by the context alone. Rewards are",
            "linear in the context or not. Cells are means over skewed logs and seeds, with the standard error of the",
            "difference to `none` behind them, paired by log and seed.",
        ),
        "",
        f"| policy | rewards | rounds | {' | '.join(f'`{name}`' for name in WEIGHTINGS)} |",
        f"| --- | --- | ---: |{' ---: |' * len(WEIGHTINGS)}",
    ]
    for policy in policies:
        for rewards in ("linear", "nonlinear"):
            own = [r for r in records if r["policy"] == policy and r["rewards"] == rewards and r["log"] != "even"]
            for rounds in sorted({r["rounds"] for r in own}):
                cells = _gains([r for r in own if r["rounds"] == rounds])
                lines.append(f"| {policy} | {rewards} | {rounds:,} | {' | '.join(cells)} |")
        cells = _gains([r for r in records if r["policy"] == policy and r["log"] != "even"])
        lines.append(f"| **{policy}** | **all** | | {' | '.join(cells)} |")
    lines += [
        "",
        "The same by logging policy, over all rewards and rounds:",
        "",
        f"| policy | log | {' | '.join(f'`{name}`' for name in WEIGHTINGS)} |",
        f"| --- | --- |{' ---: |' * len(WEIGHTINGS)}",
    ]
    for policy in policies:
        for log in dict.fromkeys(record["log"] for record in records):
            own = [r for r in records if r["policy"] == policy and r["log"] == log]
            if own:
                lines.append(f"| {policy} | {log} | {' | '.join(_gains(own))} |")
    return [
        *lines,
        "",
        paragraph(
            "Weights in full cost a regression that can represent the rewards, and gain only where it cannot and the",
            "log is large. `flattened` loses little in the first case and gains in the second: it is the default of",
            "LinUCB and the neural policies. A constant arm represents nothing, and `importance`, its default, is best",
            "from 4,000 rounds on. `doubly_robust` is close to `importance`: for a regression in the same features the",
            "two agree in large logs.",
        ),
        "",
    ]


def _gains(records: Sequence[Record]) -> list[str]:
    """A cell for each weighting; a dash where the policy does not offer it."""
    plain = _by_key(records, "none")
    cells = []
    for weighting in WEIGHTINGS:
        own = _by_key(records, weighting)
        if not own:
            cells.append("-")
            continue
        mean = number(float(np.mean(list(own.values()))))
        differences = np.array([own[key] - plain[key] for key in own])
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
