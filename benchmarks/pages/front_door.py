"""The page of ``front_door.py``'s records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from front_door import ALPHAS, CHANGED, EARLIER, FACTORS, pair_names

from pages.text import commits, number, paragraph

__all__ = ["front_door"]

NEAR, UNMOVED = 0.02, 0.01
Record = dict[str, Any]
Runs = dict[str, list[Record]]


def front_door(records: Sequence[Record]) -> str:
    """The page of what ``LinUCB.for_pair`` gives without a setting."""
    fixed = [f"alpha {alpha:g}" for alpha in ALPHAS]
    pairs = {name: runs for name, runs in _by_pair(records).items() if {"default", *fixed} <= runs.keys()}
    shortfalls = {name: _shortfall(runs, "default", fixed) for name, runs in pairs.items()}
    misses = {name: found for name, found in shortfalls.items() if found[0] > NEAR}
    changed = {name: runs for name, runs in pairs.items() if set(CHANGED) <= runs.keys()}
    moved = max(abs(_moved(runs, change)) for runs in changed.values() for change in CHANGED)
    counts = [len(runs[change]) for runs in changed.values() for change in CHANGED]
    changed_seeds = f"{min(counts)} to {max(counts)} seeds" if min(counts) < max(counts) else f"{max(counts)} seeds"
    seeds = len({record["seed"] for record in records})
    lines = [
        "# LinUCB without a setting",
        "",
        "<!-- Written by benchmarks/results_pages.py from benchmarks/records/front-door.json. Do not edit. -->",
        "",
        paragraph(
            "`LinUCB.for_pair(pair)` puts `Standardise` in front and chooses `alpha` by the number d of features: .3",
            "up to 16 of them, 4.8 / d beyond, never less than .1. How far is that from the best of alpha .05,",
            f".3 and 1? Shared pairs of vectors, means of {seeds} seeds, presets' budgets, evaluated with the bonus",
            '(`rule="ucb"`).',
            _not_run(pairs),
        ),
        "",
        paragraph(
            f"**Within {number(NEAR, 2)} of the best of the three on {len(pairs) - len(misses)} of {len(pairs)}",
            f"pairs.**{_misses(misses)} Contexts multiplied by 1,000, or shifted by ten deviations, move no mean of",
            f"{len(changed)} pairs by more than {number(moved)} (allowed: {number(UNMOVED, 2)}; {changed_seeds}",
            "a pair).",
        ),
        "",
        "| pair | alpha | default | .05 | .3 | 1 | below the best | x 1,000 | shifted |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, runs in pairs.items():
        gap, error = shortfalls[name]
        cells = [
            name,
            number(runs["default"][0]["alpha"]),
            _spread(runs["default"]),
            *(number(_mean(runs[one])) for one in fixed),
            f"**{gap:+.3f} ± {error:.3f}**" if gap > NEAR else f"{gap:+.3f} ± {error:.3f}",
            *(f"{_moved(runs, change):+.3f}" if change in runs else "" for change in CHANGED),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        paragraph(
            "Target accuracy. Below the best: the best of the three columns minus the default, with the standard error",
            "of the paired difference over seeds. A target's test part may be small (77 contexts in `dslr`, where one",
            "context is .013), so a mean of five seeds is uncertain by about .01 to .03 itself.",
        ),
        "",
        "## How alpha was chosen",
        "",
        *_choice(pairs),
        "",
        "## How this was run",
        "",
        paragraph(
            f"{len(records)} runs on {records[0]['machine']} (numpy {records[0]['numpy']}), commits",
            f"{commits(records)}. A run whose contexts, seed and alpha are those of another is not repeated.",
        ),
        "",
        "```",
        "python benchmarks/front_door.py --out benchmarks/records/front-door.json",
        "python benchmarks/results_pages.py",
        "```",
        "",
    ]
    return "\n".join(lines)


def _choice(pairs: dict[str, Runs]) -> list[str]:
    factors = {f"default x {factor:g}": factor for factor in FACTORS}
    known = {name: runs for name, runs in pairs.items() if all(variant in runs for variant in factors)}
    columns = ["default x 0.5", "default", "default x 2"]
    families: dict[str, list[Runs]] = {}
    for name, runs in known.items():
        families.setdefault(name.partition("/")[0], []).append(runs)
    earlier = f"alpha {EARLIER:g}"
    with_earlier = {name: runs for name, runs in pairs.items() if earlier in runs}
    fixed = [f"alpha {alpha:g}" for alpha in ALPHAS]
    worst = sum(_shortfall(runs, earlier, fixed)[0] > NEAR for runs in with_earlier.values())
    lines = [
        paragraph(
            "After n pulls of an arm the width of a typical context of d features is about sqrt(d / n), so with more",
            "features a smaller `alpha` does. How small is an `oracle` choice, made with target accuracies of these",
            "pairs in view: .3 and .1, the 16 and 48 features between which it falls, and the scale of `Standardise`,",
            "a quarter of a deviation. Two rules were tried before on some of the pairs: 1.2 / sqrt(d) with a floor of",
            ".05 and of .1. They missed four pairs and one. Earlier alpha was .15 in every dimension, also with target",
            f"accuracies in view; of the {len(with_earlier)} pairs it was run on here it misses {worst} by more than",
            f"{number(NEAR, 2)}.",
        ),
        "",
        paragraph(
            "What the source alone says: its regret with half the default alpha, the default, and twice, relative to",
            "the least of the three and averaged over the pairs of a family.",
        ),
        "",
        "| family | pairs | half | default | twice |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    relative: dict[str, list[float]] = {column: [] for column in columns}
    for family, members in families.items():
        own: dict[str, list[float]] = {column: [] for column in columns}
        for all_runs in members:
            runs = _common(all_runs, columns)
            regrets = {  # at least one round's, so that a ratio exists
                column: max(1.0, float(np.mean([record["source_regret"] for record in runs[column]])))
                for column in columns
            }
            for column in columns:
                own[column].append(regrets[column] / min(regrets.values()))
                relative[column].append(own[column][-1])
        lines.append(f"| {family} | {len(members)} | {' | '.join(f'{np.mean(own[c]):.3f}' for c in columns)} |")
    lines.append(f"| all | {len(known)} | {' | '.join(f'{np.mean(relative[c]):.3f}' for c in columns)} |")
    return lines


def _not_run(pairs: dict[str, Runs]) -> str:
    missing = [name.partition("/")[0] for name in pair_names() if name not in pairs]
    told = [f"{missing.count(family)} of `{family}`" for family in dict.fromkeys(missing)]
    return f"Not run yet: {', '.join(told)}." if missing else ""


def _misses(misses: dict[str, tuple[float, float]]) -> str:
    if not misses:
        return ""
    told = "; ".join(f"`{name}` by {number(gap)} ± {number(error)}" for name, (gap, error) in misses.items())
    return f" It misses {told}."


def _shortfall(runs: Runs, variant: str, others: Sequence[str]) -> tuple[float, float]:
    """How far the mean of a variant is below the best of the others, and the standard error of that difference."""
    best = max(others, key=lambda one: _mean(runs[one]))
    differences = np.array(_accuracies(runs[best])) - np.array(_accuracies(runs[variant]))
    return float(differences.mean()), float(differences.std(ddof=1) / math.sqrt(len(differences)))


def _moved(runs: Runs, change: str) -> float:
    """How much the mean moves with other contexts, over the seeds that ran with both."""
    both = _common(runs, ["default", change])
    return _mean(both[change]) - _mean(both["default"])


def _common(runs: Runs, variants: Sequence[str]) -> Runs:
    """The records of these variants, of the seeds that all of them have."""
    seeds = set.intersection(*({record["seed"] for record in runs[variant]} for variant in variants))
    return {variant: [record for record in runs[variant] if record["seed"] in seeds] for variant in variants}


def _by_pair(records: Sequence[Record]) -> dict[str, Runs]:
    found: dict[str, Runs] = {}
    for record in records:
        found.setdefault(record["pair"], {}).setdefault(record["variant"], []).append(record)
    for runs in found.values():
        for own in runs.values():
            own.sort(key=lambda record: record["seed"])
    return found


def _accuracies(runs: Sequence[Record]) -> list[float]:
    return [record["target_accuracy"] for record in runs]


def _mean(runs: Sequence[Record]) -> float:
    return float(np.mean(_accuracies(runs)))


def _spread(runs: Sequence[Record]) -> str:
    return f"{number(_mean(runs))} ± {number(float(np.std(_accuracies(runs), ddof=1)))}"
