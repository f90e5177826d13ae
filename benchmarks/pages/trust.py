"""The pages of ``assess``, of ``choose`` with rewards, and of adaptation on tables; first from what is read once.

That is the last set of ``benchmarks/fresh.toml``; those read before it are a table of one line each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from split import READ_ONCE, recorded
from trust_report import NAMED, SIMPLE

from daband.trust._estimate import ADAPTED, ALONE, MISSED
from pages.runs import fill
from pages.text import accuracies, commits, methods_on, number, percent

Record = Mapping[str, Any]
KINDS = {
    "natural_tables": "natural tables", "amazon": "amazon reviews", "office_caltech": "office_caltech",
    "office31_features": "Office-31 features", "warfarin": "warfarin", "sat12": "SAT12 solvers",
    "handwritten": "handwritten digits", "images": "DIGIT", "synthetic": "synthetic", "markets": "made markets",
    "fresh_tables": "fresh tables", "fresh_patients": "fresh patients", "fresh_texts": "fresh texts",
    "fresh_features": "fresh features", "fresh_digits": "fresh digits",
}  # fmt: skip
_OF_A_SET = ("tables", "patients", "texts", "features", "images")
KINDS |= {f"{half}_{kind}": kind for half in READ_ONCE for kind in _OF_A_SET} | {"all": "**all**"}
AVERAGE, _FEWEST_REWARDS = "average", 20
"""What ``choose`` took for vectors in two readings, and how many rewards decide at all."""
_PRETRAINED = "office31_features"
_TOLD, _UNTOLD = ("covariate", "labels"), ("units", "inverted", "moved")
"""Kinds of markets of which the default's assumption is right, and those in which no context tells what changed."""
WAYS = {"kinds": "with candidates of other kinds", "seeds": "one method, its seeds"}


def trust_page(*records: Record) -> str:
    """What ``assess`` promises, and what was true: fresh data sets and others, report halves before development."""
    return fill("trust", halves=[_half(record) for record in records], kinds=KINDS)


def _half(record: Record) -> Record:
    """What the page says of a half."""
    return {
        "record": {"note": "", **record}, "title": _title(record), "sizes": _sizes(record),
        "left_out": _left_out(record), "asked": _asked(record),
        "older": any(run["constants"] != [ALONE, MISSED, ADAPTED] for run in record["runs"]),
        "assessed": {title: [row for row in record["assess"] if row["how"] == how] for how, title in WAYS.items()},
    }  # fmt: skip


def _add(rows: list[list[str]], what: str, asked: str, found: str, held: bool | str) -> None:
    rows.append([what, asked, found, held if isinstance(held, str) else "yes" if held else "**no**"])


def _asked(record: Record) -> list[list[str]]:
    """What was asked for, what was found, and whether it held."""
    rows: list[list[str]] = []
    add = partial(_add, rows)
    for how, title in WAYS.items():
        own = [row for row in record["assess"] if row["how"] == how]
        total, kinds = own[-1], own[:-1]
        add(f"error of `assess`, {title}", ".07 at most", number(total["error"]), total["error"] <= 0.07)
        add(f"bound true, {title}", "95%", percent(total["covered"], 1), total["covered"] >= 0.95)
        worst = min(kinds, key=lambda row: row["covered"])
        told = f"{percent(worst['covered'], 1)} ({KINDS[worst['data']]})"
        add(f"bound true on the worst kind of data, {title}", "90%", told, worst["covered"] >= 0.9)
        below = total["handed_over_below_constant"]
        told = f"{below} of {total['handed_over']}"
        add(f"hand-overs below the best constant arm, {title}", "none", told, not below)
        told = f"{total['good_handed_over']} of {total['good']}"
        held = 2 * total["good_handed_over"] >= total["good"]
        add(f"handed over of those above .85, {title}", "half", told, held)
    (default,) = [row for row in record["default"] if row["data"] == "all"]
    for less, share in ((2, 0.9), (4, 1.0)):
        found = default[f"within_0{less}"]
        means = _share(_means(record["runs"]).values(), -less / 100)
        told = f"{percent(found, 1)} ({percent(means, 1)} by means over seeds)"
        add(f"the default at least the best simple method less .0{less}", percent(share), told, found >= share)
    rows.append(_noise(record["runs"]))
    told = f"{percent(default['within_04'], 1)}, worst {number(default['worst'], sign=True)}"
    if any(run["chosen"] != "daband" for run in record["runs"]):
        then = f"{percent(default['chosen_within_04'], 1)}, worst {number(default['chosen_worst'], sign=True)}"
        told += f" by the rule of today, DABand; {then} by that of the reading"
    add("`choose` without rewards at least that less .04", "100%", told, default["within_04"] == 1.0)
    bought = {row["rewards"]: row for row in record["rewards"] if row["data"] == "all"}
    for budget, share in ((50, 0.9), (200, 0.97)):
        found = bought[budget]["asked_within"]
        add(
            f"within .03 of the best candidate after {budget} rewards",
            percent(share),
            percent(found, 1),
            found >= share,
        )
    return rows


def shared_page(record: Record, *images: Any) -> str:
    """The default and ``choose`` on all data sets of both halves and the made markets, with what was asked for."""
    named = [run for run in record["runs"] if run["data"] == NAMED]
    runs = [run for run in record["runs"] if run["data"] != NAMED]
    markets = {kind: [run for run in runs if run["name"].startswith(kind)] for kind in (*_TOLD, *_UNTOLD)}
    told = [run for run in runs if not any(run in markets[kind] for kind in _UNTOLD)]
    rows: list[list[str]] = []
    add = partial(_add, rows)
    for less, share in ((0.02, 0.9), (0.04, 1.0)):
        for own, which in ((runs, ""), (told, ", without these markets")):
            shares = [_share(gaps, -less) for gaps in (_gaps(own), _means(own).values())]
            found = f"{percent(shares[0], 1)} of runs, {percent(shares[1], 1)} of means"
            what = f"the default at least the best simple method less {number(less, 2)}{which}"
            add(what, percent(share), found, min(shares) >= share or (shares[1] >= share and "by means alone"))
    rows.append(_noise(runs))
    above = _mean(run["values"]["daband"] - run["values"]["linucb"] for run in runs if run["data"] == _PRETRAINED)
    add("the default above LinUCB on pretrained features", ".03", number(above), above >= 0.03)
    short = max(
        run["best"] - run["values"]["daband"] for run in (*named, *(r for kind in _TOLD for r in markets[kind]))
    )
    add("the market with its shift named, below the best there is", ".05 at most", number(short), short <= 0.05)
    bought = {row["rewards"]: row for row in record["rewards"] if row["data"] == "all"}
    for budget, share in ((50, 0.9), (200, 0.97)):
        within = bought[budget]["asked_within"]
        what = f"within .03 of the best candidate after {budget} rewards"
        add(what, percent(share), percent(within, 1), within >= share)
    even = bought[100]["even_within"]
    add("the same after 100 drawn evenly", "no more than with 50", percent(even, 1), even <= bought[50]["asked_within"])
    digit = [number(one) for one in accuracies(methods_on("digit", *images)["daband"])]
    mean = number(_mean(float(one) for one in digit))
    add("DIGIT, [five seeds](digit.md)", ".955", f"{mean} ({', '.join(digit)})", float(mean) >= 0.955)
    errors: dict[str, list[float]] = {}
    for run in runs:
        errors.setdefault(f"{run['data']}/{run['name']}", []).append(run.get("error", 0.0))
    means = sorted((gap, name) for name, gap in _means(runs).items() if gap < -0.02)
    return fill(
        "shared", record={"note": "", **record}, sizes=_sizes({"runs": runs}), asked=rows, runs=len(runs),
        below=sum(gap < -0.02 for gap in _gaps(runs)),
        far=sum(gap + 2 * run.get("error", 0.0) < -0.02 for run, gap in zip(runs, _gaps(runs), strict=True)),
        means_below=[
            f"{name.replace('/', ' ')} {number(gap, sign=True)} ({number(_mean(x * x for x in errors[name]) ** 0.5)})"
            for gap, name in means
        ],
        unnamed=_mean(run["best"] - run["values"]["daband"] for run in markets["units"]),
        rows=[_by_kind(runs, kind) for kind in KINDS if kind == "all" or any(run["data"] == kind for run in runs)],
    )  # fmt: skip


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _share(gaps: Iterable[float], least: float) -> float:
    return _mean(gap >= least for gap in gaps)


def _gaps(runs: Sequence[Record]) -> list[float]:
    """By run, the default's value less that of the best simple method."""
    return [_less_simple(run["values"]) for run in runs]


def _less_simple(values: Record) -> float:
    return float(values["daband"] - max(values[method] for method in SIMPLE if method in values))


def _noise(runs: Sequence[Record]) -> list[str]:
    """How far that best simple method is from itself with the next seed."""
    gaps = []
    for run in runs:
        best = max((method for method in SIMPLE if method in run["values"]), key=lambda method: run["values"][method])
        others = [one for one in runs if (one["data"], one["name"]) == (run["data"], run["name"])]
        after = min(others, key=lambda one: (one["seed"] <= run["seed"], one["seed"]))
        gaps.append(after["values"][best] - run["values"][best])
    shares = " and ".join(percent(_share(gaps, least), 1) for least in (-0.02, -0.04))
    what = "that simple method with another seed at least itself less .02, less .04"
    return [what, "", f"{shares} of runs", ""]


def _means(runs: Sequence[Record]) -> dict[str, float]:
    """By data set, the default's mean over seeds less that of the best simple method."""
    by_name: dict[str, list[Record]] = {}
    for run in runs:
        by_name.setdefault(f"{run['data']}/{run['name']}", []).append(run["values"])
    return {
        name: _less_simple({method: _mean(values[method] for values in own) for method in own[0]})
        for name, own in by_name.items()
    }


def _by_kind(runs: Sequence[Record], kind: str) -> list[str]:
    own = [run for run in runs if kind in (run["data"], "all")]
    gaps, means = _gaps(own), _means(own)
    name, lowest = min(means.items(), key=lambda one: one[1])
    shares = [percent(_share(one, least)) for least in (-0.02, -0.04) for one in (gaps, means.values())]
    ends = [number(_mean(gaps), sign=True), *shares, f"{number(lowest, sign=True)} ({name.split('/')[1]})"]
    return [KINDS[kind], str(len(means)), str(len(own)), *ends]


def _title(record: Record) -> str:
    if record["half"] in READ_ONCE:
        return f"The {record['half']} set, read once"
    fresh = "Fresh" if record["runs"][0]["data"].startswith("fresh") else "Older"
    return f"{fresh} data sets, {'for development' if record['half'] == 'development' else 'the report half'}"


def _sizes(record: Record) -> str:
    names = {(run["data"], run["name"]) for run in record["runs"]}
    seeds = {run["seed"] for run in record["runs"]}
    whole = len(names) * len(seeds) == len(record["runs"])
    most = "one seed" if len(seeds) == 1 else f"{len(seeds)} seeds {'each' if whole else 'at most'}"
    return f"{len(names)} data sets, {most}, {len(record['runs'])} runs"


def _left_out(record: Record) -> str:
    """Which data sets there is no run of, in a sentence or two."""
    half = recorded(record["half"])
    known = {(run["data"], run["name"]) for run in record["runs"]}
    kinds = {data: names for data, names in half.items() if data.startswith(("fresh", *READ_ONCE))}
    missing = sorted(f"{data}/{name}" for data, names in kinds.items() for name in names if (data, name) not in known)
    text = f"Not in it: {', '.join(missing)}. " if missing else ""
    if not any("trees" in run["values"] for run in record["runs"]):
        text += "Trees are no candidate here."
    return text


def rewards_page(*records: Record) -> str:
    """What rewards of the target buy, on what is for reports; and the default against the best simple method."""
    halves = []
    for record in records:
        runs = [run["values"] for run in record["runs"] if "linucb" in run["values"]]
        gap = [v["daband"] - max(v[method] for method in SIMPLE[:3] if method in v) for v in runs]
        halves.append({
            "record": {"note": "", **record}, "title": _title(record), "sizes": _sizes(record), "compared": len(runs),
            "same": sum(values["daband"] == values.get("nlinucb") for values in runs),
            "above_linear": float(np.mean(gap)), "below": _below(record), "rewards": _rewards(record),
        })  # fmt: skip
    return fill("choose", halves=halves, kinds=KINDS)


def _rewards(record: Record) -> list[Record]:
    """What rewards buy; without enough of them the choice is DABand, where it was an average of candidates then."""
    rows: list[Record] = []
    for row in record["rewards"]:
        own = [run["values"] for run in record["runs"] if row["data"] in (run["data"], "all")]
        if row["rewards"] < _FEWEST_REWARDS and any(AVERAGE in values for values in own):
            images = {"linucb-p", "nlinucb"}  # candidates where LinUCB is none
            lost = [
                max(v for name, v in values.items() if name != AVERAGE and not ("linucb" in values and name in images))
                - values["daband"]
                for values in own
            ]
            found = {"within": _mean(one <= 0.03 for one in lost), "lost": _mean(lost)}
            ways = ("asked",) if row["rewards"] else ("asked", "even", "plain")
            rows.append({**row, **{f"{way}_{what}": value for way in ways for what, value in found.items()}})
        else:
            rows.append(row)
    return rows


def _below(record: Record) -> list[str]:
    """The data sets whose mean over seeds is more than .04 below the best simple method, and by how much."""
    gaps = sorted((gap, name.split("/")[1]) for name, gap in _means(record["runs"]).items())
    return [f"{name} {number(gap, sign=True)}" for gap, name in gaps if gap < -0.04]


def tables_page(*records: Record) -> str:
    """When adaptation helps on tables, and when it hurts; and what was tried for the default on vectors."""
    methods = ("linucb", "nlinucb", "daband", "daband, other units", "daband, other style")
    tables: dict[str, list[Record]] = {}
    prefixes = {"natural_tables": "", "warfarin": "", "markets": "market ", "fresh_tables": "", "fresh_patients": ""}
    prefixes |= {f"{half}_{kind}": "" for half in READ_ONCE for kind in _OF_A_SET[:2]}
    *halves, tried = records
    for run in [run for record in halves for run in record["runs"]]:
        if run["data"] in prefixes:
            tables.setdefault(prefixes[run["data"]] + run["name"], []).append(run)
    rows: list[tuple[float, list[str]]] = []
    helps, worse = [], 0
    for name, runs in tables.items():
        means = {
            method: float(np.mean([run["values"][method] for run in runs if method in run["values"]]))
            for method in methods
            if any(method in run["values"] for run in runs)
        }
        gains = [means.get(method, means["daband"]) - means["daband"] for method in methods[3:]]
        helps += [name] if max(gains) > 0.02 else []
        worse += min(gains) < -0.02
        constant = number(float(np.mean([run["constant"] for run in runs])))
        cells = [number(means[method]) if method in means else "" for method in methods]
        rows.append((max(gains), [name, constant, *cells]))
    return fill(
        "tables", commits=commits(halves), rows=[cells for _, cells in sorted(rows, key=lambda row: row[0])],
        worse=worse, helps=sorted(helps), about=tried["about"], tried=_tried(tried["values"]),
    )  # fmt: skip


def _tried(changes: Record) -> list[Sequence[str]]:
    """Each change less what stood before it, on the same pairs and seeds; and both less the best simple method."""
    rows: list[Sequence[str]] = []
    for change, values in changes.items():
        group = change.split(": ")[0] + ": " if ": " in change else ""
        before = changes[f"{group}before"]
        runs = [
            (*before[pair][seed], *pairs[seed])
            for pair, pairs in values.items()
            for seed in pairs
            if seed in before.get(pair, {})
        ]
        if not change.endswith("before") and runs:
            was, simple, now, simple_now = np.array(runs).T
            means = [number(float(x.mean()), sign=True) for x in (now - was, was - simple, now - simple_now)]
            rows.append([change, str(len(values)), str(len(runs)), *means])
    return rows
