"""The pages of held-out data sets (default), of trust, of baselines and of logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pages.text import commits, fill, mean_and_deviation, number, percent

Record = Mapping[str, Any]
#: Numbers of target rewards on the page; the record has more.
_SHOWN_REWARDS = (50, 100)
#: Smallest gain of choosing by context, as a fraction of the effect, for which a log counts as one
#: that can gain.
_ROOM = 0.1
SIMPLE = ("constant", "linucb", "linucb-p", "nlinucb")
KINDS = ("tables", "patients", "texts", "features", "images")
SETS = {
    "fifth": "held-out 5",
    "fourth": "held-out 4",
    "third": "held-out 3",
    "report": "held-out 2",
    "development": "development",
    "shared": "research data sets",
}
"""The name of a set of data sets on pages, by its name in the record."""


def tables(*records: Any) -> str:
    """Return the page of DABand against the best simple method on held-out data sets."""
    *sets, unseen = records
    rows = []
    for record in sets:
        kinds = [(SETS[record["half"]], record["runs"])]
        if record is sets[0]:
            by_kind = {
                kind: [run for run in record["runs"] if run["data"].endswith(kind)]
                for kind in KINDS
            }
            kinds += [(f"... {kind}", own) for kind, own in by_kind.items() if own]
        rows += [[name, *_against_simple(runs)] for name, runs in kinds]
    gains = [
        _of_adaptation(runs)
        for runs in _by_data_set(run for record in sets for run in record["runs"]).values()
    ]
    gains = [gain for gain in gains if gain]
    return fill(
        "tables",
        rows=rows,
        unseen=unseen,
        commits=commits(sets),
        n=len(gains),
        helps=sum(max(gain) > 0.02 for gain in gains),
        hurts=sum(min(gain) < -0.02 for gain in gains),
    )


def _by_data_set(runs: Iterable[Record]) -> dict[tuple[str, str], list[Record]]:
    found: dict[tuple[str, str], list[Record]] = {}
    for run in runs:
        if run["data"] != "named":
            found.setdefault((run["data"], run["name"]), []).append(run)
    return found


def _against_simple(runs: Sequence[Record]) -> list[str]:
    """Return data sets, runs, the mean gain of the default, how often it is close, and the lowest
    mean.
    """
    means = []
    by_data_set = _by_data_set(runs)
    for own in by_data_set.values():
        values = {name: np.mean([run["values"][name] for run in own]) for name in own[0]["values"]}
        means.append(
            float(values["daband"] - max(values[name] for name in SIMPLE if name in values))
        )
    close = [percent(float(np.mean(np.array(means) >= -limit))) for limit in (0.02, 0.04)]
    return [
        str(len(means)),
        str(sum(map(len, by_data_set.values()))),
        number(float(np.mean(means)), sign=True),
        *close,
        number(min(means), sign=True),
    ]


def _of_adaptation(runs: Sequence[Record]) -> list[float]:
    """Return the mean gain of each other assumption over the default."""
    names = [name for name in runs[0]["values"] if name.startswith("daband, other")]
    return [
        float(np.mean([run["values"][name] - run["values"]["daband"] for run in runs]))
        for name in names
    ]


def trust(questions: Record) -> str:
    """Return the page of advantages without target rewards, and of what target rewards buy."""
    from reference_class import build_earlier_rows, leave_one_out

    from daband.trust._reference import KINDS as REFERENCE_KINDS
    from daband.trust._reference import load_reference_class

    reference = load_reference_class()
    all_rows = Counter(reference.data_sets)
    earlier_rows = Counter(row["set"] for row in build_earlier_rows())
    predicted_sets = set(all_rows - earlier_rows)
    measured = {kind: leave_one_out(reference.select_kind(kind)) for kind in REFERENCE_KINDS}
    limits = [
        [
            kind,
            str(row["sets"]),
            percent(row["true"], 1),
            percent(row["deployed_of_good"]),
            percent(row["worse_of_deployed"], 1),
            percent(row["kept_median"]),
            percent(row["kept_tenth_percentile"]),
        ]
        for kind, row in measured.items()
    ]
    rows = []
    for row in questions["rows"]:
        if row["half"] == "report" and row["rewards"] in _SHOWN_REWARDS:
            interval = (
                [percent(row["true"], 1), number(row["width"], 2)] if "true" in row else ["", ""]
            )
            gains = [number(row["gain"], sign=True), number(row["worst"], sign=True)]
            rows.append(
                [row["way"], str(row["rewards"]), percent(row["within"]), *interval, *gains]
            )
    fifty = next(
        row
        for row in questions["rows"]
        if row["half"] == "report" and row["way"] == "questions" and row["rewards"] == 50
    )
    verdicts = {row["target"]: row for row in questions["verdicts"]}
    sets = {(row["half"], row["way"]): row["sets"] for row in questions["rows"]}
    return fill(
        "trust",
        limits=limits,
        rows=rows,
        fifty=fifty,
        verdicts=verdicts,
        commit=questions["commit"],
        development_sets=sets["development", "questions"],
        coda_sets=sets["report", "coda"],
        class_rows=len(reference.data_sets),
        class_sets=len(all_rows),
        predicted_sets=len(predicted_sets),
        shared_sets=len(predicted_sets & set(earlier_rows)),
        earlier_sets=len(set(all_rows) - predicted_sets),
    )


def baselines(record: Record) -> str:
    """Return the page of trees, CORAL and subspace alignment."""
    methods = list(next(iter(record["values"].values())))
    rows = [
        [pair, *(mean_and_deviation(own[method], 2) for method in methods)]
        for pair, own in record["values"].items()
    ]
    return fill("baselines", rows=rows, head=["pair", *methods], record=record)


def trials(record: Record) -> str:
    """Return the page of policies from the logs of real experiments."""
    experiments = []
    for method in _in_order(row["method"] for row in record["experiments"]):
        own = [row for row in record["experiments"] if row["method"] == method]
        z = np.array([row["z"] for row in own])
        pairs = {(row["experiment"], row["from"]) for row in own if row["z"] < 0}
        experiments.append([method, number(z.mean(), 2), number(z.min(), 1), f"{len(pairs)} of 14"])
    settings = record["planted"]
    effects = [0.1, 0.2, 0.4, 1.0]  # of those in the record; the mean is over all
    methods = ["best arm", *(row[0] for row in experiments), "best possible"]
    means = {method: float(np.mean([row[method] for row in settings])) for method in methods}
    planted = []
    for method in methods:
        by_effect = [
            np.mean([row[method] for row in settings if row["effect"] == effect])
            for effect in effects
        ]
        planted.append(
            [method, *(number(float(value)) for value in by_effect), number(means[method])]
        )
    peers = {
        method: value
        for method, value in means.items()
        if method not in ("best arm", "daband", "best possible")
    }
    best = max(peers, key=peers.__getitem__)
    large = [row for row in settings if row["n"] == 5000 and row["effect"] > 0.2]
    large = [row for row in large if row["best possible"] - row["best arm"] > _ROOM * row["effect"]]
    intervals = [
        [row["rewards"], f"{row['n']:,}", percent(row["coverage"], 1), percent(row["warned"])]
        for row in record["intervals"]
        if row["warned"] < 1.0
    ]
    warned = [row["coverage"] for row in record["intervals"] if row["warned"] == 1.0]
    return fill(
        "trials",
        record=record,
        warned=warned,
        experiments=experiments,
        planted=planted,
        intervals=intervals,
        best=best,
        relative=means["daband"] / means[best],
        logs=record["intervals"][0]["logs"],
        settings=len(settings),
        personalised=sum(row.get("low", 0.0) > 0 for row in record["experiments"]),
        ours=record["commits"]["experiments, daband"],
        theirs=record["commits"]["experiments, ridge per arm"],
        measured=record["commits"]["intervals, intervals"],
        lost={
            name: sum(row[name] < row["best arm"] - 1e-9 for row in settings)
            for name in ("daband", best)
        },
        large=len(large),
        above=sum(row["daband"] > row["best arm"] for row in large),
        below=sum(row["daband"] < row["best arm"] for row in large),
        room=_ROOM,
        columns=["method", *(number(effect, 1) for effect in effects), "mean"],
    )


def _in_order(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def arms(record: Record) -> str:
    """Return the page of arms with features."""
    runs = [run for run in record["transfer"] if "gap" in run]
    streams = record["stream"]
    logs = [run for run in record["transfer"] if "gap" not in run]
    rows = []
    network_rows = []
    gaps = []
    for data in _in_order(run["data"] for run in runs):
        gap_cells = {}
        old_cells = {}
        means = {}
        for policy in ("linucb", "mixture", "nlinucb"):
            own = [run for run in runs if (run["data"], run["policy"]) == (data, policy)]
            uniform, new, trained = (
                np.array([run[name] for run in own]) for name in ("uniform", "new", "trained")
            )
            gaps.append((new - uniform).mean() / (trained - uniform).mean())
            deviation = np.std([run["gap"] for run in own], ddof=1)
            gap_cells[policy] = f"{number(float(gaps[-1]), 2)} ± {deviation:.2f}"
            old_cells[policy] = mean_and_deviation([run["old"] - run["old_without"] for run in own])
            means[policy] = float(new.mean()), float(np.mean([run["old"] for run in own]))
        regrets = [
            mean_and_deviation([run[name] for run in streams if run["data"] == data], 0)
            for name in ("Ours", "VowpalWabbit", "SquareCb")
        ]
        pooled = [
            cells[policy] for cells in (gap_cells, old_cells) for policy in ("linucb", "mixture")
        ]
        rows.append([data, *pooled, *regrets])
        values = [
            number(means[policy][index]) for index in (0, 1) for policy in ("linucb", "nlinucb")
        ]
        network_rows.append([data, gap_cells["nlinucb"], old_cells["nlinucb"], *values])
    clicks = {
        name: float(np.mean([run[name] for run in logs]))
        for name in ("uniform", "new", "new_error")
    }
    seeds, stream_seeds = (len({run["seed"] for run in some}) for some in (runs, streams))
    return fill(
        "arms",
        rows=rows,
        network_rows=network_rows,
        reached=sum(gap >= 0.5 for gap in gaps),
        total=len(gaps),
        runs=len(runs),
        open_runs=sum(run["gap"] < 0.5 for run in runs),
        seeds=seeds,
        stream_seeds=stream_seeds,
        speed=record["speed"][0],
        clicks={**clicks, "error": clicks["new_error"]},
        commits=sorted(
            {
                run.get("commit", record["commit"])
                for run in (*runs, *logs, *streams, *record["speed"])
            }
        ),
    )
