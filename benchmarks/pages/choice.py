"""Pages of the studies of small tables and ``choose``; ``results_pages.py`` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from daband.evaluation import compare_paired
from pages.text import number, paragraph

__all__ = ["choose", "small_tables"]

Record = dict[str, Any]


def small_tables(records: Sequence[Record]) -> str:
    """DABand against LinUCB on small tables."""
    trained = {record["method"] for record in records}
    methods = [method for method in _METHODS if method in trained]
    groups = {
        "warfarin, whole, 2 passes": [
            r for r in records if r["table"].startswith("warfarin") and "," not in r["table"]
        ],
        **{
            f"{ROWS} rows, {_passes(passes)}": [r for r in records if r["passes"] == passes and _small(r)]
            for passes in (1, 5)
        },
    }
    lines = [
        *_head("DABand on small tables", "small-tables"),
        paragraph(
            "A network overfits a few hundred rows, and LinUCB does not. So for vectors Neural-LinUCB and DABand learn",
            "a LinUCB beside their network, and predict a weighted mean of both; LinUCB counts the more, the fewer",
            "different source contexts there were. That is an `oracle` choice: gates by held-out source rounds, which",
            "let one of the two act, were dropped after the target accuracy of both parts and of their mean had been",
            "compared on these tables, amazon, office_caltech, synthetic and made-up tables; a mean with equal weights",
            "was .034 below LinUCB over these tables, so that the weight now depends on the number of contexts (no",
            "record of either was kept); its scale, 600, was set by hand with a few of these tables in view. Contexts",
            "of more than 128 numbers are reduced to 64 components because that was better in the targets of amazon.",
        ),
        "",
        "| tables | " + " | ".join(methods) + " | DABand less LinUCB, 95% interval |",
        "| --- |" + " ---: |" * (len(methods) + 1),
    ]
    for name, own in groups.items():
        cells = [number(_mean_of(own, method)) for method in methods]
        lines.append(f"| {name} | {' | '.join(cells)} | {_difference(own)} |")
    lines += [
        "",
        "By table, mean over seeds:",
        "",
        "| table | passes | rounds | " + " | ".join(methods) + " |",
        "| --- | ---: | ---: |" + " ---: |" * len(methods),
    ]
    for table, passes in dict.fromkeys((record["table"], record["passes"]) for record in records):
        own = [record for record in records if (record["table"], record["passes"]) == (table, passes)]
        cells = []
        for method in methods:
            cells.append(number(_mean_of(own, method)))
        rounds = f"{np.mean([record['rounds'] for record in own]):,.0f}"
        lines.append(f"| {table} | {passes} | {rounds} | {' | '.join(cells)} |")
    lines += [
        "",
        paragraph(
            "Tables of 300 rows are subsamples of each source of warfarin; wine and breast cancer of scikit-learn are",
            "split by a feature's median, the seed being the feature's number. The interval pairs runs by table and",
            f"seed ({len({record['seed'] for record in records})} seeds).",
        ),
        "",
        "```",
        "python benchmarks/results_pages.py  # writes this page; its runs were made by scripts of the commits below",
        "```",
        "",
        _commits(records),
        "",
    ]
    return "\n".join(lines)


def choose(records: Sequence[Record]) -> str:
    """What ``choose`` takes, against every single candidate."""
    families: dict[str, list[Record]] = {}
    for record in records:
        families.setdefault(record["pair"].split("/", maxsplit=1)[0], []).append(record)
    best = sum(_taken(record) >= max(record["target_accuracy"].values()) for record in records)
    lost = float(np.mean([max(record["target_accuracy"].values()) - _taken(record) for record in records]))
    by_pair = {record["pair"]: _means(_of(records, record["pair"])) for record in records}
    constants = [pair for pair, means in by_pair.items() if max(means, key=lambda name: means[name]) == "constant"]
    lines = [
        *_head("What `daband.choose` chooses", "choose"),
        paragraph(
            f"**It took the best candidate in {best} of {len(records)} runs**, and lost {number(lost)} of accuracy to",
            "the best one on average. Nobody knows the best candidate beforehand; the constant arm was the best on",
            f"{_and(constants)}, and there `choose` mostly took something larger.",
        ),
        "",
        paragraph(
            "`daband.choose` trains every candidate with two seeds, estimates each one's accuracy in the target",
            f"without a target reward, and takes one of them. The rule of these records: *{records[0]['rule']}*. It",
            "is an `oracle` choice: some 140 variants of the rule (nine estimates, margins from 0 to .08, ways to",
            "treat the constant) were compared by target accuracy on these records of amazon and warfarin, and the",
            "candidates on 16 components and with ridge 10 were added after a look at amazon's targets. The margin is",
            "what the other data sets pick for most of them (from 0 to .06, by target accuracy). The",
            "candidates of images were trained by explicit weights of the discriminator, .3 and 1, before .3 became",
            "the default.",
            *_missing(records),
        ),
        "",
        "| data set | pairs | `choose` | best single candidate | difference | mean of each pair's best candidate |",
        "| --- | ---: | ---: | --- | ---: | ---: |",
    ]
    for family, own in families.items():
        pairs = list(dict.fromkeys(record["pair"] for record in own))
        got = float(np.mean([_taken(record) for record in own]))
        means = _means(own)
        single = max(means, key=lambda name: means[name])
        ceiling = float(np.mean([max(_means(_of(own, pair)).values()) for pair in pairs]))
        cells = [
            str(len(pairs)),
            number(got),
            f"{number(means[single])} ({single})",
            number(got - means[single], sign=True),
        ]
        lines.append(f"| {family} | {' | '.join(cells)} | {number(ceiling)} |")
    lines += [
        "",
        "By pair: the difference to the pair's best candidate, which nobody knows beforehand, is paired by seed, with",
        "its 95% interval (Student's t).",
        "",
        "| pair | `choose` | best candidate | difference, 95% interval | chosen |",
        "| --- | ---: | --- | ---: | --- |",
    ]
    for pair in dict.fromkeys(record["pair"] for record in records):
        own = _of(records, pair)
        means = _means(own)
        best = max(means, key=lambda name: means[name])
        test = compare_paired([_taken(r) for r in own], [r["target_accuracy"][best] for r in own])
        difference = (
            f"{number(test.difference, sign=True)} ({number(test.low, sign=True)} to {number(test.high, sign=True)})"
        )
        names = [record["chosen"] for record in own]
        taken = "; ".join(f"{name} {names.count(name)}" for name in dict.fromkeys(names))
        mean = number(float(np.mean([_taken(record) for record in own])))
        lines.append(f"| {pair} | {mean} | {number(means[best])} ({best}) | {difference} | {taken} |")
    lines += [
        "",
        "Every candidate, mean over pairs and seeds:",
        "",
        "| candidate | " + " | ".join(families) + " |",
        "| --- |" + " ---: |" * len(families),
    ]
    for name in dict.fromkeys(name for record in records for name in record["target_accuracy"]):
        cells = [number(_means(own)[name]) if name in _means(own) else "" for own in families.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += [
        "",
        "```",
        "python benchmarks/results_pages.py  # writes this page; its runs were made by scripts of the commits below",
        "```",
        "",
        _commits(records),
        "",
    ]
    return "\n".join(lines)


def _missing(records: Sequence[Record]) -> list[str]:
    """A sentence on the pairs that lack candidates."""
    pairs = sorted({record["pair"] for record in records if record.get("missing")})
    if not pairs:
        return []
    return [f"LinUCB on all pixels was not trained, and was no candidate, on {', '.join(pairs)}: it takes hours there."]


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


ROWS = 300
_METHODS = ("constant", "linucb", "nlinucb", "daband, network alone", "daband")


def _head(title: str, name: str) -> list[str]:
    written = f"<!-- Written by benchmarks/results_pages.py from benchmarks/records/{name}.json. Do not edit. -->"
    return [f"# {title}", "", written, ""]


def _commits(records: Sequence[Record]) -> str:
    names = sorted({name for record in records for name in record["commit"].split(", ")})
    return f"Commits: {', '.join(names)}."


def _passes(passes: int) -> str:
    return "1 pass" if passes == 1 else f"{passes} passes"


def _small(record: Record) -> bool:
    return "," in record["table"] or not record["table"].startswith("warfarin")


def _mean_of(records: Sequence[Record], method: str) -> float:
    """The mean over tables and seeds."""
    return float(np.mean([record["target_accuracy"] for record in records if record["method"] == method]))


def _difference(records: Sequence[Record]) -> str:
    keyed = {(r["table"], r["passes"], r["seed"], r["method"]): r["target_accuracy"] for r in records}
    rows = [key[:3] for key in keyed if key[3] == "daband"]
    test = compare_paired([keyed[*row, "daband"] for row in rows], [keyed[*row, "linucb"] for row in rows])
    return f"{number(test.difference, sign=True)} ({number(test.low, sign=True)} to {number(test.high, sign=True)})"


def _of(records: Sequence[Record], pair: str) -> list[Record]:
    return [record for record in records if record["pair"] == pair]


def _taken(record: Record) -> float:
    return float(record["target_accuracy"][record["chosen"]])


def _means(records: Sequence[Record]) -> dict[str, float]:
    """The mean accuracy of every candidate that all these records have."""
    names = [name for name in records[0]["target_accuracy"] if all(name in r["target_accuracy"] for r in records)]
    return {name: float(np.mean([record["target_accuracy"][name] for record in records])) for name in names}
