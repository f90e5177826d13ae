"""The pages of DIGIT, of the paper's recipe, of the regret bound, and of all methods on all data
sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from daband.bench import read_paper_tables
from pages.text import commits, count, difference, fill, mean_and_deviation, number

Record = Mapping[str, Any]
NAMES = {
    "random": "Random",
    "constant": "Constant",
    "linucb": "LinUCB",
    "linucb-p": "LinUCB-P",
    "linucb-normalised": "LinUCB, images normalised",
    "nlinucb": "Neural-LinUCB",
    "nlinucb-p": "NLinUCB-P",
    "paper-nlinucb": "Neural-LinUCB, the paper's settings",
    "paper": "DABand, the paper's settings",
    "daband": "**DABand, default**",
}
#: Names of variants on the page, if they differ from the record.
_VARIANTS = {"discriminator alone of the target's terms": "only the discriminator"}
COMBINATIONS = ("none", "R", "P", "D", "RP", "RD", "PD", "RPD")
TERMS = {
    "source_regret": "source regret",
    "regression_error": "regression error",
    "divergence": "divergence",
    "predicted_reward_target": "predicted reward, target",
    "predicted_reward_source": "predicted reward, source",
    "exploration": "exploration",
    "total": "sum",
}


class Runs:
    """The runs of a record, by study and variant."""

    def __init__(self, records: Sequence[Record], pair: str = "digit") -> None:
        self.records = [record for record in records if record["pair"] == pair]

    def of(self, study: str, variant: str) -> list[Record]:
        """Return the runs of a variant in order of seeds."""
        own = [run for run in self.records if (run["study"], run["variant"]) == (study, variant)]
        return sorted(own, key=lambda run: int(run["seed"]))

    def variants(self, study: str) -> list[str]:
        """Return the variants of a study in the order of the record."""
        return list(dict.fromkeys(run["variant"] for run in self.records if run["study"] == study))

    def accuracy(self, study: str, variant: str) -> list[float]:
        """Return the target accuracy of each run."""
        return [run["target_accuracy"] for run in self.of(study, variant)]

    def row(self, study: str, variant: str, name: str) -> list[str]:
        """Return a row: the name, target accuracy, source regret and number of seeds."""
        own = self.of(study, variant)
        regret = [run["source_regret"] for run in own if "source_regret" in run]
        return [
            name,
            mean_and_deviation(self.accuracy(study, variant)),
            count(np.mean(regret)) if regret else "",
            str(len(own)),
        ]

    def above(self, study: str, variant: str, other: tuple[str, str]) -> str:
        """Return the difference to another variant, paired by the seeds that both have."""
        mine, theirs = (
            {run["seed"]: run["target_accuracy"] for run in self.of(*one)}
            for one in ((study, variant), other)
        )
        seeds = sorted(mine.keys() & theirs.keys())
        return difference([mine[seed] for seed in seeds], [theirs[seed] for seed in seeds])


def digit(records: Sequence[Record]) -> str:
    """Return the page of DIGIT."""
    runs = Runs(records)
    paper_rows = read_paper_tables()["accuracy"]["digit"]["methods"]
    papers = {method: number(row["average"]) for method, row in paper_rows.items()}
    papers |= {"paper": papers.pop("daband"), "paper-nlinucb": papers.pop("nlinucb")}
    rows = [[*runs.row("methods", name, NAMES[name]), papers.get(name, "")] for name in NAMES]
    return fill(
        "digit",
        rows=rows,
        rounds=runs.of("methods", "daband")[0]["rounds"],
        accuracy=float(np.mean(runs.accuracy("methods", "daband"))),
        plain=float(np.mean(runs.accuracy("methods", "nlinucb"))),
        gain=runs.above("methods", "daband", ("methods", "nlinucb")),
        commits=commits(run for run in records if run["study"] == "methods"),
    )


def attribution(records: Sequence[Record]) -> str:
    """Return the page of what each ingredient of the default contributes on DIGIT."""
    runs = Runs(records)
    default = ("leave-one-out", "default")
    rows = [[*runs.row(*default, "**default**"), ""]]
    rows += [
        [
            *runs.row("leave-one-out", name, _VARIANTS.get(name, name)),
            runs.above("leave-one-out", name, default),
        ]
        for name in runs.variants("leave-one-out")
        if name != "default"
    ]
    rows += [
        [
            *runs.row(study, name, f"{study[:-1]}: {NAMES.get(method, method).strip('*')}, {what}"),
            "",
        ]
        for study in ("baselines", "ceilings")
        for name in runs.variants(study)
        for method, what in [name.split(": ")]
        # the page of DIGIT has the other baselines
        if study == "ceilings" or "bandit feedback" in what
    ]
    shown = [run for run in records if run["study"] in ("leave-one-out", "baselines", "ceilings")]
    return fill(
        "attribution",
        rows=rows,
        commits=commits(shown),
        accuracy=float(np.mean(runs.accuracy(*default))),
        alone=float(np.mean(runs.accuracy("leave-one-out", "no discriminator"))),
        ceiling=float(np.mean(runs.accuracy("ceilings", "daband: target labels"))),
    )


def paper_digit(records: Sequence[Record]) -> str:
    """Return the page of the paper's recipe and of its terms R, P and D."""
    digits = Runs(records)
    signs = Runs(records, "signs")
    reported = read_paper_tables()["full_ablation"]["digit"]["accuracy"]
    rows = [
        [
            letters,
            mean_and_deviation(digits.accuracy("paper ablation", letters)),
            number(reported[letters]),
            mean_and_deviation(digits.accuracy("ablation", letters)),
            mean_and_deviation(signs.accuracy("ablation", letters)),
        ]
        for letters in COMBINATIONS
    ]
    shown = [
        run for run in records if "ablation" in run["study"] or run["variant"].startswith("paper")
    ]
    return fill(
        "paper-digit",
        rows=rows,
        commits=commits(shown),
        reported=reported["RPD"],
        accuracy=mean_and_deviation(digits.accuracy("methods", "paper")),
        plain=mean_and_deviation(digits.accuracy("methods", "paper-nlinucb")),
        second=mean_and_deviation(
            digits.accuracy("paper ablation", "RPD, P on the policy's own choice")
        ),
        gain=digits.above("methods", "paper", ("methods", "paper-nlinucb")),
    )


def bound(records: Sequence[Record]) -> str:
    """Return the page of the regret bound's terms on DIGIT."""
    runs = Runs(records)
    methods = {"nlinucb": "Neural-LinUCB", "daband": "DABand"}
    rows = [
        [text, *(cell for method in methods for cell in _term(runs.of("bound", method), term))]
        for term, text in TERMS.items()
    ]
    shown = runs.of("bound", "daband")
    return fill(
        "bound",
        rows=rows,
        rounds=shown[0]["rounds"],
        seeds=len(shown),
        commits=commits(run for method in methods for run in runs.of("bound", method)),
        head=[
            "term",
            *(f"{name}, {what}" for name in methods.values() for what in ("per round", "exponent")),
        ],
    )


def growth_exponent(rounds: Any, values: Any) -> float:
    """Return the slope of log value over log rounds in the later half of the rounds: 1 grows like
    N, 0.5 like its root.

    NaN if a value is not positive or there are too few points.
    """
    later = rounds >= np.max(rounds, initial=0) / 2
    x = rounds[later].astype(np.float64)
    y = values[later].astype(np.float64)
    if len(x) < 3 or not np.isfinite(y).all() or y.min() <= 0:
        return float("nan")
    slope = float(np.polyfit(np.log(x), np.log(y), 1)[0])
    # a sum that no longer grows: rounding would print -0.00
    return slope if abs(slope) > 1e-9 else 0.0


def _term(runs: Sequence[Record], term: str) -> list[str]:
    """Return a term per source round and the exponent of its growth, or dashes if it is unknown."""
    if any(term not in run["bound"] for run in runs):
        return ["-", "-"]
    per_round = np.mean([run["bound"][term][-1] / run["bound"]["rounds"][-1] for run in runs])
    slopes = [
        growth_exponent(np.array(run["bound"]["rounds"]), np.array(run["bound"][term]))
        for run in runs
    ]
    return [number(float(per_round)), mean_and_deviation(slopes, 2)]


def members(runs: Sequence[Record]) -> str:
    """Return the page of five members, one network and Neural-LinUCB."""
    accuracies: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        accuracies.setdefault(run["pair"], {}).setdefault(run["kind"], []).append(run["accuracy"])
    entropy = {f"{run['pair']} {run['kind']}": run["entropy"] for run in runs if "entropy" in run}
    gaps = [float(np.median(of["members"])) - min(of["members"]) for of in accuracies.values()]
    gains = {
        kind: np.mean([np.mean(of["members"]) - np.mean(of[kind]) for of in accuracies.values()])
        for kind in ("single", "neural")
    }
    rows = [
        [pair, mean_and_deviation(of["members"]), number(min(of["members"]))]
        + [mean_and_deviation(of[kind]) for kind in ("single", "neural")]
        for pair, of in accuracies.items()
    ]
    kinds = ("thinned", "thinned-labels", "thinned-neural")
    thinned = [
        [
            pair,
            *(mean_and_deviation(of[kind]) if kind in of else "" for kind in kinds),
            number(entropy[f"{pair} thinned"] / entropy[f"{pair} thinned-labels"], 1),
        ]
        for pair, of in accuracies.items()
        if "thinned" in of
    ]
    near = sum(gap <= 0.03 for gap in gaps)
    usual = sorted(entropy[f"{pair} members"] / entropy[f"{pair} labels"] for pair in accuracies)
    return fill(
        "members",
        rows=rows,
        near=near,
        thinned=thinned,
        gains=gains,
        usual=usual,
        commits=commits(runs),
    )


def pretrained(runs: Sequence[Record]) -> str:
    """Return the page of methods on features of a pretrained network."""
    methods = ("linucb", "self-training")
    means: dict[str, dict[str, list[float]]] = {}
    for run in sorted(runs, key=lambda run: (run["development"], int(run["seed"]))):
        means.setdefault(run["pair"], {}).setdefault(run["method"], []).append(run["accuracy"])
    development = {run["pair"] for run in runs if run["development"]}
    gains = {
        pair: float(np.mean(of["self-training"]) - np.mean(of["linucb"]))
        for pair, of in means.items()
    }
    rows = [
        [f"{pair.replace('-', ' to ').replace('_', ' ')}{' *' if pair in development else ''}"]
        + [mean_and_deviation(of[method]) for method in methods]
        + [number(gains[pair], sign=True)]
        for pair, of in means.items()
    ]
    reported = [pair for pair in means if pair not in development]
    averages = [
        float(np.mean([np.mean(means[pair][method]) for pair in reported])) for method in methods
    ]
    gain = averages[-1] - averages[0]
    rows.append(
        ["**mean of pairs without a star**", *map(number, averages), number(gain, sign=True)]
    )
    return fill(
        "pretrained",
        rows=rows,
        head=["pair", *methods, "difference to linucb"],
        commits=commits(runs),
        gain=gain,
        worst=min(gains.values()),
        pairs=len(means),
        reported=len(reported),
        seeds=len({run["seed"] for run in runs}),
    )
