"""Numbers in running text, calculated from the records when the site is built: ``{{ amazon.daband }}`` in a page."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import stdev
from typing import Any

__all__ = ["numbers", "untraced"]

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))
METHODS = {
    "constant": "constant",
    "linucb": "linucb",
    "linucb_p": "linucb-p",
    "nlinucb": "nlinucb",
    "daband": "daband",
    "network": "daband, network alone",
}
"""By the name that pages use, the method of the record."""


def numbers() -> dict[str, Any]:
    """What pages may use: per data set and per pair each method's mean target accuracy, and DABand's gain.

    ``gain`` is over Neural-LinUCB and ``gain_linucb`` over LinUCB, with their 95% intervals ``low`` and ``high``,
    paired over runs; ``low_pairs`` and ``high_pairs`` are over the means of pairs, where there are several.
    """
    from pages.methods import families, of_method
    from pages.text import accuracies, methods_on, number, shown_in_front

    from daband.bench.report._method_summaries import paper_accuracy

    def read(name: str) -> Any:
        return json.loads((ROOT / "benchmarks" / "records" / f"{name}.json").read_text())

    found: dict[str, Any] = {"pairs": {}}
    for family, records in families(read("choose")).items():
        pairs: dict[str, list[Any]] = {}
        for record in records:
            pairs.setdefault(record["pair"], []).append(record)
        found[family] = _compared({name: of_method(records, method) for name, method in METHODS.items()})
        if len(pairs) > 1:
            means = {m: [_mean(of_method(own, m)) for own in pairs.values()] for m in ("nlinucb", "daband")}
            over = _compared(means)
            found[family] |= {"low_pairs": over["low"], "high_pairs": over["high"]}
        for pair, own in pairs.items():
            name = pair.replace("/", "_").replace("-", "_")
            found["pairs"][name] = _compared({n: of_method(own, method) for n, method in METHODS.items()})
    for name in ("asian_black", "asian_white"):
        own = [record for record in read("choose") if record["pair"] == f"warfarin/{name.replace('_', '-')}"]
        taken = [record["target_accuracy"][record["chosen"]] for record in own]
        found.setdefault("choose", {})[name] = number(_mean(of_method(own, "constant")) - _mean(taken))
    found["unseen_tables"] = {
        name: number(value, sign=True) if isinstance(value, float) else str(value)
        for name, value in read("unseen-tables").items()
    }
    for record in ("shared", "fresh", "third", "fourth", "fifth"):
        found[record] = {row["data"]: number(row["daband"], sign=True) for row in read(record)["default"]}
    front = shown_in_front(*map(read, ("attribution", "linear-readings", "paper-digit")))
    second = "paper ablation, P on the policy's own choice"
    reading = [run for run in [*read("paper-digit"), *read("attribution")] if run["study"] == second]
    reading = [run for run in reading if run["variant"] == "RPD" and run["commit"] == reading[-1]["commit"]]
    found["paper"] = {
        "daband": number(_mean(accuracies(front["paper"]))),
        "deviation": number(stdev(accuracies(front["paper"]))),
        "nlinucb": number(_mean(accuracies(front["paper-nlinucb"]))),
        "second_reading": number(_mean(accuracies(reading))),
        "reported": number(paper_accuracy("digit")["daband"].average),
        "linucb_normalised": number(_mean(accuracies(front["linucb-normalised"]))),
    }
    for pair in ("digit", "signs"):  # the released DIGIT, and LinUCB with chosen settings
        runs = methods_on(pair, read("attribution"), read("linear-readings"), read("choose"))
        found[pair] = _compared({method.replace("-", "_"): accuracies(own) for method, own in runs.items()})
        found[pair]["deviation"] = number(stdev(accuracies(runs["daband"])))
        found[pair]["seeds"] = ", ".join(map(number, accuracies(runs["daband"])))
    steps = read("step-variants")
    ten = steps["accuracy"][0]["target_accuracy"]
    lowest = min((run["target_accuracy"] for run in steps["digit"] if run["variant"] == "as it is"), key=min)
    found["digit"] |= {"ten": number(_mean(ten)), "ten_lowest": number(min(ten))}
    found["digit"] |= {"lowest_five": number(_mean(lowest)), "lowest": number(min(lowest))}
    return found


def untraced(text: str) -> list[str]:
    """The accuracies and differences of a text, as .950 or +.353, that no record gives."""
    known: set[str] = set()

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            for inner in value.values():
                collect(inner)
        else:
            known.update(value.split(", "))

    collect(numbers())
    return [one for one in re.findall(r"(?<![\w.])[+-]?\.\d{3}(?!\d)", text) if one not in known]


def _compared(values: dict[str, Sequence[float]]) -> dict[str, str]:
    from pages.text import number

    from daband.evaluation._paired_test import compare_paired

    told = {method: number(_mean(own)) for method, own in values.items() if own}
    for name, other in (("", "nlinucb"), ("_linucb", "linucb")):
        if len(values.get(other, ())) == len(values["daband"]) > 1:
            test = compare_paired(values["daband"], values[other])
            told |= {
                f"gain{name}": number(test.difference, sign=True),
                f"low{name}": number(test.low, sign=True),
                f"high{name}": number(test.high, sign=True),
                "runs": str(test.n),
            }
    return told


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
