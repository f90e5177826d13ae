"""List the runs of the ablation of DABand's loss terms R, P and D.

The ablation is that of the DABand paper (Wang, Huo, Wang: "Towards Domain Adaptive Neural
Contextual Bandits", 2025). R is the regression error, P the predicted reward, D the divergence.
DABand adds these three to Neural-LinUCB. Without them (``none``), it equals Neural-LinUCB with the
same recipe, bit for bit. In the paper, D is the data divergence. In the recipe "default-rpd", D
also contains the terms ``target_diversity`` and ``pseudo_labels``.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from daband.bench._settings import Experiment, RunSpec
from daband.errors import InvalidInput

#: The terms that an ablation keeps. The last combination is the full method.
ABLATION_LETTERS = ("none", "R", "P", "D", "RP", "RD", "PD", "RPD")
#: The terms of R and P, by letter.
_R_AND_P_TERMS = {"R": ("regression_error",), "P": ("predicted_reward",)}
#: The recipes that can be ablated, each with the objective's terms by letter.
ABLATION_BASES: dict[str, dict[str, tuple[str, ...]]] = {
    "paper": {**_R_AND_P_TERMS, "D": ("data_divergence",)},
    "default-rpd": {
        **_R_AND_P_TERMS,
        "D": ("data_divergence", "target_diversity", "pseudo_labels"),
    },
}


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
        runs.append(replace(spec, variant=f"{base}:{letters}", policy=policy))
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
