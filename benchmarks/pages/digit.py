"""The pages of the two pairs of images: DIGIT at the paper's budget, and signs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from daband.bench.report._method_summaries import paper_accuracy
from daband.evaluation._paired_test import compare_paired
from pages.linear_readings import PIXELS
from pages.runs import fill
from pages.text import (
    NAMES,
    accuracies,
    commits,
    count,
    is_on,
    mean_and_deviation,
    methods_on,
    number,
    shown_in_front,
    table,
)

Record = Mapping[str, Any]


def digit(attribution: Sequence[Record], linear: Sequence[Record], paper: Sequence[Record]) -> str:
    """The page of DIGIT."""
    runs = methods_on("digit", attribution, linear)
    front = shown_in_front(attribution, linear, paper)
    more = {"DABand (paper)": front["paper"], "LinUCB, images normalised": front["linucb-normalised"]}
    return fill(
        "digit",
        methods=_methods(runs, {method: paper.average for method, paper in paper_accuracy("digit").items()}, more),
        seeds=", ".join(map(number, accuracies(runs["daband"]))),
        paper_nlinucb=float(np.mean(accuracies(front["paper-nlinucb"]))),
        **_shared(runs, "digit", linear),
    )


def signs(attribution: Sequence[Record], linear: Sequence[Record], choose: Sequence[Record]) -> str:
    """The page of signs."""
    runs = methods_on("signs", attribution, linear, choose)
    on_signs = [record for record in attribution if is_on("signs", record)]
    studied = [record for record in on_signs if record["study"] in ("ablation ends", "baselines")]
    return fill(
        "signs",
        methods=_methods(runs, {}),
        variants=_variants(on_signs),
        variant_commits=commits(studied),
        **_shared(runs, "signs", linear),
    )


def _shared(runs: Mapping[str, Sequence[Record]], pair: str, linear: Sequence[Record]) -> dict[str, Any]:
    """What both pages say."""
    return {
        "rounds": runs["daband"][0]["rounds"],
        "gain": _gain(runs),
        "linear": _linear(runs, [record for record in linear if is_on(pair, record)]),
        "commits": commits([record for of in runs.values() for record in of]),
    }


def _methods(
    runs: Mapping[str, Sequence[Record]],
    papers: Mapping[str, float],
    more: Mapping[str, Sequence[Record]] | None = None,
) -> str:
    """A row per method; ``more`` are rows by name, for methods in other settings."""
    rows = []
    for method, found in [*runs.items(), *(more or {}).items()]:
        accuracy = mean_and_deviation(found, "target_accuracy", number)
        rows.append([NAMES.get(method, method), f"**{accuracy}**" if method == "daband" else accuracy,
                     mean_and_deviation(found, "source_regret", count), str(len(found))])  # fmt: skip
        if papers:
            theirs = papers.get({"DABand (paper)": "daband"}.get(method, "" if method == "daband" else method))
            rows[-1].append("" if theirs is None else number(theirs, 4))
    head = ["method", "target accuracy", f"source regret of {count(runs['daband'][0]['rounds'])}", "seeds"]
    return "\n".join(table([*head, "the paper's accuracy"] if papers else head, rows))


def _gain(runs: Mapping[str, Sequence[Record]]) -> str:
    own, plain = runs["daband"], runs["nlinucb"]
    gain = compare_paired(accuracies(own), accuracies(plain))
    regret = np.mean([r["source_regret"] for r in own]) / np.mean([r["source_regret"] for r in plain])
    return (
        f"± is the sample standard deviation over seeds. The default is {number(gain.difference)} above Neural-LinUCB "
        f"(paired over {gain.n} seeds, 95% interval {number(gain.low)} to {number(gain.high)}) with {regret:.2f} times "
        "its source regret. Neural-LinUCB has the default's network and, as the default does, normalises the target "
        "by the target's own statistics."
    )


def _linear(runs: Mapping[str, Sequence[Record]], readings: Sequence[Record]) -> str:
    """How the linear rows were chosen, and what the `oracle` would have taken."""
    one, reduced = runs["linucb"][0], runs["linucb-p"][0]
    best = [_highest([r for r in readings if r["method"] == method]) for method in ("linucb", "linucb-p")]
    return (
        f"LinUCB (pixels {PIXELS[one['pixels']]}; ridge {one['ridge']:g}, alpha {one['alpha']:g}) and LinUCB-P "
        f"({reduced['components']} components, ridge {reduced['ridge']:g}, alpha {reduced['alpha']:g}) have the "
        "settings of the lowest source regret among [several readings](linear-readings.md); those of the highest "
        f"target accuracy, which an `oracle` would take, have {number(best[0])} and {number(best[1])}."
    )


def _highest(records: Sequence[Record]) -> float:
    """The highest mean target accuracy of any reading and alpha."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    for record in records:
        key = tuple(record[name] for name in ("pixels", "ridge", "components", "alpha"))
        groups.setdefault(key, []).append(record["target_accuracy"])
    return max(float(np.mean(values)) for values in groups.values())


def _variants(records: Sequence[Record]) -> list[list[str]]:
    names = {"nlinucb": "Neural-LinUCB", "daband": "DABand, discriminator at 1"}
    groups: dict[str, list[Record]] = {}
    for record in records:
        if record["study"] == "baselines" and record["method"] != "nlinucb-p":
            groups.setdefault(f"{names[record['method']]}: {record['variant']}", []).append(record)
        if (record["study"], record["variant"]) == ("ablation ends", "D"):
            groups.setdefault(f"{names['daband']}: otherwise the default", []).append(record)
    return [
        [
            name,
            mean_and_deviation(of, "target_accuracy", number),
            mean_and_deviation(of, "source_regret", count),
            str(len(of)),
        ]
        for name, of in groups.items()
    ]
