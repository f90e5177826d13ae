"""List the runs of the ablation of DABand's loss terms R, P and D, and compute its table.

The ablation is that of the DABand paper (Wang, Huo, Wang: "Towards Domain Adaptive Neural
Contextual Bandits", 2025). R is the regression error, P the predicted reward, D the divergence.
DABand adds these three to Neural-LinUCB. Without them (``none``), it equals Neural-LinUCB with the
same recipe, bit for bit. In the paper, D is the adversarial term. In the recipe "default-rpd", D
also contains the terms ``target_diversity`` and ``pseudo_labels``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from daband.bench._records import PairedTest, Record, adjust_holm, choose_metric, group_by
from daband.bench._settings import Experiment, RunSpec
from daband.bench.report import _method_summaries as summaries
from daband.bench.report._method_summaries import ABLATION_BASES, ABLATION_LETTERS, MethodSummary
from daband.errors import InvalidInput


@dataclass(frozen=True)
class AblationRow:
    """One combination of R, P and D for one base recipe and pair, compared with the full method on
    the same seeds.
    """

    #: The results of this combination.
    summary: MethodSummary
    #: Name of the base recipe, from which terms are removed.
    base: str
    #: Letters of the terms that are kept, for example "RP"; "none" if no term is.
    letters: str
    #: The test of this combination minus the full method; None for the full method, or if they have
    #: no seed in common.
    paired_test: PairedTest | None
    #: The p-value with Holm's correction over the combinations of this base and pair; None without
    #: a test.
    holm_p_value: float | None


def list_ablation_runs(
    experiment: Experiment,
    *,
    bases: Sequence[str] = tuple(ABLATION_BASES),
    seeds: Sequence[int] | None = None,
) -> list[RunSpec]:
    """Return all eight combinations on each base, with method "daband" and variant
    ``base:letters``.

    The experiment's settings for DABand apply. If they change a recipe, the change applies to the
    base of that name only.
    """
    for base in bases:
        if base not in ABLATION_BASES:
            raise InvalidInput(
                f"there is no ablation of the recipe {base!r} (known: {', '.join(ABLATION_BASES)})"
            )
    if not bases:
        raise InvalidInput("an ablation needs at least one base")
    runs = []
    for spec, base, letters in itertools.product(
        experiment.runs(["daband"], seeds), bases, ABLATION_LETTERS
    ):
        policy = {
            **spec.policy,
            "recipe": _build_ablated_recipe(base, letters, spec.policy.get("recipe")),
        }
        runs.append(spec.model_copy(update={"variant": f"{base}:{letters}", "policy": policy}))
    return runs


def _build_ablated_recipe(base: str, letters: str, recipe: object) -> dict[str, Any]:
    """Return the base recipe with the experiment's changes, and weight 0 for the terms whose
    letters are missing.
    """
    changed_recipe: dict[str, Any] = {"base": base}
    if isinstance(recipe, Mapping) and recipe.get("base") == base:
        changed_recipe = dict(recipe)
    zero_weights = {
        term: 0.0
        for letter, letter_terms in ABLATION_BASES[base].items()
        if letter not in letters
        for term in letter_terms
    }
    return {**changed_recipe, "weights": {**changed_recipe.get("weights", {}), **zero_weights}}


def compute_ablation_rows(records: Sequence[Record]) -> list[AblationRow]:
    """Return a row per base, pair and combination, from records of ablation runs; other records are
    ignored.
    """
    all_letters = ABLATION_LETTERS[-1]
    rows = []
    ablation_records = [record for record in records if summaries.get_role(record) == "ablation"]
    groups = group_by(
        ablation_records, lambda record: (record["pair"], record["variant"].partition(":")[0])
    )
    for (_, base), base_records in groups.items():
        metric = choose_metric(base_records)
        base_summaries = summaries.summarise(base_records)
        summary_by_letters = {
            summary.variant.partition(":")[2]: summary for summary in base_summaries
        }
        available_letters = [
            letters for letters in ABLATION_LETTERS if letters in summary_by_letters
        ]
        scores = {
            letters: summaries.compute_scores_by_seed(
                base_records, summary_by_letters[letters].key, metric
            )
            for letters in available_letters
        }
        full_scores = scores.get(all_letters, {})
        all_tests = {
            letters: summaries.compare_seeds(scores[letters], full_scores)
            for letters in available_letters
        }
        tests = {
            letters: test
            for letters, test in all_tests.items()
            if letters != all_letters and test is not None
        }
        p_values = dict(
            zip(tests, adjust_holm([test.p_value for test in tests.values()]), strict=True)
        )
        for letters in available_letters:
            p_value = float(p_values.get(letters, math.nan))
            holm_p_value = None if math.isnan(p_value) else p_value
            rows.append(
                AblationRow(
                    summary_by_letters[letters], base, letters, tests.get(letters), holm_p_value
                )
            )
    return rows
