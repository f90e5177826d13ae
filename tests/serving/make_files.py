"""Writes the files of ``tests/serving/files``: one of every kind, of the present format version.

python -m tests.serving.make_files    # after the format version was raised; files of older versions stay

Beside each file lies what it decides on a few contexts: later versions of daband must read both alike.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import daband
from daband.serving import _frozen_policy as frozen_policy
from daband.serving._deployed_policy import EXPORT_VERSION
from tests.serving.kinds import KINDS, contexts_of, trained

FILES = Path(__file__).with_name("files")
KEPT = ["constant", "random", "linucb", "linucb-shared", "linucb-pca", "linucb-standardise", "nlinucb", "daband",
        "daband-images", "daband-linear"]  # fmt: skip


def table_pair():
    """A pair of tables with numbers, categories and gaps."""
    import polars as pl

    rng = np.random.default_rng(0)
    rows = 300
    frame = pl.DataFrame(
        {
            "age": rng.integers(18, 90, rows).astype(float),
            "income": np.where(rng.random(rows) < 0.1, np.nan, rng.lognormal(10, 0.5, rows)),
            "city": [["Oslo", "Rome", "Lima"][at] for at in rng.integers(0, 3, rows)],
            "member": [bool(at) for at in rng.integers(0, 2, rows)],
            "offer": [["none", "mail", "call"][at] for at in rng.integers(0, 3, rows)],
        }
    ).with_columns(pl.col("income").fill_nan(None))
    columns = daband.domains.Columns(
        context=("age", "income", "city", "member"), categorical=("city", "member"), label="offer"
    )
    return daband.domains.from_table(source=frame[:150], target=frame[150:].drop("offer"), columns=columns)


def table_policy():
    """A policy on that pair."""
    pair = table_pair()
    policy = daband.LinUCB.for_pair(pair, seed=1)
    daband.train(policy, source=pair.source, target=pair.target, episodes=4, episode_length=16)
    policy.deploy("target")
    return policy, pair


ROWS = [
    {"age": 41, "income": 20_000.0, "city": "Oslo", "member": True},
    {"age": 73.5, "income": None, "city": "Lima", "member": False},
    {"age": 20, "income": 1e9, "city": "Paris", "member": None},
]


def write(name: str, decision) -> None:
    """What a file decides, beside it."""
    told = {"arm": np.asarray(decision.arm).tolist(), "mean": decision.mean.tolist(), "width": decision.width.tolist()}
    (FILES / f"{name}.json").write_text(json.dumps(told) + "\n")


def main() -> None:
    """Write all."""
    frozen_policy.LARGE_INVERSE = 0  # small files with what large ones have
    for kind in KEPT:
        name = f"{kind}.v{EXPORT_VERSION}"
        policy, *_ = trained(kind)
        daband.export(policy, FILES / f"{name}.daband", arm_names=["none", "mail", "call"])
        contexts = contexts_of(KINDS[kind][1], 5, seed=9)
        write(name, daband.load_deployed(FILES / f"{name}.daband").decide(contexts, round_number=0))
    name = f"linucb-table.v{EXPORT_VERSION}"
    policy, pair = table_policy()
    daband.export(policy, FILES / f"{name}.daband", pair=pair, assessment={"accuracy": 0.7, "verdict": "unknown"})
    write(name, daband.load_deployed(FILES / f"{name}.daband").decide(ROWS, round_number=0))


if __name__ == "__main__":
    main()
