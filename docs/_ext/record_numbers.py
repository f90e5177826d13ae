"""Numbers in running text, calculated from the records when the site is built: ``{{ amazon.daband }}`` in a page."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

__all__ = ["numbers"]

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))


def numbers() -> dict[str, Any]:
    """What pages may use: per data set the two methods' mean target accuracy, their difference and its interval."""
    from pages.text import by, digit_runs, number, of_method

    from daband.evaluation import compare_paired

    def read(name: str) -> Any:
        return json.loads((ROOT / "benchmarks" / "records" / f"{name}.json").read_text())

    def compared(records: list[dict[str, Any]]) -> dict[str, str]:
        own, plain = of_method(records, "daband"), of_method(records, "nlinucb")
        test = compare_paired(*([run["target_accuracy"] for run in side] for side in (own, plain)))
        means = [sum(run["target_accuracy"] for run in side) / len(side) for side in (own, plain)]
        return {
            "daband": number(means[0]), "nlinucb": number(means[1]), "runs": str(test.n),
            "gain": number(test.difference, sign=True), "low": number(test.low, sign=True),
            "high": number(test.high, sign=True),
        }  # fmt: skip

    stand_ins = read("stand-ins")
    found: dict[str, Any] = {
        family: compared([run for run in stand_ins if run["pair"].partition("/")[0] == family])
        for family in ("amazon", "office_caltech", "warfarin")
    }
    found["digit"], found["signs"] = compared(digit_runs(read("digit"), read("attribution"))), compared(read("signs"))
    found["pairs"] = {
        pair.replace("/", "_").replace("-", "_"): compared(own) for pair, own in by(stand_ins, "pair").items()
    }
    return found
