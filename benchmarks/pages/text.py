"""What pages of results share: numbers and tables as Markdown, and the runs of each method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from daband._shift import KINDS, Shift
from daband.neural._recipes import recipe_names, resolve_recipe

Record = Mapping[str, Any]
NAMES = {
    "random": "Random", "constant": "Constant", "linucb": "LinUCB", "linucb-p": "LinUCB-P",
    "nlinucb": "Neural-LinUCB", "nlinucb-p": "NLinUCB-P", "daband": "**daband's default**",
}  # fmt: skip


def number(value: float, digits: int = 3, *, sign: bool = False) -> str:
    """A number as the field writes accuracies: .950; with a sign for differences, unless they round to 0."""
    signed = sign and round(value, digits) != 0
    return f"{value:{'+' if signed else ''}z.{digits}f}".replace("0.", ".", 1)


def p_value(value: float) -> str:
    """A p-value: never 0."""
    return "< .001" if value < 0.001 else number(value)


def count(value: float) -> str:
    """A whole number with commas."""
    return f"{value:,.0f}"


def percent(value: float, digits: int = 0) -> str:
    """A share as a percentage."""
    return f"{value:.{digits}%}"


def mean_and_deviation(records: Iterable[Record], key: str, show: Callable[[float], str]) -> str:
    """Mean and sample standard deviation of a field; the mean alone for a single run."""
    values = np.array([record[key] for record in records], np.float64)
    if len(values) < 2:
        return show(float(values.mean()))
    return f"{show(float(values.mean()))} ± {show(float(values.std(ddof=1)))}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int = 1) -> list[str]:
    """A Markdown table; the first columns are text, the others numbers."""
    rules = ["---"] * text_columns + ["---:"] * (len(head) - text_columns)
    return [f"| {' | '.join(cells)} |" for cells in (head, rules, *rows)]


def recipe_hash(name: str = "default", *, context_shape: tuple[int, ...] = (3, 28, 28)) -> str:
    """The hash of a named recipe as the code has it now and a policy for such contexts runs it."""
    return resolve_recipe(name, context_shape=context_shape).fingerprint()


def todays_hashes() -> set[str]:
    """The hashes of the named recipes as the code has them now, for contexts of every kind and every assumption."""
    return {
        resolve_recipe(name, context_shape=shape, standardised=standardised, shift=shift).fingerprint()
        for name in recipe_names()
        for shape in ((3, 28, 28), (8,), (1000,))
        for standardised in (False, True)
        for shift in (None, *(Shift((kind,)) for kind in KINDS))
    }


def recipes_of(name: str, record: Any) -> str:
    """In a sentence, whether the networks of a record had recipes of today."""
    runs = record if isinstance(record, list) else record.get("runs") or record.get("records") or [record]
    hashes = sorted({one for run in runs for one in np.atleast_1d(run.get("recipe_hash") or [])})
    listed = ", ".join(f"`{one}`" for one in hashes)
    if hashes and set(hashes) <= todays_hashes():
        return f"The networks of `{name}.json` had today's recipes (hash {listed})."
    made = commits(runs if isinstance(record, list) else [record])
    if not hashes:
        return (
            f"`{name}.json` keeps no hash of a recipe: take its networks for those of commit {made}, an **older** one."
        )
    return f"The networks of `{name}.json` had an **older** recipe (hash {listed}, commit {made})."


def methods_on(
    pair: str, attribution: Sequence[Record], linear: Sequence[Record], choose: Sequence[Record] = ()
) -> dict[str, list[Record]]:
    """By method, its runs on "digit" or "signs": networks of the attribution study or of ``choose``, and linear ones.

    Neural-LinUCB is the variant with the target's own statistics. Of LinUCB and LinUCB-P it is the reading and the
    alpha of the lowest source regret, which needs no target label.
    """
    flat = [record for record in linear if is_on(pair, record)]
    found = {
        "random": [record for record in flat if record["method"] == "random"],
        "constant": [record for record in flat if record["method"] == "constant"],
        "linucb": lowest_source_regret([record for record in flat if record["method"] == "linucb"]),
        "linucb-p": lowest_source_regret([record for record in flat if record["method"] == "linucb-p"]),
    }
    if pair == "signs":  # the attribution has it with the discriminator at weight 1 alone
        found |= {method: runs_of_choose(choose, pair, method) for method in ("nlinucb", "nlinucb-p", "daband")}
    else:
        own = [record for record in attribution if is_on(pair, record)]
        found["nlinucb"] = _latest(own, "baselines", "statistics of the target")
        found["nlinucb-p"] = _latest(own, "baselines", "principal components")
        found["daband"] = _latest(own, "leave-one-out", "default", of_recipe=recipe_hash())
    return {name: sorted(found[name], key=lambda record: record["seed"]) for name in NAMES if found[name]}


def shown_in_front(
    attribution: Sequence[Record], linear: Sequence[Record], paper: Sequence[Record]
) -> dict[str, list[Record]]:
    """``methods_on("digit", ...)`` and beside them the paper's recipe, its Neural-LinUCB, LinUCB on normalised images.

    Normalised as the paper's networks read it: to [-1, 1], or by ImageNet's mean and deviation; of these readings the
    one of the lowest source regret.
    """
    normalised = [r for r in linear if is_on("digit", r) and r.get("pixels") in ("symmetric", "imagenet")]
    own = [*paper, *(record for record in attribution if is_on("digit", record))]
    return {
        **methods_on("digit", attribution, linear),
        "linucb-normalised": lowest_source_regret(normalised),
        "paper": _latest(own, "paper ablation", "RPD"),
        "paper-nlinucb": _latest(own, "paper ablation", "none"),
    }


def _latest(records: Sequence[Record], study: str, variant: str, *, of_recipe: str = "") -> list[Record]:
    """The runs of a variant at the last commit that made some; of a recipe, where there are such runs."""
    every = [record for record in records if (record["study"], record["variant"]) == (study, variant)]
    every = [record for record in every if record["recipe_hash"] == of_recipe] or every
    return [record for record in every if record["commit"] == every[-1]["commit"]]


def runs_of_choose(records: Sequence[Record], pair: str, method: str) -> list[Record]:
    """The runs of a method or candidate on a pair, of the record of ``choose``."""
    return [
        {
            "method": method,
            "seed": record["seed"],
            "target_accuracy": {**record["target_accuracy"], **record["baselines"]}[method],
            "source_regret": record["source_regret"][method],
            "rounds": record["rounds"],
            "commit": record["commit"],
        }
        for record in records
        if record["pair"] == pair
    ]


def is_on(pair: str, record: Record) -> bool:
    """Whether a run was on "signs", or on "digit" with its balanced target."""
    return ("signs" in record["pair"]) == (pair == "signs") and "imbalanced" not in record["pair"]


def lowest_source_regret(records: Sequence[Record]) -> list[Record]:
    """The runs of that reading and alpha whose mean source regret is lowest."""
    settings: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        key = tuple(record[name] for name in ("pixels", "ridge", "components", "alpha"))
        settings.setdefault(key, []).append(record)
    return min(settings.values(), key=lambda own: float(np.mean([record["source_regret"] for record in own])))


def accuracies(records: Sequence[Record]) -> list[float]:
    """The target accuracy of each run."""
    return [record["target_accuracy"] for record in records]


def commits(records: Iterable[Record]) -> str:
    """The commits of the runs, as code."""
    names = dict.fromkeys(name for record in records for name in record["commit"].split(", "))
    return ", ".join(f"`{name}`" for name in names)
