"""Write the reference class of ``assess``, and measure its coverage by leaving each data set out.

    python benchmarks/predictions.py --sets natural_tables more_tables amazon ... --out predictions
    python benchmarks/reference_class.py --predictions predictions       # write src/daband/trust/reference.json
    python benchmarks/reference_class.py                                 # measure the file that is there

A row is a data set: the advantage of the default of ``choose`` over the source's best arm on held-out source rounds,
its standard error, the standard deviation of rewards, and the advantage over the same arm in the target. Rows of data
sets without new predictions come from the records of earlier defaults, in which the estimated value of the best arm
stands for its value in the source.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from daband.trust._reference import KINDS, ReferenceClass, infer_kind, reference_class

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "src" / "daband" / "trust" / "reference.json"
EARLIER = ("fifth", "fourth", "third", "fresh", "fresh-development", "trust-development")
COLUMNS = ("set", "kind", "source", "error", "scale", "target")
_KIND_OF_RECORD = {"tables": "tables", "patients": "tables", "warfarin": "tables", "images": "images",
                   "digits": "images", "handwritten": "images"}  # fmt: skip
"""Kind of the data sets of earlier records, by the end of their name; all others are features."""
_GENERATED = ("markets", "synthetic", "named")
"""Data sets that are generated: they do not belong to the class."""


def new_rows(folder: Path) -> list[dict[str, Any]]:
    """Return a row for every stored file."""
    rows = []
    for path in sorted(folder.glob("*.npz")):
        stored = np.load(path)
        kind, name, _ = path.stem.split("__")
        if kind in _GENERATED:
            continue
        chosen = [stored[f"{where}_means"][int(stored["default"])].argmax(axis=1) for where in ("source", "target")]
        source, target = stored["source_rewards"].astype(float), stored["target_rewards"].astype(float)
        best = int(source.mean(axis=0).argmax())
        rewards = source[np.arange(len(source)), chosen[0]]
        gains = rewards - source[:, best]
        left = target[np.arange(len(target)), chosen[1]] - target[:, best]
        n, scale = len(gains), float(rewards.std())
        error = float(np.sqrt((gains.var() * n + scale**2) / (n + 1) / max(n - 1, 1)))
        numbers = {"source": float(gains.mean()), "error": error, "scale": scale, "target": float(left.mean())}
        rows.append({"set": f"{kind}/{name}", "kind": infer_kind(stored["shape"].tolist()), **numbers})
    return rows


def earlier_rows() -> list[dict[str, Any]]:
    """Return rows of earlier defaults: all seeds of features and images, of which there are few; else the first."""
    rows, seen = [], set()
    for record in EARLIER:
        for run in json.loads((ROOT / "benchmarks" / "records" / f"{record}.json").read_text())["runs"]:
            own = [one for one in run["assessed"] if one["method"] == "daband"]
            name, ending = f"{run['data']}/{run['name']}", run["data"].rpartition("_")[2]
            kind = _KIND_OF_RECORD.get(ending, "tables" if run["data"] == "natural_tables" else "features")
            if not own or run["data"] in _GENERATED or (kind == "tables" and name in seen):
                continue
            seen.add(name)
            best = min(one["required"] for one in run["assessed"])
            numbers = {"source": own[0]["source_value"] - best, "error": own[0]["source_error"]}
            numbers["scale"] = own[0]["source_error"] * np.sqrt(own[0]["rounds"])
            numbers["target"] = run["values"]["daband"] - run["values"]["constant"]
            rows.append({"set": name, "kind": kind, **numbers})
    return rows


def write(rows: list[dict[str, Any]], about: str) -> None:
    """Write the class, a line per row."""
    lines = [
        json.dumps([round(row[name], 4) if isinstance(row[name], float) else row[name] for name in COLUMNS])
        for row in rows
    ]
    head = json.dumps({"about": about, "columns": COLUMNS})[:-1]
    FILE.write_text(f'{head}, "rows": [\n' + ",\n".join(lines) + "\n]}\n")


def leave_one_out(rows: ReferenceClass) -> dict[str, float]:
    """Return how the limits of a kind hold on data sets that are left out; every data set counts once."""
    sets = np.array(rows.sets)
    low = np.empty(len(sets))
    for name in set(sets):
        others = rows.select(sets != name)
        for row in np.flatnonzero(sets == name):
            low[row] = others.forecast(rows.source[row], rows.error[row], rows.scale[row]).low
    weight = np.array([1.0 / (sets == name).sum() for name in sets])
    good, deployed = rows.target >= 0.05, low > 0.0

    def mean(values: Any, of: Any) -> float:
        return round(float(np.average(values[of], weights=weight[of])), 4)

    forecast = rows.forecast(1.0, 0.0, 1.0)
    return {
        "sets": len(set(sets)), "true": mean(rows.target >= low, weight > 0), "deployed_of_good": mean(deployed, good),
        "worse_of_deployed": mean(rows.target < 0.0, deployed), "slack": mean(rows.target - low, weight > 0),
        "kept_tenth_percentile": forecast.tenth_percentile_kept, "kept_median": forecast.median_kept,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predictions", type=Path)
    parser.add_argument("--commit", default="", help="commit of the stored predictions")
    given = parser.parse_args()
    if given.predictions:
        new = new_rows(given.predictions)
        names = {row["set"] for row in new}
        rows = [*new, *(row for row in earlier_rows() if row["set"] not in names)]
        write(rows, f"{len(names)} data sets by the default of commit {given.commit}; others by earlier defaults")
        reference_class.cache_clear()
    for kind in KINDS:
        print(kind, leave_one_out(reference_class().of_kind(kind)))


if __name__ == "__main__":
    main()
