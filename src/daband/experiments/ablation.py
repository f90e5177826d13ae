"""The paper's full ablation: every combination of R, P and D, and what each is worth beside the full method.

R is the regression error, P the predicted reward, D the divergence. The three letters together stand for all that
DABand adds to Neural-LinUCB, so ``none`` is Neural-LinUCB of the same recipe, to the bit. In the paper D is the
adversarial term alone. Our default aligns the domains by more than that: entropy, diversity and pseudo-labels on
the target are part of how it aligns, make sense on aligned features only, and go with D. What each of these is worth by
itself is a question for ``daband sweep`` (``--grid pseudo_labels=0,0.5``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daband.errors import InvalidInput
from daband.evaluation import Paired, compare_paired, holm
from daband.experiments.records import Metric, Record, metric_of, results_locked
from daband.experiments.settings import Experiment, RunSpec
from daband.files import write_text

__all__ = ["BASES", "COMBINATIONS", "AblationRow", "ablation_rows", "ablation_runs", "write_ablation"]


COMBINATIONS = ("none", "R", "P", "D", "RP", "RD", "PD", "RPD")
"""What is left on; the last is the full method."""

_R, _P = ("regression_error",), ("predicted_reward",)
BASES: dict[str, dict[str, tuple[str, ...]]] = {
    "paper": {"R": _R, "P": _P, "D": ("adversarial",)},
    "default-rpd": {"R": _R, "P": _P, "D": ("adversarial", "target_entropy", "target_diversity", "pseudo_labels")},
}
"""The recipes that can be ablated, and the terms of the objective behind each letter."""


@dataclass(frozen=True)
class AblationRow:
    """One combination on one base and pair, beside the full method on the same seeds."""

    pair: str
    base: str
    letters: str
    seeds: tuple[int, ...]
    metric: Metric
    """What ``score`` is: the target accuracy where exactly one arm pays 1, else the target value."""
    score: float | None
    """The mean over seeds; None where the target has no labels."""
    score_spread: float
    """The sample standard deviation over seeds, 0 for a single one."""
    source_regret: float | None
    paired: Paired | None
    """This combination minus the full method; None for the full method itself, and where no seed has both."""
    p_holm: float | None
    """The p-value with Holm's correction over the combinations of this base and pair; None without a test."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        paired = {} if self.paired is None else self.paired.as_dict()
        return {
            "pair": self.pair,
            "base": self.base,
            "letters": self.letters,
            "variant": f"{self.base}:{self.letters}",
            "seeds": list(self.seeds),
            "metric": self.metric.field,
            "score": self.score,
            "score_spread": self.score_spread,
            "source_regret": self.source_regret,
            **{name: paired.get(name) for name in ("difference", "low", "high", "p_value")},
            "p_holm": self.p_holm,
        }


def ablation_runs(
    experiment: Experiment, *, bases: Sequence[str] = tuple(BASES), seeds: Sequence[int] | None = None
) -> list[RunSpec]:
    """All eight combinations on each base, with method "daband" and variant ``base:letters``.

    The experiment's settings for DABand apply. Where they change the recipe of a base, that base is changed so.
    """
    for base in bases:
        if base not in BASES:
            raise InvalidInput(f"there is no ablation of the recipe {base!r} (known: {', '.join(BASES)})")
    if not bases:
        raise InvalidInput("an ablation needs at least one base")
    runs = []
    for spec in experiment.runs(["daband"], seeds):
        own = spec.policy.get("recipe")
        for base in bases:
            for letters in COMBINATIONS:
                policy = {**spec.policy, "recipe": _recipe(base, letters, own)}
                runs.append(spec.model_copy(update={"variant": f"{base}:{letters}", "policy": policy}))
    return runs


def _recipe(base: str, letters: str, own: object) -> dict[str, Any]:
    """The base with the terms of the letters left out at weight 0, and the experiment's own changes of that base."""
    changes: dict[str, Any] = dict(own) if isinstance(own, Mapping) and own.get("base") == base else {"base": base}
    removed = {term: 0.0 for letter, terms in BASES[base].items() if letter not in letters for term in terms}
    return {**changes, "weights": {**changes.get("weights", {}), **removed}}


def ablation_rows(records: Sequence[Record]) -> list[AblationRow]:
    """The table of an ablation from records of its runs; other records are passed over."""
    groups: dict[tuple[str, str], dict[str, dict[int, Record]]] = {}
    for record in records:
        base, colon, letters = str(record["variant"]).partition(":")
        if record["method"] == "daband" and colon and base in BASES and letters in COMBINATIONS:
            by_letters = groups.setdefault((record["pair"], base), {})
            by_letters.setdefault(letters, {})[record["seed"]] = record
    rows = []
    for (pair, base), found in groups.items():
        full = found.get(COMBINATIONS[-1], {})
        metric = metric_of([record for by_seed in found.values() for record in by_seed.values()])
        present = [letters for letters in COMBINATIONS if letters in found]
        tests = {letters: _against(found[letters], full, metric) for letters in present if letters != COMBINATIONS[-1]}
        known = {letters: test for letters, test in tests.items() if test is not None}
        corrected = dict(zip(known, holm([test.p_value for test in known.values()]), strict=True))
        for letters in present:
            scores = metric.values(list(found[letters].values()))
            regrets = [record["source_regret"] for record in found[letters].values()]
            p_holm = corrected.get(letters, np.nan)
            rows.append(
                AblationRow(
                    pair=pair,
                    base=base,
                    letters=letters,
                    seeds=tuple(found[letters]),
                    metric=metric,
                    score=None if scores is None else float(scores.mean()),
                    score_spread=0.0 if scores is None or len(scores) < 2 else float(scores.std(ddof=1)),
                    source_regret=None if None in regrets else float(np.mean(regrets)),
                    paired=tests.get(letters),
                    p_holm=None if np.isnan(p_holm) else float(p_holm),
                )
            )
    return rows


def _against(records: Mapping[int, Record], full: Mapping[int, Record], metric: Metric) -> Paired | None:
    seeds = sorted(set(records) & set(full))
    here = metric.values([records[seed] for seed in seeds])
    there = metric.values([full[seed] for seed in seeds])
    return None if not seeds or here is None or there is None else compare_paired(here.tolist(), there.tolist())


def write_ablation(out: str | Path, rows: Sequence[AblationRow]) -> Path:
    """Write ``ablation.json``: what the letters stand for, and the rows."""
    path = Path(out) / "ablation.json"
    used = {row.base for row in rows}
    letters = {base: {letter: list(terms) for letter, terms in BASES[base].items()} for base in BASES if base in used}
    content = {"full": COMBINATIONS[-1], "letters": letters, "rows": [row.as_dict() for row in rows]}
    with results_locked(Path(out)):
        write_text(path, json.dumps(content, indent=2) + "\n")
    return path
