"""Measure verdicts on tables whose labels are all learned, without a target reward.

    python benchmarks/table_verdicts.py              # benchmarks/records/table-verdicts.json
    python benchmarks/table_verdicts.py --summary    # the same from the rows that are there
    python benchmarks/reference_class.py --full      # write the rows into the reference class

The tables are those of ``full_labels.py`` and all that ``fresh.py`` can read here: three collections
of tables, namely tables of packages, ``more_tables`` and ``later_tables``, and ``full_rewards``. A row has
the advantage over the source's best arm that the default of ``choose`` predicts for the target, its
standard error, the standard deviation of rewards, the advantage on held-out source rows, and the
true advantage on all target rows. Rates are those of collections that are left out: the limits of a
collection are computed from the rows of the others. With ``finer``, packages count as five
collections, as they were collected in five rounds.

``fit``: the constants d and z of ``daband/trust/_reference.py`` for these rows, by maximum
likelihood, from every other table ("development"), from the others ("report"), and from all.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from full_labels import list_tables, load_table
from machine import commit
from scipy.optimize import minimize

import daband
from daband.policies._default_members import Candidate
from daband.trust._assess import (
    Choices,
    SourceRounds,
    TargetContexts,
    _predict_advantage,
    estimate_reward_deviation,
)
from daband.trust._incumbent import decide
from daband.trust._reference import FULL, ReferenceClass

RECORD = Path(__file__).parent / "records" / "table-verdicts.json"
PACKAGES = "packages"
GOOD_ADVANTAGE = 0.05
_MAX_CONTEXTS = 2000


def list_data_sets() -> Iterator[tuple[str, str]]:
    """Yield collection and name of every table."""
    from fresh import read_declarations

    yield from list_tables()
    for kind, names in read_declarations().items():
        if kind.endswith(("_tables", "_patients")):
            yield from ((kind, name) for name in names)


def measure(collection: str, name: str, seed: int) -> dict[str, Any]:
    """Return the row of a table."""
    if collection.endswith("_patients") or collection.startswith(
        ("fresh", "third", "fourth", "fifth")
    ):
        from fresh import load

        pair = load(collection, name)
    else:
        pair = load_table(collection, name, seed)
    start = time.process_time()
    candidates = [
        Candidate("constant", "constant"),
        Candidate("supervised", "supervised", preferred=True),
    ]
    choice = daband.choose(pair, candidates=candidates, seed=seed)
    seconds = time.process_time() - start
    policy, assessment = choice.policy, choice.assessment
    rounds = SourceRounds.read(pair.source_test, _MAX_CONTEXTS, seed=seed)
    sample = TargetContexts.read(pair.target, _MAX_CONTEXTS, seed=seed)
    choices = Choices(*rounds.decide(policy), *decide(policy, sample.contexts, "target"))
    arm = assessment.incumbent_arm
    prediction = _predict_advantage(policy, choices, np.full(len(sample.contexts), arm))
    assert pair.target_test is not None
    assert prediction is not None
    n = len(pair.target_test)
    rewards = np.asarray(pair.target_test.read_expected(0, n), np.float64)
    arms = decide(policy, pair.target_test.read(0, n), "target")[0]
    return {
        "collection": collection,
        "table": name,
        "seed": seed,
        "labels": pair.feedback == "one_hot",
        "rows": len(pair.source),
        "arms": pair.n_arms,
        "predicted": round(prediction.value, 5),
        "error": round(prediction.standard_error, 5),
        "scale": round(estimate_reward_deviation(rounds, choices), 5),
        "source advantage": round(assessment.source_advantage, 5),
        "source error": round(assessment.source_error, 5),
        "target advantage": round(float((rewards[np.arange(n), arms] - rewards[:, arm]).mean()), 5),
        "doubts": len(assessment.doubts),
        "verdict": assessment.verdict,
        "seconds": round(seconds, 1),
    }


def as_reference_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the reference class."""
    return [
        {
            "set": f"{row['collection']}/{row['table']}",
            "kind": FULL,
            "source": row["predicted"],
            "error": row["error"],
            "scale": row["scale"],
            "target": row["target advantage"],
        }
        for row in rows
    ]


def name_collection(row: dict[str, Any], finer: bool) -> str:
    """Return the collection that is left out together with a row."""
    collection = row["collection"]
    if collection in ("more_tables", "later_tables", "full_rewards"):
        return collection
    return collection.partition("_")[0] if finer else PACKAGES


def compute_limits(rows: list[dict[str, Any]], finer: bool) -> list[float]:
    """Return the lower limit of each row, from the rows of other collections."""
    names = np.array([name_collection(row, finer) for row in rows])
    reference = ReferenceClass.from_rows(as_reference_rows(rows))
    limits = []
    for row, name in zip(rows, names, strict=True):
        others = reference.select(names != name)
        limits.append(others.forecast(row["predicted"], row["error"], row["scale"]).low)
    return limits


def summarise(rows: list[dict[str, Any]], finer: bool) -> dict[str, Any]:
    """Return the rates of each collection that is left out, and of all tables."""
    limits = np.array(compute_limits(rows, finer))
    truth = np.array([row["target advantage"] for row in rows])
    has_doubts = np.array([row["doubts"] > 0 for row in rows])
    names = np.array([name_collection(row, finer) for row in rows])
    is_deployed = (limits > 0.0) & ~has_doubts
    is_good = truth >= GOOD_ADVANTAGE
    return {
        name: {
            "tables": int(mask.sum()),
            "true": round(float((limits <= truth)[mask].mean()), 3),
            "deployed": int(is_deployed[mask].sum()),
            "wrong": int((is_deployed & (truth < 0.0))[mask].sum()),
            "good": int(is_good[mask].sum()),
            "good deployed": int((is_good & is_deployed)[mask].sum()),
        }
        for name, mask in {
            **{name: names == name for name in sorted(set(names))},
            "all": np.ones(len(rows), np.bool_),
        }.items()
    }


def fit_constants(rows: list[dict[str, Any]]) -> list[float]:
    """Return the constants d and z with the largest likelihood; the target advantage has a t
    distribution with 4 degrees of freedom around the predicted one.
    """
    predicted, error, scale, truth = (
        np.array([row[name] for row in rows])
        for name in ("predicted", "error", "scale", "target advantage")
    )

    def compute_loss(logarithms: Any) -> float:
        d, z = np.exp(logarithms)
        variances = error**2 + (d * predicted) ** 2 + (z * scale) ** 2
        squares = (truth - predicted) ** 2 / variances
        return float((0.5 * np.log(variances) + 2.5 * np.log1p(squares / 4.0)).sum())

    fit = minimize(compute_loss, np.log([0.3, 0.1]), method="Nelder-Mead")
    return [round(float(value), 3) for value in np.exp(fit.x)]


def measure_all(seed: int) -> dict[str, Any]:
    """Return the rows of all tables that can be read, and the names of the others."""
    rows = []
    missing = []
    for collection, name in list_data_sets():
        try:
            rows.append(measure(collection, name, seed))
        except (ImportError, OSError, SystemExit) as error:  # a package that is not installed
            missing.append(f"{collection}/{name}")
            print(missing[-1], error, file=sys.stderr, flush=True)
            continue
        print(json.dumps(rows[-1]), flush=True)
    return {"rows": rows, "missing": missing}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=RECORD)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--summary", action="store_true", help="only summarise the record again")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.summary:
        record = json.loads(arguments.out.read_text())
    else:
        record = {"commit": commit(), **measure_all(arguments.seed)}
    rows = record["rows"]
    record = {
        "commit": record["commit"],
        "summary": {
            "collections": summarise(rows, finer=False),
            "finer collections": summarise(rows, finer=True),
        },
        "fit": {
            "development": fit_constants(rows[0::2]),
            "report": fit_constants(rows[1::2]),
            "all": fit_constants(rows),
        },
        "missing": record["missing"],
        "rows": rows,
    }
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps({name: record[name] for name in ("summary", "fit")}, indent=1))


if __name__ == "__main__":
    main()
