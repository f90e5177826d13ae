"""Write the reference class of ``assess``, and measure its coverage by leaving each data set out.

    python benchmarks/predictions.py --sets natural_tables more_tables amazon ... --out predictions
    python benchmarks/table_verdicts.py --out benchmarks/records/table-verdicts.json
    python benchmarks/reference_class.py --predictions predictions       # write src/daband/trust/reference.json
    python benchmarks/reference_class.py --full                          # replace its rows of the kind "full"
    python benchmarks/reference_class.py                                 # measure the file that is there

A row is a data set: the advantage of the default of ``choose`` over the source's best arm on
held-out source rounds, its standard error, the standard deviation of rewards, and the advantage
over the same arm in the target. Rows of data sets without new predictions come from the records of
earlier defaults, in which the estimated value of the best arm stands for its value in the source.
Rows of the kind "full" have the predicted advantage instead of the one in the source, and come from
``table_verdicts.py``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from daband.trust._reference import FULL, KINDS, ReferenceClass, infer_kind, load_reference_class

ROOT = Path(__file__).resolve().parents[1]
REFERENCE_FILE = ROOT / "src" / "daband" / "trust" / "reference.json"
EARLIER_RECORDS = ("fifth", "fourth", "third", "fresh", "fresh-development", "trust-development")
COLUMNS = ("set", "kind", "source", "error", "scale", "target")
_KIND_OF_RECORD = {
    "tables": "tables",
    "patients": "tables",
    "warfarin": "tables",
    "images": "images",
    "digits": "images",
    "handwritten": "images",
}
"""Kind of the data sets of earlier records, by the end of their name; all others are features."""
_GENERATED_SETS = ("markets", "synthetic", "named")
"""Data sets that are generated: they do not belong to the class."""


def build_new_rows(folder: Path) -> list[dict[str, Any]]:
    """Return a row for every file of stored predictions."""
    rows = []
    for path in sorted(folder.glob("*.npz")):
        predictions = np.load(path)
        kind, name, _ = path.stem.split("__")
        if kind in _GENERATED_SETS:
            continue
        rewards = {
            domain: predictions[f"{domain}_rewards"].astype(float)
            for domain in ("source", "target")
        }
        best_arm = int(rewards["source"].mean(axis=0).argmax())
        chosen_rewards = {}
        gains = {}
        for domain, domain_rewards in rewards.items():
            arms = predictions[f"{domain}_means"][int(predictions["default"])].argmax(axis=1)
            chosen_rewards[domain] = domain_rewards[np.arange(len(arms)), arms]
            gains[domain] = chosen_rewards[domain] - domain_rewards[:, best_arm]
        n = len(gains["source"])
        deviation = float(chosen_rewards["source"].std())
        error = float(np.sqrt((gains["source"].var() * n + deviation**2) / (n + 1) / max(n - 1, 1)))
        rows.append(
            {
                "set": f"{kind}/{name}",
                "kind": infer_kind(predictions["shape"].tolist()),
                "error": error,
                "scale": deviation,
                "source": float(gains["source"].mean()),
                "target": float(gains["target"].mean()),
            }
        )
    return rows


def build_earlier_rows() -> list[dict[str, Any]]:
    """Return rows of earlier defaults: all seeds of features and images, of which there are few;
    else the first.
    """
    rows = []
    seen_names = set()
    for record in EARLIER_RECORDS:
        for run in json.loads((ROOT / "benchmarks" / "records" / f"{record}.json").read_text())[
            "runs"
        ]:
            default = next((row for row in run["assessed"] if row["method"] == "daband"), None)
            name = f"{run['data']}/{run['name']}"
            record_kind = run["data"].rpartition("_")[2]
            kind = _KIND_OF_RECORD.get(
                record_kind, "tables" if run["data"] == "natural_tables" else "features"
            )
            if (
                default is None
                or run["data"] in _GENERATED_SETS
                or (kind == "tables" and name in seen_names)
            ):
                continue
            seen_names.add(name)
            rows.append(
                {
                    "set": name,
                    "kind": kind,
                    "source": (
                        default["source_value"] - min(row["required"] for row in run["assessed"])
                    ),
                    "error": default["source_error"],
                    "scale": default["source_error"] * np.sqrt(default["rounds"]),
                    "target": run["values"]["daband"] - run["values"]["constant"],
                }
            )
    return rows


def drop_stale_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows without those of earlier defaults if the data set has newer rows of the same
    kind.
    """

    def describe(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["set"], *(round(float(row[name]), 4) for name in COLUMNS[2:])

    earlier_rows = {describe(row) for row in build_earlier_rows()}
    newer_sets = {(row["kind"], row["set"]) for row in rows if describe(row) not in earlier_rows}
    return [
        row
        for row in rows
        if describe(row) not in earlier_rows or (row["kind"], row["set"]) not in newer_sets
    ]


def read_reference() -> tuple[str, list[dict[str, Any]]]:
    """Return the description of the class that is there, and its rows."""
    content = json.loads(REFERENCE_FILE.read_text())
    return content["about"], [
        dict(zip(content["columns"], row, strict=True)) for row in content["rows"]
    ]


def write_reference(rows: list[dict[str, Any]], about: str) -> None:
    """Write the class, a line per row."""
    values = [
        [round(row[name], 4) if isinstance(row[name], float) else row[name] for name in COLUMNS]
        for row in rows
    ]
    head = json.dumps({"about": about, "columns": COLUMNS})[:-1]
    REFERENCE_FILE.write_text(
        f'{head}, "rows": [\n' + ",\n".join(map(json.dumps, values)) + "\n]}\n"
    )


def leave_one_out(reference: ReferenceClass) -> dict[str, Any]:
    """Return how the limits of a kind hold on data sets that are left out; every data set counts
    once.
    """
    data_sets = np.array(reference.data_sets)
    columns = reference.source_advantages, reference.standard_errors, reference.reward_deviations
    low_limits = np.empty(len(data_sets))
    for name in set(data_sets):
        others = reference.select(data_sets != name)
        for row in np.flatnonzero(data_sets == name):
            low_limits[row] = others.forecast(*(column[row] for column in columns)).low
    weights = np.array([1.0 / (data_sets == name).sum() for name in data_sets])
    advantages = reference.target_advantages
    is_deployed = low_limits > 0.0
    is_row = weights > 0.0

    def average(values: Any, mask: Any) -> float:
        return round(float(np.average(values[mask], weights=weights[mask])), 4)

    forecast = reference.forecast(1.0, 0.0, 1.0)
    return {
        "sets": len(set(data_sets)),
        "true": average(advantages >= low_limits, is_row),
        "deployed_of_good": average(is_deployed, advantages >= 0.05),
        "worse_of_deployed": average(advantages < 0.0, is_deployed),
        "slack": average(advantages - low_limits, is_row),
        "kept_tenth_percentile": forecast.tenth_percentile_kept,
        "kept_median": forecast.median_kept,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--predictions", type=Path)
    parser.add_argument("--commit", default="", help="commit of the stored predictions")
    parser.add_argument("--full", action="store_true", help="replace the rows of the kind full")
    arguments = parser.parse_args()
    if arguments.predictions:
        new_rows = build_new_rows(arguments.predictions)
        new_sets = {row["set"] for row in new_rows}
        full_rows = [row for row in read_reference()[1] if row["kind"] == FULL]
        earlier_rows = [row for row in build_earlier_rows() if row["set"] not in new_sets]
        write_reference(
            [*full_rows, *new_rows, *earlier_rows],
            f"{len(new_sets)} data sets at commit {arguments.commit}; others by earlier defaults",
        )
        load_reference_class.cache_clear()
    if arguments.full:
        from table_verdicts import RECORD, as_reference_rows

        about, rows = read_reference()
        full_rows = as_reference_rows(json.loads(RECORD.read_text())["rows"])
        other_rows = drop_stale_rows([row for row in rows if row["kind"] != FULL])
        write_reference([*full_rows, *other_rows], about)
        load_reference_class.cache_clear()
    for kind in KINDS:
        print(kind, leave_one_out(load_reference_class().select_kind(kind)))


if __name__ == "__main__":
    main()
