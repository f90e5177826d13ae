"""The page of the paper's recipe on DIGIT, from ``benchmarks/records/paper-digit.json`` and ``attribution.json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from daband.bench.report._method_summaries import paper_ablation
from daband.evaluation._model_selection import CRITERIA
from pages.runs import Runs, fill
from pages.text import recipe_hash

READINGS = {
    "pixels by ImageNet": "images are normalised by ImageNet's mean and deviation instead of to [-1, 1]",
    "pixels by ImageNet, none": "the same with none of R, P and D: its Neural-LinUCB",
    "pixels in [0, 1]": "images are not normalised",
    "theta as it is": "losses see the head's coefficients without unit norm",
    "wide features aligned": "the discriminator sees the features before the two dense layers",
    "L_RS over the pulled arm": "the source loss uses the chosen arm alone, also after a reward of 1",
    "replay of all rounds": "an episode's steps draw from all rounds so far, not from the last 64",
    "head refitted": "A and b are refitted with the present encoder instead of keeping old features",
    "replay and refit": "both of these",
    "learning rate 1e-4": "ten times the paper's learning rate",
    "P at a tenth": "P has a tenth of its weight",
}
COMBINATIONS = ("none", "R", "P", "D", "RP", "RD", "PD", "RPD")
SECOND = "paper ablation, P on the policy's own choice"
WHOLE = "2c7ebcf"
"""The commit that ran every study of this page."""

Record = dict[str, Any]


def paper_digit(records: Sequence[Record], attribution: Sequence[Record]) -> str:
    """The page of the study of the paper's recipe on DIGIT, and on signs."""
    every = Runs.of([*records, *(record for record in attribution if record["study"].startswith("paper "))])
    digit, signs = every.on("digit"), every.on("signs").where(study="paper ablation")
    whole = digit.where(commit=WHOLE)
    ablation = whole.where(study="paper ablation")
    terms = {name: ablation.where(variant=name) for name in COMBINATIONS}
    full, plain, own_choice = (
        digit.where(study=study, variant=name).by("commit")[-1][1]
        for study, name in (("paper ablation", "RPD"), ("paper ablation", "none"), (SECOND, "RPD"))
    )
    today = full.frame["recipe_hash"][0] == recipe_hash("paper")
    settings = "today's settings" if today else "settings of an older version"
    by_lambda = {"1": terms["RPD"], **dict(sorted(whole.where(study="paper lambda").by("variant"), key=_number))}
    shown = [name for name in CRITERIA if all(None not in own.values(f"criteria.{name}") for own in by_lambda.values())]
    means = {name: {value: own.mean(f"criteria.{name}") for value, own in by_lambda.items()} for name in shown}
    picks = {
        name: (max if CRITERIA[name].highest else min)(found, key=lambda value, found=found: found[value])  # type: ignore[misc]
        for name, found in means.items()
    }
    readings = whole.where(study="paper readings")
    on_signs = {name: signs.where(variant=name) for name in COMBINATIONS}
    return fill(
        "paper-digit",
        every=every,
        full=full,
        plain=plain,
        own_choice=own_choice,
        same_commit=full.commits == own_choice.commits,
        not_whole=full.frame["recipe_hash"][0] != terms["RPD"].frame["recipe_hash"][0],
        which=f"Commit {full.commits}, {settings} (hash `{full.frame['recipe_hash'][0]}`).",
        unit=readings.where(variant="pixels in [0, 1]"),
        terms=terms,
        papers={letters: accuracy for letters, (accuracy, _) in paper_ablation("digit").items()},
        second=[
            [name, found[-1][1].accuracy, found[-1][1].regret, str(len(found[-1][1]))]
            for name in COMBINATIONS
            if (found := digit.where(study=SECOND, variant=name).by("commit"))
        ],
        criteria=shown,
        lambdas=[
            [value, own.accuracy]
            + [f"**{means[c][value]:.3f}**" if picks[c] == value else f"{means[c][value]:.3f}" for c in shown]
            for value, own in by_lambda.items()
        ],
        picks=picks,
        by_lambda=by_lambda,
        best=max(by_lambda, key=lambda value: by_lambda[value].mean()),
        readings=[
            [text, own.accuracy, str(len(own)), own.regret]
            for name, text in READINGS.items()
            if len(own := readings.where(variant=name))
        ],
        signs=on_signs,
        least_regret=f"{min(own.mean('source_regret') / own.frame['rounds'][0] for own in on_signs.values()):.0%}",
    )


def _number(named: tuple[str, Runs]) -> float:
    return float(named[0])
