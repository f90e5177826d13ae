"""The pages of tables, of trust and of logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pages.text import commits, fill, mean_and_deviation, number, percent

Record = Mapping[str, Any]
#: Numbers of target rewards on the page; the record has more.
_SHOWN_REWARDS = (50, 100)
#: Smallest advantage, in marks, of a router that should be deployed.
_GOOD_GAIN = 0.02
#: Methods of ``full_labels.py`` by their name on the page. The first is today's default.
_LABEL_METHODS = {
    "supervised": "`Supervised` (default)",
    "mixture": "`Mixture`, bandit feedback",
    "linear": "linear model",
    "boosted": "boosted trees",
    "forest": "forest",
    "best by source": "best of these three in the source",
    "weighted mean": "their weighted mean",
}
#: The part of the penalty's name in ``full_labels.py``.
_PENALTY = 3


def tables(labels: Record) -> str:
    """Return the page of policies that learn all labels of a source."""
    groups = {
        "development": [row for row in labels["rows"] if row["half"] == "development"],
        "report": [row for row in labels["rows"] if row["half"] == "report"],
    }
    groups = {
        name: [row for row in rows if not row["table"].startswith("full_rewards")]
        for name, rows in groups.items()
    }
    groups["full rewards"] = [
        row for row in labels["rows"] if row["table"].startswith("full_rewards")
    ]
    by_table = {name: _average_seeds(rows) for name, rows in groups.items()}
    rows = []
    for method, label in _LABEL_METHODS.items():
        means = [
            number(float(np.mean([row[method] for row in averages])))
            for averages in by_table.values()
        ]
        gains = [row["supervised"] - row[method] for row in by_table["report"]]
        shown = [number(float(np.mean(gains)), sign=True), percent(_near(gains))]
        shown.append(number(min(gains), sign=True))
        rows.append([label, *means, *(shown if method != "supervised" else [""] * 3)])
    streams = [
        [world, *map(number, labels["summary"]["report"][f"stream, {world}, {_PENALTY}"])]
        for world in ("as it is", "reversed")
    ]
    return fill(
        "tables",
        rows=rows,
        streams=streams,
        sizes={name: len(averages) for name, averages in by_table.items()},
        seeds=len({row["seed"] for row in labels["rows"]}),
        commit=labels["commit"],
    )


def _average_seeds(rows: Sequence[Record]) -> list[dict[str, float]]:
    """Return the mean reward of each method for each table."""
    names = _in_order(row["table"] for row in rows)
    return [
        {
            method: float(
                np.mean([row[method] for row in rows if row["table"] == name and method in row])
            )
            for method in _LABEL_METHODS
        }
        for name in names
    ]


def _near(gains: Sequence[float]) -> float:
    """Return the fraction of gains that are at least -0.02."""
    return float(np.mean(np.array(gains) >= -0.02))


def _by_data_set(runs: Iterable[Record]) -> dict[tuple[str, str], list[Record]]:
    found: dict[tuple[str, str], list[Record]] = {}
    for run in runs:
        if run["data"] != "named":
            found.setdefault((run["data"], run["name"]), []).append(run)
    return found


def trust(questions: Record, full: Record) -> str:
    """Return the page of advantages without target rewards, and of what target rewards buy."""
    from reference_class import build_earlier_rows, leave_one_out

    from daband.trust._reference import KINDS as REFERENCE_KINDS
    from daband.trust._reference import load_reference_class

    reference = load_reference_class()
    all_rows = Counter(reference.data_sets)
    earlier_rows = Counter(row["set"] for row in build_earlier_rows())
    newer_sets = set(all_rows - earlier_rows)
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
        n_shown = len(_SHOWN_REWARDS) if row["way"] == "questions" else 1
        if row["half"] == "report" and row["rewards"] in _SHOWN_REWARDS[:n_shown]:
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
    collections = [
        [
            name.replace("_", " "),
            str(row["tables"]),
            percent(row["true"]),
            f"{row['good deployed']} of {row['good']}",
            f"{row['wrong']} of {row['deployed']}",
        ]
        for name, row in full["summary"]["collections"].items()
        if name != "full_rewards"
    ]
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
        collections=collections,
        finer=full["summary"]["finer collections"]["all"],
        full_commit=full["commit"],
        class_rows=len(reference.data_sets),
        class_sets=len(all_rows),
        earlier_sets=len(set(all_rows) - newer_sets),
    )


def routing(record: Record) -> str:
    """Return the page of routers of language models in another domain."""
    rows = record["rows"]
    other_rows = [
        row for row in rows if "high_school_mathematics" not in (row["source"], row["target"])
    ]
    routers = {
        "linucb": "LinUCB",
        "knn": "20 nearest neighbours",
        "logistic": "logistic regression",
    }
    gains = {name: _compute_gains(rows, name) for name in routers}
    values = [
        *(
            [f"`choose`: {text}", *_format_gains(_compute_gains(rows, "choose", kept_verdicts))]
            for text, kept_verdicts in CHOOSE_RULES.items()
        ),
        *([text, *_format_gains(gains[name])] for name, text in routers.items()),
        ["best model in hindsight", *_format_gains(_compute_best_gains(rows, singles=True))],
        ["best router in hindsight", *_format_gains(_compute_best_gains(rows))],
    ]
    verdicts = []
    for text, names in (("`choose`", ["choose"]), ("the other three", list(routers))):
        for stage, rewards in enumerate((0, 50, 500)):
            judged = [row["verdicts"][name][stage] for row in rows for name in names]
            deployed = [one["gain"] for one in judged if one["verdict"] == "deploy"]
            counts = [
                len(judged),
                sum(one["gain"] >= _GOOD_GAIN for one in judged),
                sum(gain >= _GOOD_GAIN for gain in deployed),
                len(deployed),
                sum(gain < 0.0 for gain in deployed),
                sum(gain < -_GOOD_GAIN for gain in deployed),
            ]
            verdicts.append([text, rewards, *counts])
    return fill(
        "routing",
        n=len(rows),
        n_two=sum(row["collection"] == "two_models" for row in rows),
        n_other=len(other_rows),
        n_four=sum(row["collection"] == "four_models" for row in rows),
        closed=_compute_closed_fraction(rows),
        other_closed=_compute_closed_fraction(other_rows),
        other_values=", ".join(_format_gains(_compute_gains(other_rows, "choose"))),
        keep=_summarise_first_verdicts(rows, "keep the incumbent"),
        collect=_summarise_first_verdicts(rows, "collect rewards"),
        values=values,
        verdicts=verdicts,
        commit=record["commit"],
    )


#: The verdicts with which the incumbent is kept instead of the policy of ``choose``.
CHOOSE_RULES: dict[str, tuple[str, ...]] = {
    "policy, if the verdict is *deploy*": ("keep the incumbent", "collect rewards"),
    "policy, unless it is *keep*": ("keep the incumbent",),
    "policy, always": (),
}


def _compute_gains(
    rows: Sequence[Record], name: str, kept_verdicts: Sequence[str] = ()
) -> np.ndarray:
    """Return the advantages of a router over the incumbent, (pairs, 3), by number of rewards.

    With one of ``kept_verdicts`` the incumbent is kept.
    """
    gains = [np.array(row["values"][name]) - row["singles"][row["incumbent"]] for row in rows]
    kept = [[one["verdict"] in kept_verdicts for one in row["verdicts"][name]] for row in rows]
    return np.where(kept, 0.0, gains)


def _summarise_first_verdicts(rows: Sequence[Record], verdict: str) -> dict[str, Any]:
    """Return how often ``choose`` has a verdict without target rewards, and the mean gain of its
    policy.
    """
    first = [row["verdicts"]["choose"][0] for row in rows]
    gains = [one["gain"] for one in first if one["verdict"] == verdict]
    return {"n": len(gains), "gain": number(float(np.mean(gains)), sign=True)}


def _compute_best_gains(rows: Sequence[Record], *, singles: bool = False) -> np.ndarray:
    """Return the advantage of the best router without target rewards, or of the best single model,
    which is a router too, (pairs, 3).
    """
    best = []
    for row in rows:
        routers = [] if singles else [values[0] for values in row["values"].values()]
        best.append([max([*row["singles"], *routers]) - row["singles"][row["incumbent"]]] * 3)
    return np.array(best)


def _compute_closed_fraction(rows: Sequence[Record]) -> float:
    """Return the fraction of the gap between ``choose`` without rewards and the best router in
    hindsight that 50 rewards close.
    """
    none, few, _ = _compute_gains(rows, "choose").mean(axis=0)
    return float((few - none) / (_compute_best_gains(rows).mean() - none))


def _format_gains(gains: np.ndarray) -> list[str]:
    """Return the mean of each column of advantages (pairs, 3) as text."""
    return [number(float(gain), sign=True) for gain in gains.mean(axis=0)]


def verdicts(record: Record) -> str:
    """Return the page of verdicts on logs of experiments, with equal arms and with known rewards."""
    experiments = record["experiments"]
    held_out = record["movement"]["both held-out halves"]
    rates = [
        [
            name,
            row["pairs"],
            row["good"],
            percent(row["good_deployed"]),
            row["deployed"],
            row["wrong"],
            percent(row["limit_true"]),
            percent(row["limit_true_by_experiment"]),
        ]
        for name, row in (
            ("constants of the package", experiments["all"]),
            ("constants of the other half", held_out),
        )
    ]
    missed = [
        row["advantage"] / row["error"]
        for row in experiments["rows"]
        if row["true"] > 2.0 * row["true_error"] and row["verdict"] != "deploy"
    ]
    equal = record["equal"]["rows"]
    kinds = _in_order((row["buyers"], row["amounts"]) for row in equal)
    deployed = [
        [
            f"{rounds:,}",
            *(
                percent(
                    max(
                        row["deployed"]
                        for row in equal
                        if (row["rounds"], row["buyers"], row["amounts"]) == (rounds, *kind)
                    )
                )
                for kind in kinds
            ),
        ]
        for rounds in _in_order(row["rounds"] for row in equal)
    ]
    return fill(
        "verdicts",
        experiments=experiments,
        n_experiments=len({row["experiment"] for row in experiments["rows"]}),
        rates=rates,
        missed=missed,
        below=sum(z < 1.28 for z in missed),
        equal=deployed,
        kinds=[
            f"{percent(buyers, 1)} buyers, {'amounts' if amounts else 'reward 1'}"
            for buyers, amounts in kinds
        ],
        runs=min(row["runs"] for row in equal),
        full=[
            [
                row["problem"],
                *(number(row[name]) for name in ("best_arm", "log", "ridge", "trees")),
            ]
            for row in record["full"]["rows"]
        ],
        commits=[record[part]["commit"] for part in ("experiments", "equal", "full")],
    )


def pilots(record: Record) -> str:
    """Return the page of replayed pilots."""
    summary = record["summary"]
    rows = [
        [
            row["target"].replace("as it is", "as is"),
            row["condition"],
            *(percent(row[name], 1) for name in ("wrong", "largest_wrong", "right")),
            number(row["cost"]),
        ]
        for row in summary
    ]
    # shuffled rewards have no right proof, which takes rounds
    ratios = [
        [
            row["target"].replace("as it is", "as is"),
            "daily" if row["condition"] == "daily" else "weekly",
            method.removesuffix(" where they differ").removesuffix(" sampling"),
            row[f"problems, {method}"],
            number(row[f"ratio, {method}"], 2),
            percent(row[f"right, {method}"], 1),
        ]
        for row in summary
        for method in ("pilot without a source", "50/50 where they differ", "Thompson sampling")
        if f"ratio, {method}" in row and row["target"] != "shuffled"
    ]
    return fill(
        "pilots",
        record=record,
        rows=rows,
        ratios=ratios,
        problems=summary[0]["problems"],
        n_runs=record["runs"] * sum(row["problems"] for row in summary),
        wrong=float(np.mean([row["wrong"] for row in summary])),
        largest_broken=max(row["largest_broken"] for row in summary),
        later=max(summary, key=lambda row: row["largest_wrong_later"]),
        plain=summary[0],
    )


def trials(record: Record) -> str:
    """Return the page of policies from the logs of real experiments."""
    experiments = []
    for method in _in_order(row["method"] for row in record["experiments"]):
        own = [row for row in record["experiments"] if row["method"] == method]
        z = np.array([row["z"] for row in own])
        pairs = {(row["experiment"], row["from"]) for row in own if row["z"] < 0}
        experiments.append([method, number(z.mean(), 2), number(z.min(), 1), f"{len(pairs)} of 14"])
    settings = record["planted"]
    effects = [0.4, 1.0]  # of those in the record; the mean is over all
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
    intervals = [row["coverage"] for row in record["intervals"] if row["warned"] < 1.0]
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
        simulated=record["commits"]["planted, daband"],
        theirs=record["commits"]["experiments, ridge per arm"],
        measured=record["commits"]["intervals, intervals"],
        lost={
            name: sum(row[name] < row["best arm"] - 1e-9 for row in settings)
            for name in ("daband", best)
        },
        columns=["method", *(number(effect, 1) for effect in effects), "mean"],
    )


def budgets(record: Record) -> str:
    """Return the page of language models under a budget per prompt."""
    rows = []
    for row in record["budgets"]:
        gain, *limits = (number(value, sign=True) for value in row["gain"])
        best = row["best_single"]
        rows.append(
            [
                f"{row['budget']:.4f}",
                f"{np.mean(row['costs']):.5f}",
                f"{number(np.mean(row['marks']))} ({' to '.join(map(number, row['interval']))})",
                f"{best['model'].partition('/')[2]}, {number(best['mark'])}",
                f"{gain} ({' to '.join(limits)})",
            ]
        )
    return fill(
        "budgets",
        rows=rows,
        worst=max(max(row["costs"]) / row["budget"] for row in record["budgets"]) - 1.0,
        prompts=sum(record["prompts"]),
        learned=record["prompts"][0],
        orders=len(record["budgets"][0]["costs"]),
        best=record["best_per_prompt"],
        command=record["command"],
        commit=commits([record]),
    )


#: The worlds of ``target_streams.py``.
_WORLDS = ("as is", "reversed", "drift", "shuffled")


def target_streams(record: Record, six_weeks: Record) -> str:
    """Return the page of learning in a target: against a start without the source, and against
    LinUCB in simulated weeks.
    """
    rows = []
    bounds = []
    for policy, name in (("mixture", "Mixture"), ("linucb", "LinUCB")):
        for world in _WORLDS:
            for half in (1, 0) if (policy, world) == ("mixture", "as is") else (1,):
                summary = record["summary"][f"{policy}, {world}, half {half}"]
                fixed = number(summary["worth 1"][0]) if "worth 1" in summary else ""
                first, last = (
                    f"{number(summary['warm'][window])} / {number(summary['cold'][window])}"
                    for window in (1, 3)
                )
                below = summary["more than 0.01 below the better cold start"]
                rows.append(
                    [
                        f"{name}, {world}",
                        "untouched" if half else "prior",
                        number(summary["warm"][0]),
                        number(summary["cold"][0]),
                        fixed,
                        first,
                        last,
                        f"{below} of {summary['streams']}",
                        number(summary["worst difference"], sign=True),
                    ]
                )
                if (policy, world) == ("mixture", "as is"):
                    bounds.append(summary)
    gains = {
        policy: [
            row["gains"][0] for key, row in record["summary"].items() if f"{policy}, later" in key
        ]
        for policy in ("mixture", "linucb")
    }
    return fill(
        "target-streams",
        rows=rows,
        untouched=bounds[0],
        prior=bounds[1],
        gains=gains,
        record=record,
        weeks=[
            [
                world,
                *(number(summary["mean"][name], 4) for name in ("LogPolicy", "LinUCB")),
                f"{number(summary['difference'], 4, sign=True)} ± "
                f"{number(summary['deviation of differences'], 4)}",
                *(
                    number(value, 4, sign=True)
                    for value in (
                        summary["differences by week"][0],
                        float(np.mean(summary["differences by week"][1:])),
                        summary["lowest in the last week"],
                    )
                ),
            ]
            for world, summary in six_weeks["summary"].items()
        ],
        below=sum(summary["difference"] < 0 for summary in six_weeks["summary"].values()),
        markets=min(summary["markets"] for summary in six_weeks["summary"].values()),
        six_weeks=six_weeks,
    )


def _in_order(names: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(names))


def arms(record: Record) -> str:
    """Return the page of arms with features."""
    runs = [run for run in record["transfer"] if "gap" in run]
    streams = record["stream"]
    logs = [run for run in record["transfer"] if "gap" not in run]
    rows = []
    gaps = []
    for data in _in_order(run["data"] for run in runs):
        gap_cells = {}
        old_cells = {}
        for policy in ("linucb", "mixture", "nlinucb"):
            own = [run for run in runs if (run["data"], run["policy"]) == (data, policy)]
            uniform, new, trained = (
                np.array([run[name] for run in own]) for name in ("uniform", "new", "trained")
            )
            gaps.append((new - uniform).mean() / (trained - uniform).mean())
            deviation = np.std([run["gap"] for run in own], ddof=1)
            gap_cells[policy] = f"{number(float(gaps[-1]), 2)} ± {deviation:.2f}"
            old_cells[policy] = mean_and_deviation([run["old"] - run["old_without"] for run in own])
        regrets = [
            mean_and_deviation([run[name] for run in streams if run["data"] == data], 0)
            for name in ("Ours", "VowpalWabbit", "SquareCb")
        ]
        gains = [old_cells[policy] for policy in ("linucb", "mixture")]
        rows.append([data, *gap_cells.values(), *gains, *regrets])
    clicks = {
        name: float(np.mean([run[name] for run in logs]))
        for name in ("uniform", "new", "new_error")
    }
    seeds, stream_seeds = (len({run["seed"] for run in some}) for some in (runs, streams))
    return fill(
        "arms",
        rows=rows,
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


def rules(record: Record) -> str:
    """Return the page of trees of depth 2 against the full policy."""
    planted = record["planted"]["rows"]
    problems = record["full"]["rows"] if "full" in record else []
    logs = [row for row in problems if row["seed"] >= 0]
    engines = [row for row in record.get("engines", {"rows": []})["rows"] if "different" in row]
    in_full = [row for row in problems if row["seed"] < 0]
    groups = {
        "experiments": record["experiments"]["rows"],
        "simulated, two splits": [row for row in planted if row["rule_of"] == "splits"],
        "simulated, linear": [row for row in planted if row["rule_of"] == "linear"],
        "all rewards, logs": logs,
        "all rewards, in full": in_full,
    }
    return fill(
        "rules",
        rows=[[name, *_summarise_rules(rows)] for name, rows in groups.items() if rows],
        kept={
            kind: _compute_kept([row for row in planted if row["rule_of"] == kind])
            for kind in ("splits", "linear")
        },
        possible={
            kind: _summarise_possible([row for row in planted if row["rule_of"] == kind])
            for kind in ("splits", "linear")
        },
        runs=len(planted),
        lowest=min(row["rule"] for rows in groups.values() for row in rows),
        command=record["speed"]["command"],
        speed=next(
            number(row["seconds"], 1)
            for row in record["speed"]["rows"]
            if (row["depth"], row["cuts"]) == (2, 32)
        ),
        slowest=number(max(row["seconds"] for row in record["speed"]["rows"]), 0),
        engines=[row["language"] for row in engines],
        different=sum(row["different"] for row in engines),
        engines_rows=f"{record.get('engines', {'n': 0})['n']:,}",
        commits=commits(record.values()),
    )


#: Smallest gain of a policy of which a fraction is shown.
_MIN_GAIN = 0.01


def _compute_kept(rows: Sequence[Any]) -> float:
    """Return the fraction of the gain of policies that rules have."""
    gaining = [row for row in rows if row["policy"] > _MIN_GAIN]
    if not gaining:
        return float("nan")
    return sum(row["rule"] for row in gaining) / sum(row["policy"] for row in gaining)


def _summarise_possible(rows: Sequence[Any]) -> dict[str, float]:
    """Return the fractions of the largest possible gain over the best arm that the best trees of
    depth 2 and 3 have, and that policies have.
    """
    gaining = [row for row in rows if row["policy"] > _MIN_GAIN]
    gains = {f"depth_{depth}": [row["possible_trees"][depth] for row in gaining] for depth in "23"}
    gains["policy"] = [row["policy"] for row in gaining]
    possible = sum(row["possible"] for row in gaining)
    return {name: sum(values) / possible for name, values in gains.items()}


def _summarise_rules(rows: Sequence[Any]) -> list[str]:
    """Return the cells of a group of runs."""
    kept = _compute_kept(rows)
    return [
        str(len(rows)),
        str(sum(row["proven"] for row in rows)),
        number(float(np.mean([row["policy"] for row in rows]))),
        number(float(np.mean([row["rule"] for row in rows]))),
        percent(kept) if kept == kept else "",  # noqa: PLR0124
        number(min(row["rule"] for row in rows)),
    ]
