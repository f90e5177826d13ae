"""The page of every method on every shared data set, from ``benchmarks/records/choose.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from daband.evaluation import Paired, compare_paired
from pages.text import NAMES, commits, count, number, paragraph, table, written_from

__all__ = ["families", "methods", "of_method"]

Record = Mapping[str, Any]


def methods(records: Sequence[Record]) -> str:
    """The page as Markdown."""
    by_family = families(records)
    first = ["daband", *(method for method in NAMES if method != "daband")]  # seen without scrolling
    shown = [method for method in first if any(of_method(own, method) for own in by_family.values())]
    rows = []
    for family, own in by_family.items():
        cells = [number(float(np.mean(found))) if (found := of_method(own, one)) else "" for one in shown]
        rows.append([family, str(len(_pairs(own))), *cells])
    lines = [
        "# Methods by data set",
        "",
        written_from("choose"),
        "",
        paragraph(
            "**Does it work on data it was not made for?** Every method on every pair at hand, with the defaults of",
            "the library: one recipe per kind of context and none per data set, budgets of the presets, seeds",
            f"{_seeds(records)}. No target label in training. The default's alignment, the weight of the LinUCB beside",
            "a network and [the alpha of LinUCB](front-door.md) were chosen with target accuracy on some of these",
            "pairs in view: `oracle` choices. The networks' alpha of 1 was chosen by source regret.",
        ),
        "",
        "Target accuracy, mean over pairs and seeds:",
        "",
        *table(["data set", "pairs", *(NAMES[method].strip("*") for method in shown)], rows),
        "",
        paragraph(
            "Constant is the arm with the best mean in the source. On vectors the predictions of Neural-LinUCB and",
            "DABand are averaged with those of a LinUCB beside their network. LinUCB on all pixels was left out where",
            "it takes hours, and has no mean over a data set that lacks it. Other settings of LinUCB and DABand, and",
            "what [`choose`](choose.md) takes among all, are on that page. [DIGIT](digit.md) and [signs](signs.md)",
            f"have pages of their own, with LinUCB's settings chosen by source regret{_form(by_family)}.",
        ),
        "",
        "## DABand against the others",
        "",
        *_differences(by_family),
        "",
        paragraph(
            "Differences in target accuracy, with 95% intervals (Student's t), paired by pair and seed. Runs of one",
            "pair are not independent, so the interval over pairs (each its mean over seeds) is the one to trust for",
            "pairs that are not here. The last column is DABand's source regret over Neural-LinUCB's.",
        ),
        "",
        "## By pair",
        "",
        "Target accuracy, mean and standard deviation over seeds.",
        "",
    ]
    rows = []
    for pair, own in _pairs(records).items():
        cells = [_spread(found) if (found := of_method(own, method)) else "" for method in shown]
        rows.append([pair, count(own[0]["rounds"]), *cells])
    head = ["pair", "rounds", *(NAMES[method].strip("*") for method in shown)]
    devices = dict.fromkeys(device for record in records for device in record["device"].values())
    lines += [
        *table(head, rows),
        "",
        paragraph(
            f"Devices: {', '.join(devices)}; commits {commits(records)}. DABand's default for images has a",
            "discriminator of weight .3 since f4c5d2d; runs of an earlier commit were given that weight as a setting.",
        ),
        "",
        "```",
        "python benchmarks/results_pages.py  # writes this page; its runs were made by scripts of the commits below",
        "```",
        "",
    ]
    return "\n".join(lines)


def families(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records by data set: what a pair's name begins with."""
    found: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: (record["pair"], record["seed"])):
        found.setdefault(record["pair"].partition("/")[0], []).append(record)
    return found


def of_method(records: Sequence[Record], method: str, field: str = "target_accuracy") -> list[float]:
    """A method's target accuracy, or another field, in every record; nothing where one of them lacks it."""
    values: list[float] = []
    for record in records:
        known = dict(record.get(field, {}))
        if field == "target_accuracy":
            known |= record.get("baselines", {})
        if method not in known:
            return []
        values.append(known[method])
    return values


def _differences(by_family: Mapping[str, Sequence[Record]]) -> list[str]:
    rows = []
    for family, own in by_family.items():
        daband, plain = of_method(own, "daband"), of_method(own, "nlinucb")
        pairs = list(_pairs(own).values())
        over_pairs = ""
        if len(pairs) > 1:
            means = [[float(np.mean(of_method(one, name))) for one in pairs] for name in ("daband", "nlinucb")]
            over_pairs = _interval(compare_paired(*means))
        regrets = [of_method(own, name, "source_regret") for name in ("daband", "nlinucb")]
        ratio = f"{np.mean(regrets[0]) / np.mean(regrets[1]):.2f}" if all(regrets) else ""
        rows.append([
            family, str(len(daband)), _interval(compare_paired(daband, plain)), over_pairs,
            *(_less(own, name) for name in ("linucb", "constant")), ratio,
        ])  # fmt: skip
    head = ["data set", "runs", "less Neural-LinUCB", "the same over pairs", "less LinUCB", "less constant"]
    return table([*head, "source regret"], rows)


def _less(records: Sequence[Record], name: str) -> str:
    """DABand less another method, where all records have it."""
    other = of_method(records, name)
    return _interval(compare_paired(of_method(records, "daband"), other)) if other else ""


def _pairs(records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record["pair"], []).append(record)
    return found


def _seeds(records: Sequence[Record]) -> str:
    seeds = sorted({record["seed"] for record in records})
    return f"{seeds[0]} to {seeds[-1]}"


def _form(by_family: Mapping[str, Sequence[Record]]) -> str:
    """Which form of DIGIT is in the table, where it is there."""
    if "digit" not in by_family:
        return ""
    return f"; DIGIT here is {by_family['digit'][0]['data'].rpartition('; ')[2]}, there the released one"


def _interval(paired: Paired) -> str:
    low, high = (number(value, sign=True) for value in (paired.low, paired.high))
    text = f"{number(paired.difference, sign=True)} ({low} to {high})"
    return f"**{text}**" if paired.low > 0 else text


def _spread(values: Sequence[float]) -> str:
    return f"{number(float(np.mean(values)))} ± {number(float(np.std(values, ddof=1)))}"
