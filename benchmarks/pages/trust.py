"""The pages of ``assess``, of ``choose`` with rewards, and of adaptation on tables; first from what is read once.

That is the last set of ``benchmarks/fresh.toml``; those read before it are a table of one line each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from split import READ_ONCE, recorded
from trust_report import SIMPLE

from daband.trust.estimate import ADAPTED, ALONE, MISSED
from pages.runs import fill
from pages.text import commits, number, percent

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
WAYS = {"kinds": "with candidates of other kinds", "seeds": "one method, its seeds"}


def trust_page(*records: Record) -> str:
    """What ``assess`` promises, and what was true: fresh data sets and others, report halves before development."""
    (report,) = [record["runs"] for record in records if record["half"] == "report" and _has_markets(record)]
    seen = [run for run in report if not (run["data"] == "markets" and run["name"].startswith("moved"))]
    off = [abs(one["value"] - one["true"]) for run in seen for one in run["assessed"] if one["how"] == "kinds"]
    halves = [_half(record) for record in records]
    return fill("trust", halves=halves, kinds=KINDS, error_without_moved=float(np.mean(off)))


def _has_markets(record: Record) -> bool:
    return any(run["data"] == "markets" for run in record["runs"])


def _half(record: Record) -> Record:
    """What the page says of a half."""
    return {
        "record": {"note": "", **record}, "title": _title(record), "sizes": _sizes(record),
        "left_out": _left_out(record), "asked": _asked(record),
        "older": any(run["constants"] != [ALONE, MISSED, ADAPTED] for run in record["runs"]),
        "assessed": {title: [row for row in record["assess"] if row["how"] == how] for how, title in WAYS.items()},
    }  # fmt: skip


def _add(rows: list[list[str]], what: str, asked: str, found: str, held: bool) -> None:
    rows.append([what, asked, found, "yes" if held else "**no**"])


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


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _share(gaps: Iterable[float], least: float) -> float:
    return _mean(gap >= least for gap in gaps)


def _less_simple(values: Record) -> float:
    return float(values["daband"] - max(values[method] for method in SIMPLE if method in values))


def _means(runs: Sequence[Record]) -> dict[str, float]:
    """By data set, the default's mean over seeds less that of the best simple method."""
    by_name: dict[str, list[Record]] = {}
    for run in runs:
        by_name.setdefault(f"{run['data']}/{run['name']}", []).append(run["values"])
    return {
        name: _less_simple({method: _mean(values[method] for values in own) for method in own[0]})
        for name, own in by_name.items()
    }


def _is_fresh(kind: str) -> bool:
    return kind.startswith("fresh_")


def _title(record: Record) -> str:
    if record["half"] in READ_ONCE:
        return f"The {record['half']} set, read once"
    if not _is_fresh(record["runs"][0]["data"]):
        return f"The {record['half']} half"
    if record["half"] == "development":
        return "Fresh data sets, for development"
    return "Fresh data sets, the report half"


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
    kinds = {data: names for data, names in half.items() if _is_fresh(data) == _is_fresh(record["runs"][0]["data"])}
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
