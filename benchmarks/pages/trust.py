"""The pages of ``assess``, of ``choose`` with rewards, and of adaptation on tables; from the report half, read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from split import development, report
from trust_report import SIMPLE, bound

from daband.trust.estimate import ALONE, MISSED
from pages.text import number, paragraph, written_from

__all__ = ["rewards_page", "tables_page", "trust_page"]

Record = Mapping[str, Any]
KINDS = {
    "natural_tables": "natural tables", "amazon": "amazon reviews", "office_caltech": "office_caltech",
    "office31_features": "Office-31 features", "warfarin": "warfarin", "sat12": "SAT12 solvers",
    "handwritten": "handwritten digits", "images": "DIGIT", "synthetic": "synthetic", "markets": "made markets",
    "all": "**all**",
}  # fmt: skip
WAYS = {"kinds": "with candidates of other kinds", "seeds": "one method, its seeds"}


def trust_page(record: Record, development: Record) -> str:
    """What ``assess`` promises, and what was true."""
    lines = [
        written_from("trust", "trust-development"),
        "",
        "# What assess promises, and what was true",
        "",
        paragraph(
            "Data sets were split into two halves before anything was tuned (`benchmarks/records/split.json`).",
            "Policies are trained and assessed with the library's defaults; nobody states a `shift`. True values are",
            "looked up afterwards. Values are shares of the range of rewards.",
        ),
        "",
        f"## The report half, at commit {record['commit']}",
        "",
        paragraph(
            f"{_sizes(record)}. {_left_out(record)}".strip(),
            record.get("note", ""),
            *_shipped(record),
            *_without_moved(record),
        ),
        "",
        *_assessed(record),
        *_asked_for(record),
        "",
        f"## The development half, policies of commit {development['commit']}",
        "",
        paragraph(
            f"{_sizes(development)}. {_left_out(development)} {development.get('note', '')} Two numbers were fitted on",
            "these data, so other data sets may do worse: how much the",
            "fall from the source counts where all readings are",
            "of one method, and what share of its value a policy may lose.",
            *_without_moved(development),
        ),
        "",
        *_assessed(development),
        *_asked_for(development),
        "",
        "```",
        "python benchmarks/trust_report.py --half report --export pairs",
        "python benchmarks/trust_report.py --pairs pairs --out runs --jobs 15",
        "python benchmarks/trust_report.py --runs runs --half report --record benchmarks/records/trust.json",
        "python benchmarks/trust_report.py --fit benchmarks/records/trust-development.json",
        "```",
        "",
        f"{record['machine']}.",
        "",
    ]
    return "\n".join(lines)


def _shipped(record: Record) -> list[str]:
    """Where a record is of another bound than the library has, what that one does on the same runs."""
    if all(run["constants"] == [ALONE, MISSED] for run in record["runs"]):
        return []
    told = []
    for how, title in WAYS.items():
        held: dict[str, list[bool]] = {}
        for run in record["runs"]:
            for one in run["assessed"]:
                if one["how"] == how:
                    held.setdefault(run["data"], []).append(one["true"] >= bound(one, MISSED) - 1e-9)
        worst = min(held, key=lambda kind: float(np.mean(held[kind])))
        every = float(np.mean([one for kind in held.values() for one in kind]))
        told.append(f"{title} {every:.1%}, and {np.mean(held[worst]):.1%} on {KINDS[worst]}, the worst kind")
    return [f"**The library has another bound**, which on the same runs would be true: {'; '.join(told)}."]


def _assessed(record: Record) -> list[str]:
    """Errors, coverage and verdicts by kind of data, for both ways of assessing."""
    lines = []
    for how, title in WAYS.items():
        rows = [row for row in record["assess"] if row["how"] == how]
        total = rows[-1]
        lines += [
            f"### Assessed {title}",
            "",
            paragraph(
                f"**Error {number(total['error'])}; the bound is true for {total['covered']:.1%} of",
                f"{total['policies']}",
                f"policies; {total['handed_over']} hand-overs, {total['handed_over_below_constant']} of them",
                "below the best",
                f"constant arm; {total['good_handed_over']} of {total['good']} policies above .85 are handed over.**",
            ),
            "",
            "| data | policies | error | bound true | value less bound | hand over | of them below a constant | "
            "above .85: handed over | error: M-CBPE | plain agreement | source value |",
            "| --- | " + " | ".join(["---:"] * 10) + " |",
        ]
        for row in rows:
            cells = [
                str(row["policies"]), number(row["error"]), f"{row['covered']:.1%}", number(row["width"]),
                str(row["handed_over"]), str(row["handed_over_below_constant"]),
                f"{row['good_handed_over']} of {row['good']}", number(row["m_cbpe"]), number(row["agreement"]),
                number(row["source"]),
            ]  # fmt: skip
            lines.append(f"| {KINDS[row['data']]} | {' | '.join(cells)} |")
        lines.append("")
    return lines


def _asked_for(record: Record) -> list[str]:
    """The numbers that were asked for before, and whether they were reached."""
    found = ["### What was asked for", "", "| | asked | with other kinds | seeds |", "| --- | ---: | ---: | ---: |"]
    both = [next(row for row in record["assess"] if row["how"] == how and row["data"] == "all") for how in WAYS]
    least = [min(row["covered"] for row in record["assess"] if row["how"] == how) for how in WAYS]
    rows = [
        ("error", ".07 at most", [number(row["error"]) for row in both]),
        ("bound true, overall", "95%", [f"{row['covered']:.1%}" for row in both]),
        ("bound true, worst kind of data", "90%", [f"{value:.1%}" for value in least]),
        ("hand-overs below the best constant", "0", [str(row["handed_over_below_constant"]) for row in both]),
        (
            "handed over of those above .85",
            "50%",
            [f"{row['good_handed_over'] / row['good']:.0%}" if row["good"] else "none is" for row in both],
        ),
    ]
    found += [f"| {name} | {asked} | {' | '.join(values)} |" for name, asked, values in rows]
    return found


def _sizes(record: Record) -> str:
    names = {(run["data"], run["name"]) for run in record["runs"]}
    seeds = {run["seed"] for run in record["runs"]}
    whole = len(names) * len(seeds) == len(record["runs"])
    most = "one seed" if len(seeds) == 1 else f"{len(seeds)} seeds {'each' if whole else 'at most'}"
    return f"{len(names)} data sets, {most}, {len(record['runs'])} runs"


def _left_out(record: Record) -> str:
    """Which data sets there is no run of, in a sentence or two."""
    half = report() if record["half"] == "report" else development()
    known = {(run["data"], run["name"]) for run in record["runs"]}
    missing = sorted(f"{data}/{name}" for data, names in half.items() for name in names if (data, name) not in known)
    text = f"Not in it: {', '.join(missing)}. " if missing else ""
    if not any("trees" in run["values"] for run in record["runs"]):
        text += "Trees are no candidate here."
    return text.strip()


def _without_moved(record: Record) -> list[str]:
    """What the error is without the markets that nobody can see through, in a sentence."""
    return [
        'A target in which the meaning of contexts moved (made markets, "moved") cannot be seen without rewards:',
        f"without these markets the error with candidates of other kinds is {number(_error_without_moved(record))}.",
    ]


def _error_without_moved(record: Record) -> float:
    rows = [
        one
        for run in record["runs"]
        if not (run["data"] == "markets" and run["name"].startswith("moved"))
        for one in run["assessed"]
        if one["how"] == "kinds"
    ]
    return float(np.mean([abs(one["value"] - one["true"]) for one in rows]))


def rewards_page(record: Record) -> str:
    """What rewards of the target buy, on the report half."""
    lines = [
        written_from("trust"),
        "",
        "# How many rewards does certainty cost?",
        "",
        paragraph(
            "`choose` trains candidates of several assumptions; a few target rewards decide. The share of choices that",
            f"are within .03 of the best candidate, **over the {record['half']} half** of the data sets",
            f"({_sizes(record)}, ten draws each): as `choose` asks, where the best candidates disagree; and with",
            "contexts drawn evenly, an arm that a candidate proposes, inverse propensities and the best mean, with the",
            "candidates' predictions as control variates and without. With 0 rewards the choice is the default. Asked",
            "for were 90% with 50 rewards and 97% with 200, at half of the rewards of an even draw.",
        ),
        "",
        "| rewards | as choose asks | evenly, with predictions | evenly | lost on average: choose | "
        "with predictions | evenly |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    total = [row for row in record["rewards"] if row["data"] == "all"]
    for row in total:
        lines.append(
            f"| {row['rewards']} | {row['asked_within']:.1%} | {row['even_within']:.1%} | {row['plain_within']:.1%} | "
            f"{number(row['asked_lost'])} | {number(row['even_lost'])} | {number(row['plain_lost'])} |"
        )
    default = next(row for row in record["default"] if row["data"] == "all")
    lines += [
        "",
        paragraph(*_ratios(total)),
        "",
        paragraph(
            f"After up to 200 rewards the best candidate had been left out in {1 - default['best_kept']:.1%}",
            "of the draws",
            f"(5% allowed), and the interval of the chosen policy held the truth in {default['covered']:.1%}; it is",
            f"{number(default['width'])} wide on average, because it holds at any time and for all",
            "candidates at once, and rests on one reward in three. The value itself is off by",
            f"{number(default['error'])} on average. On average the asking ended after {default['stopped']:.0f}",
            "rewards.",
        ),
        "",
        "## By kind of data: within .03 of the best candidate",
        "",
        "| data | " + " | ".join(f"{row['rewards']} rewards" for row in total) + " |",
        "| --- | " + " | ".join(["---:"] * len(total)) + " |",
    ]
    for kind, title in KINDS.items():
        own = [row for row in record["rewards"] if row["data"] == kind]
        if own:
            lines.append(f"| {title} | " + " | ".join(f"{row['asked_within']:.0%}" for row in own) + " |")
    lines += ["", *_default(record), ""]
    lines += [
        f"`python benchmarks/trust_report.py`, policies of commit {record['commit']}. {record.get('note', '')}",
        "",
    ]
    return "\n".join(lines)


def _ratios(rows: Sequence[Record]) -> list[str]:
    """How many times the rewards an even draw needs for the same share, in sentences."""
    found = []
    for row in rows:
        if row["rewards"] in (25, 50, 100):
            enough = [other["rewards"] for other in rows if other["even_within"] >= row["asked_within"]]
            times = f"{enough[0] / row['rewards']:.0f} times as many" if enough else f"more than {rows[-1]['rewards']}"
            found.append(f"What {row['rewards']} rewards reach takes {times} drawn evenly with predictions.")
    return found


def _default(record: Record) -> list[str]:
    lines = [
        "## Without rewards: the default against the best simple method",
        "",
        paragraph(
            "DABand's value less the best of constant, LinUCB, LinUCB-P and Neural-LinUCB, the best being",
            "taken run by run",
            "with hindsight; and the same of what `choose` took without rewards.",
            *_against_linear(record),
        ),
        "",
        "| data | runs | DABand | at least -.02 | at least -.04 | worst | choose | at least -.04 | worst |",
        "| --- | " + " | ".join(["---:"] * 8) + " |",
    ]
    for row in record["default"]:
        cells = [
            str(row["runs"]), number(row["daband"], sign=True), f"{row['within_02']:.0%}", f"{row['within_04']:.0%}",
            number(row["worst"], sign=True), number(row["chosen"], sign=True), f"{row['chosen_within_04']:.0%}",
            number(row["chosen_worst"], sign=True),
        ]  # fmt: skip
        lines.append(f"| {KINDS[row['data']]} | {' | '.join(cells)} |")
    return lines


def _against_linear(record: Record) -> list[str]:
    """Where nothing is aligned DABand and Neural-LinUCB are one policy: the difference to the others alone."""
    runs = [run["values"] for run in record["runs"] if "linucb" in run["values"]]
    same = sum(values["daband"] == values.get("nlinucb") for values in runs)
    gap = [v["daband"] - max(v[method] for method in SIMPLE[:3] if method in v) for v in runs]
    return [
        f"On vectors nothing is aligned by default: in {same} of {len(runs)} runs Neural-LinUCB has the same value,",
        "so that the difference is not above 0. Against constant, LinUCB and LinUCB-P alone it is",
        f"{number(float(np.mean(gap)), sign=True)} there.",
    ]


def tables_page(record: Record, tried: Record) -> str:
    """When adaptation helps on tables, and when it hurts."""
    methods = ("constant", "linucb", "nlinucb", "daband", "daband, other units", "daband, other style")
    runs: dict[str, list[Record]] = {}
    for run in record["runs"]:
        if run["data"] in ("natural_tables", "warfarin", "markets"):
            runs.setdefault(run["name"] if run["data"] != "markets" else f"market {run['name']}", []).append(run)
    means = {name: {m: _mean(own, m) for m in methods} for name, own in runs.items()}
    adapted = {
        name: max(_known(values, "daband, other units"), _known(values, "daband, other style")) - values["daband"]
        for name, values in means.items()
    }
    helps = sorted(name for name, gain in adapted.items() if gain > 0.02)
    hurts = {
        name: min(_known(v, "daband, other units"), _known(v, "daband, other style")) - v["daband"]
        for name, v in means.items()
    }
    worse = sorted(name for name, gain in hurts.items() if gain < -0.02)
    lines = [
        written_from("trust", "default-development"),
        "",
        "# Adaptation on tables: when it helps, when it hurts",
        "",
        paragraph(
            f"The same method under three assumptions, on the tables of the {record['half']} half (natural splits,",
            "patients, made markets). *daband*: a number means the same in both domains",
            '(`shift="covariate"`, the default of tables).',
            "*Other units*: each domain's own statistics. *Other style*: own statistics and alignment. No unlabelled",
            f"context says which is right. Of {len(means)} tables the better of the two adaptations is above",
            "the default by",
            f"more than .02 on {len(helps)}{_listed(helps)}; the worse of the two is below it by more than",
            f".02 on {len(worse)}.",
        ),
        "",
        "| table | best constant arm | LinUCB | Neural-LinUCB | daband | other units | other style |",
        "| --- | " + " | ".join(["---:"] * 6) + " |",
    ]
    for name in sorted(means, key=lambda name: adapted[name]):
        values = means[name]
        cells = [number(float(np.mean([run["constant"] for run in runs[name]])))]
        cells += ["" if np.isnan(values[m]) else number(values[m]) for m in methods[1:]]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += [
        "",
        paragraph(
            "The best constant arm is known with hindsight. Values are shares of the range of rewards,",
            "means over seeds.",
            'So for tables the default aligns nothing, `shift="units"` is for who knows that units differ, and',
            "[a few target rewards](choose.md) tell the rest.",
        ),
        "",
        f"`python benchmarks/trust_report.py`, commit {record['commit']}.",
        "",
        *_tried(tried),
    ]
    return "\n".join(lines)


def _tried(record: Record) -> list[str]:
    """What was tried for the default on vectors: each change against what stood before, on the same pairs and seeds."""
    lines = [
        "## What was tried for the default",
        "",
        paragraph(
            "The value with a change less that before it, on the same pairs and seeds, and both",
            f"less the best simple method. {record['about']}",
        ),
        "",
        "| change | pairs | runs | gain | before, less the best simple | with it |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    once = "each context once: "
    for change, values in record["values"].items():
        before = record["values"][f"{once}before" if change.startswith(once) else "before"]
        runs = [
            (*before[pair][seed], *pairs[seed])
            for pair, pairs in values.items()
            for seed in pairs
            if seed in before.get(pair, {})
        ]
        if not change.endswith("before") and runs:
            was, simple, now, simple_now = np.array(runs).T
            cells = [now - was, was - simple, now - simple_now]
            means = " | ".join(number(float(cell.mean()), sign=True) for cell in cells)
            lines.append(f"| {change} | {len(values)} | {len(runs)} | {means} |")
    return [*lines, ""]


def _mean(runs: Sequence[Record], method: str) -> float:
    values = [run["values"][method] for run in runs if method in run["values"]]
    return float(np.mean(values)) if values else float("nan")


def _known(values: Mapping[str, float], method: str) -> float:
    return values["daband"] if np.isnan(values[method]) else values[method]


def _listed(names: Sequence[str]) -> str:
    return f" ({', '.join(names)})" if names else ""
