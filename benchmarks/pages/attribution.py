"""The page of what each ingredient of the default is worth, from ``benchmarks/records/attribution.json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pages.runs import Runs, fill
from pages.text import recipe_hash

Record = dict[str, Any]
COMBINATIONS = ("none", "R", "P", "D", "RP", "RD", "PD", "RPD")
ADDED_TO = {"nlinucb": "Neural-LinUCB", "nlinucb-p": "NLinUCB-P", "daband": "daband's default"}


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
    older: list[str] = []

    def runs(study: str, variant: str, of: Runs) -> tuple[str, Runs]:
        """The last runs of a variant and its name: of the default as it is, else of an older one, and marked."""
        every = of.where(study=study, variant=variant)
        same = every.where(commit=commits)
        if not len(same):
            older.append(variant)
        return variant + ("" if len(same) else " †"), (same if len(same) else every).by("commit")[-1][1]

    def compared(study: str, variant: str) -> list[str]:
        name, own = runs(study, variant, digit)
        test = own.less(default)
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
    return fill(
        "attribution",
        default=default,
        older=older,
        fair=fair,
        alone=runs("leave-one-out", "no discriminator", digit)[1],
        ceiling=runs("ceilings", "target labels", digit)[1],
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
        every=every,
    )


def _continued(name: str, own: Runs) -> list[str]:
    regrets = [own.text(f"continued_regret.{kind} contexts", whole=True) for kind in ("seen", "fresh")]
    return [name, *regrets, str(len(own))]


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
