"""Split data sets into a development half and a report half.

The split was fixed before anything was tuned.

All settings are chosen on the development half. Within each kind of data, names are ordered by a
hash, and every other one, starting with the first, is for development. The report half was
evaluated five times, the last time together with the other half. Both halves of
the fresh data sets, the third set and the fourth set have been reported, and are used for
development since. The fifth set is only for reports. Before its evaluation, only shapes and the
best constant arm were computed, and no policy was trained on it.

    python benchmarks/split.py           write benchmarks/records/split.json
"""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path

from fresh import read_declarations

RECORD = Path(__file__).parent / "records" / "split.json"

_TABLES = [
    "baseball-era",
    "chemistry-gender",
    "children-urban",
    "churn-contract",
    "computers-trend",
    "credit-home",
    "diamonds-cut",
    "doctor-gender",
    "earnings-years",
    "fishing-income",
    "fuel-years",
    "hawks-years",
    "injury-seat",
    "insurance-selfemployed",
    "loan-grade",
    "pension-married",
    "poverty-country",
    "salary-country",
    "star-schools",
    "vote-gender",
    "vote-state",
    "wage-jobclass",
    "wages-region",
    "weather-city",
    "weight-sex",
    "women-race",
]


def _list_ordered_pairs(*domains: str) -> list[str]:
    """Return the names of all ordered pairs of domains."""
    return [f"{source}-{target}" for source, target in itertools.permutations(domains, 2)]


KINDS: dict[str, list[str]] = {
    "natural_tables": _TABLES,
    "amazon": _list_ordered_pairs("books", "dvd", "elec", "kitchen"),
    "office_caltech": _list_ordered_pairs("amazon", "caltech10", "dslr", "webcam"),
    "office31_features": _list_ordered_pairs("amazon", "dslr", "webcam"),
    "warfarin": _list_ordered_pairs("asian", "black", "white"),
    "sat12": _list_ordered_pairs("hand", "indu"),
    "handwritten": _list_ordered_pairs("mnist", "usps", "semeion"),
    "images": ["digit", "signs"],
    "synthetic": [f"rotation-{degrees}" for degrees in (0, 15, 30, 60)],
    "markets": [
        f"{kind}-{number}"
        for kind in ("covariate", "units", "inverted", "moved", "labels")
        for number in range(4)
    ],
}
"""Every data set by kind of data. Markets are generated; their names state what differs
between the domains.
"""
KINDS |= {kind: list(names) for kind, names in read_declarations().items()}
READ_ONCE = ("third", "fourth", "fifth")
"""Sets that were reported once as a whole; all but the last are used for development now."""


def split_data_sets() -> dict[str, dict[str, list[str]]]:
    """Return the names of data sets by half and kind."""
    halves: dict[str, dict[str, list[str]]] = {
        half: {} for half in ("development", "report", *READ_ONCE)
    }
    for kind, names in KINDS.items():
        ordered_names = sorted(
            names, key=lambda name: hashlib.sha256(f"{kind}/{name}".encode()).hexdigest()
        )
        if kind.startswith(READ_ONCE):
            halves[kind.partition("_")[0]][kind] = sorted(names)
            continue
        halves["development"][kind] = sorted(ordered_names[0::2])
        halves["report"][kind] = sorted(ordered_names[1::2])
    return halves


def read_split(half: str) -> dict[str, list[str]]:
    """Return the names of a half, or of a set that is reported once, by kind, from the stored
    split.
    """
    names: dict[str, list[str]] = json.loads(RECORD.read_text())[half]
    return names


if __name__ == "__main__":
    RECORD.write_text(json.dumps(split_data_sets(), indent=1) + "\n")
