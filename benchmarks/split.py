"""The split of data sets into a development half and a report half, fixed before anything was tuned.

Whatever is chosen (experts, aggregation, estimates, margins, candidates, rules of asking) is chosen on the development
half. Within each kind of data, names are ordered by a hash, and every other one is for development, the first being the
kind's odd one. The report half was read five times, the last time together with the other (``shared.json``). Both
halves of the fresh data sets, the third and the fourth set are read, and serve development since. The fifth set is for
the report alone: nothing was trained on it before its reading, and shapes and the best constant arm were all that was
looked at.

    python benchmarks/split.py           write benchmarks/records/split.json
"""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path

from fresh import declared

RECORD = Path(__file__).parent / "records" / "split.json"

_TABLES = [
    "baseball-era", "chemistry-gender", "children-urban", "churn-contract", "computers-trend", "credit-home",
    "diamonds-cut", "doctor-gender", "earnings-years", "fishing-income", "fuel-years", "hawks-years", "injury-seat",
    "insurance-selfemployed", "loan-grade", "pension-married", "poverty-country", "salary-country", "star-schools",
    "vote-gender", "vote-state", "wage-jobclass", "wages-region", "weather-city", "weight-sex", "women-race",
]  # fmt: skip


def _ordered(*domains: str) -> list[str]:
    return [f"{one}-{other}" for one, other in itertools.permutations(domains, 2)]


KINDS: dict[str, list[str]] = {
    "natural_tables": _TABLES,
    "amazon": _ordered("books", "dvd", "elec", "kitchen"),
    "office_caltech": _ordered("amazon", "caltech10", "dslr", "webcam"),
    "office31_features": _ordered("amazon", "dslr", "webcam"),
    "warfarin": _ordered("asian", "black", "white"),
    "sat12": _ordered("hand", "indu"),
    "handwritten": _ordered("mnist", "usps", "semeion"),
    "images": ["digit", "signs"],
    "synthetic": [f"rotation-{degrees}" for degrees in (0, 15, 30, 60)],
    "markets": [
        f"{kind}-{number}" for kind in ("covariate", "units", "inverted", "moved", "labels") for number in range(4)
    ],
}
"""Every data set by kind of data. Markets are made: what may differ between them is in the name."""
KINDS |= {kind: list(names) for kind, names in declared().items()}
READ_ONCE = ("third", "fourth", "fifth")
"""Sets that were whole for the report, each until it was read; the last one serves no development yet."""


def split() -> dict[str, dict[str, list[str]]]:
    """Names by half and kind."""
    halves: dict[str, dict[str, list[str]]] = {half: {} for half in ("development", "report", *READ_ONCE)}
    for kind, names in KINDS.items():
        order = sorted(names, key=lambda name: hashlib.sha256(f"{kind}/{name}".encode()).hexdigest())
        if kind.startswith(READ_ONCE):
            halves[kind.partition("_")[0]][kind] = sorted(names)
            continue
        halves["development"][kind] = sorted(order[0::2])
        halves["report"][kind] = sorted(order[1::2])
    return halves


def recorded(half: str) -> dict[str, list[str]]:
    """The names of a half by kind: choices are made on "development", the others are read once."""
    names: dict[str, list[str]] = json.loads(RECORD.read_text())[half]
    return names


if __name__ == "__main__":
    RECORD.write_text(json.dumps(split(), indent=1) + "\n")
