"""The page of what each ingredient of the default is worth, from ``benchmarks/records/attribution.json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pages.runs import Runs, fill
from pages.text import recipe_hash

__all__ = ["attribution", "default_runs"]

Record = dict[str, Any]
COMBINATIONS = ("none", "R", "P", "D", "RP", "RD", "PD", "RPD")
ADDED_TO = {"nlinucb": "Neural-LinUCB", "nlinucb-p": "NLinUCB-P", "daband": "daband's default"}
RECIPE_BEFORE = "d6c8304"
"""A commit that ran the default with the discriminator at weight 1."""
RECIPE_SINCE = "f4c5d2d"
"""A commit that ran it at .3, with a recipe of an older hash."""


def default_runs(records: Sequence[Record]) -> Runs:
    """The runs of the default recipe on DIGIT: today's where a record has its hash, else the latest."""
    every = Runs.of(records).on("digit").where(study="leave-one-out", variant="default")
    today = every.where(recipe_hash=recipe_hash())
    return (today if len(today) else every).by("commit")[-1][1]


def attribution(records: Sequence[Record]) -> str:
    """The page as Markdown."""
    every = Runs.of(records)
    digit = every.on("digit")
    default = default_runs(records)
    commits = digit.where(recipe_hash=default.frame["recipe_hash"][0]).frame["commit"].unique().to_list()
    now = digit.where(commit=commits)
    before = digit.where(study="leave-one-out", variant="default", commit=RECIPE_BEFORE)

    def runs(study: str, variant: str, of: Runs) -> tuple[str, Runs]:
        """The runs of a variant and its name: of the default as it is, else those of the last commit, marked."""
        same = of.where(study=study, variant=variant, commit=commits)
        if len(same):
            return variant, same
        last = of.where(study=study, variant=variant).by("commit")[-1][1]
        weight_1 = bool((last.frame["discriminator"] == 1.0).any()) or study == "label shift"
        return f"{variant} {'†' if weight_1 else '‡'}", last

    def compared(study: str, variant: str) -> list[str]:
        name, own = runs(study, variant, digit)
        same = own.frame["commit"][0] in commits
        test = own.less(default if same else before)
        return [name, own.accuracy, f"{test.difference:+.3f}", f"{test.low:+.3f} to {test.high:+.3f}", own.regret,
                str(len(own))]  # fmt: skip

    def plain(study: str, variant: str, prefix: str) -> list[str]:
        name, own = runs(study, variant, digit)
        return [f"{prefix}{name}", own.accuracy, own.regret, str(len(own))]

    names = [name for name, _ in digit.where(study="leave-one-out").by("variant")]
    fair = runs("baselines", "statistics of the target", digit)[1]
    bare = digit.where(study="add-one-in", variant="none")
    today = default.frame["recipe_hash"][0] == recipe_hash()
    which = f"Today's default (hash `{recipe_hash()}`)" if today else "An **older** default"
    shift = [name for name, _ in every.on("imbalanced").where(study="label shift").by("variant")]
    cost = now.where(study="cost", commit=default.frame["commit"][0])
    by_seed = dict(zip(default.frame["seed"], default.frame["target_accuracy"], strict=True))
    worst = min(by_seed, key=lambda seed: by_seed[seed])
    return fill(
        "attribution",
        default=default,
        before=before,
        previous=digit.where(study="leave-one-out", variant="default", commit=RECIPE_SINCE),
        worst=worst,
        others=float(np.mean([value for seed, value in by_seed.items() if seed != worst])),
        single=cost.where(variant="default, a single run"),
        fair=fair,
        alone=runs("leave-one-out", "no discriminator", digit)[1],
        ceiling=digit.where(study="ceilings", variant="target labels"),
        which=f"{which}, run at commit {default.commits}." + ("" if today else f" Today's hash is `{recipe_hash()}`."),
        left_out=[
            ["the default", f"**{default.accuracy}**", "", "", default.regret, str(len(default))],
            *(compared("leave-one-out", name) for name in names if name != "default"),
        ],
        added=[
            [name, own.accuracy, difference if name != "none" else "", own.regret, str(len(own))]
            for name, own in digit.where(study="add-one-in").by("variant")
            for difference in [f"{own.mean() - bare.mean():+.3f}"]
        ],
        baselines=[
            *(
                plain("baselines", name, f"{ADDED_TO[own.frame['method'][0]]}: ")
                for name, own in digit.where(study="baselines").by("variant")
            ),
            ["daband's default", f"**{default.accuracy}**", default.regret, str(len(default))],
            *(plain("ceilings", name, "ceiling: ") for name, _ in digit.where(study="ceilings").by("variant")),
        ],
        terms={pair: _combinations(every.on(pair), commits) for pair in ("digit", "signs")},
        rpd_changed=now.where(study="default-rpd").by("variant"),
        rpd=now.where(study="ablation", variant="RPD", recipe_hash=recipe_hash("default-rpd")),
        label_shift=[
            [title, own.accuracy, own.text("target_accuracy_macro").partition(" ")[0], str(len(own))]
            for title, own in (runs("label shift", name, every.on("imbalanced")) for name in shift)
        ],
        prior=now.where(study="prior", variant="prior of the arms estimated"),
        continued=[
            _continued("daband's default", default),
            _continued("Neural-LinUCB, statistics of the target", fair),
        ],
        cost=[_seconds(own) for _, own in cost.by("variant")],
        every=every,
    )


def _continued(name: str, own: Runs) -> list[str]:
    regrets = [own.text(f"continued_regret.{kind} contexts", whole=True) for kind in ("seen", "fresh")]
    return [name, *regrets, str(len(own))]


def _seconds(own: Runs) -> list[str]:
    each = own.mean("seconds")
    return [f"{len(own)} seeds stacked" if len(own) > 1 else "1 seed", f"{each:.1f}", f"{each * len(own):.1f}"]


def _combinations(runs: Runs, today: list[str]) -> dict[str, Runs]:
    """The ablation's rows, all of one recipe; what it shares with other studies comes from those."""
    rest = runs.where(commit=[commit for commit in runs.frame["commit"].unique() if commit not in today])
    shared = {"none": ("baselines", "statistics of the target"), "D": ("leave-one-out", "default")}
    found = {}
    for name in COMBINATIONS:
        own = rest.where(study=["ablation", "ablation ends"], variant=name)
        if not len(own):
            weight = {"discriminator": 1.0} if name == "D" else {}
            own = rest.where(study=shared[name][0], variant=shared[name][1], **weight)
        found[name] = own
    return found
