"""The paper's full ablation: every combination of R, P and D, and what each is worth beside the full method.

R is the regression error, P the predicted reward, D the divergence. The three letters together stand for all that
DABand adds to Neural-LinUCB, so ``none`` is Neural-LinUCB of the same recipe, to the bit. In the paper D is the
adversarial term alone. Our default aligns the domains by more than that: entropy, diversity and pseudo-labels on
the target are part of how it aligns, make sense on aligned features only, and go with D. What each of these is worth by
itself is a question for ``daband sweep`` (``--grid pseudo_labels=0,0.5``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daband._files import write_json
from daband.bench._records import Metric, Record, metric_of, results_locked, seed_means
from daband.bench._settings import Experiment, RunSpec
from daband.errors import InvalidInput
from daband.evaluation._paired_test import Paired, compare_paired, holm

#: What is left on; the last is the full method.
COMBINATIONS = ("none", "R", "P", "D", "RP", "RD", "PD", "RPD")

_R, _P = ("regression_error",), ("predicted_reward",)
#: The recipes that can be ablated, and the terms of the objective behind each letter.
BASES: dict[str, dict[str, tuple[str, ...]]] = {
    "paper": {"R": _R, "P": _P, "D": ("adversarial",)},
    "default-rpd": {"R": _R, "P": _P, "D": ("adversarial", "target_entropy", "target_diversity", "pseudo_labels")},
}


@dataclass(frozen=True)
class AblationRow:
    """One combination on one base and pair, beside the full method on the same seeds."""

    pair: str
    base: str
    letters: str
    seeds: tuple[int, ...]
    #: What ``score`` is: the target accuracy where exactly one arm pays 1, else the target value.
    metric: Metric
    #: The mean over seeds; None where the target has no labels.
    score: float | None
    #: The sample standard deviation over seeds, 0 for a single one.
    score_deviation: float
    source_regret: float | None
    #: This combination minus the full method; None for the full method itself, and where no seed has both.
    paired: Paired | None
    #: The p-value with Holm's correction over the combinations of this base and pair; None without a test.
    p_holm: float | None

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        paired = {} if self.paired is None else self.paired.as_dict()
        tested = {name: paired.get(name) for name in ("difference", "low", "high", "p_value")}
        fields = {**asdict(self), "seeds": list(self.seeds), "metric": self.metric.field}
        del fields["paired"]
        return {**fields, "variant": f"{self.base}:{self.letters}", **tested}


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
        changes = spec.policy.get("recipe")
        for base in bases:
            for letters in COMBINATIONS:
                policy = {**spec.policy, "recipe": _recipe(base, letters, changes)}
                runs.append(spec.model_copy(update={"variant": f"{base}:{letters}", "policy": policy}))
    return runs


def _recipe(base: str, letters: str, recipe: object) -> dict[str, Any]:
    """The base with the terms of the letters left out at weight 0, and what the experiment changes of that base."""
    of_base = isinstance(recipe, Mapping) and recipe.get("base") == base
    changes: dict[str, Any] = dict(recipe) if of_base and isinstance(recipe, Mapping) else {"base": base}
    removed = {term: 0.0 for letter, terms in BASES[base].items() if letter not in letters for term in terms}
    return {**changes, "weights": {**changes.get("weights", {}), **removed}}


def ablation_rows(records: Sequence[Record]) -> list[AblationRow]:
    """The table of an ablation from records of its runs; other records are passed over."""
    groups: dict[tuple[str, str], dict[str, dict[int, Record]]] = defaultdict(lambda: defaultdict(dict))
    for record in records:
        base, _, letters = str(record["variant"]).partition(":")
        if record["method"] == "daband" and base in BASES and letters in COMBINATIONS:
            groups[record["pair"], base][letters][record["seed"]] = record
    rows = []
    for (pair, base), by_letters in groups.items():
        full = by_letters.get(COMBINATIONS[-1], {})
        metric = metric_of([record for by_seed in by_letters.values() for record in by_seed.values()])
        present = [letters for letters in COMBINATIONS if letters in by_letters]
        reduced = [letters for letters in present if letters != COMBINATIONS[-1]]
        tests = {letters: _against(by_letters[letters], full, metric) for letters in reduced}
        tested = {letters: test for letters, test in tests.items() if test is not None}
        corrected = dict(zip(tested, holm([test.p_value for test in tested.values()]), strict=True))
        for letters in present:
            p_holm = corrected.get(letters, np.nan)
            means = seed_means(list(by_letters[letters].values()), metric)
            test: dict[str, Any] = {"paired": tests.get(letters), "p_holm": None if np.isnan(p_holm) else float(p_holm)}
            rows.append(AblationRow(pair, base, letters, metric=metric, **means, **test))
    return rows


def _against(records: Mapping[int, Record], full: Mapping[int, Record], metric: Metric) -> Paired | None:
    seeds = sorted(set(records) & set(full))
    scores, of_full = (metric.values([group[seed] for seed in seeds]) for group in (records, full))
    if not seeds or scores is None or of_full is None:
        return None
    return compare_paired(scores.tolist(), of_full.tolist())


def write_ablation(out: str | Path, rows: Sequence[AblationRow]) -> Path:
    """Write ``ablation.json``: what the letters stand for, and the rows."""
    path = Path(out) / "ablation.json"
    used = {row.base for row in rows}
    letters = {base: {letter: list(terms) for letter, terms in BASES[base].items()} for base in BASES if base in used}
    content = {"full": COMBINATIONS[-1], "letters": letters, "rows": [row.as_dict() for row in rows]}
    with results_locked(Path(out)):
        write_json(path, content)
    return path
