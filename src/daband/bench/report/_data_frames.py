"""Runs as data frames (polars), for notebooks: ``.to_pandas()`` gives a pandas one where pandas is installed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from daband.bench._records import Record
from daband.bench.report._method_summaries import paired_difference, score_by_seed, summarise
from daband.bench.report._run_files import load_runs
from daband.errors import InvalidInput

Folders = str | Path | Sequence[str | Path]

_IDENTITY = ("pair", "method", "variant", "seed")


def frame(folders: Folders) -> pl.DataFrame:
    """A row per finished run: what ``results.json`` says of it, and in ``run_folder`` where it lies.

    Args:
        folders: a run's folder, a folder of runs, or several of either.
    """
    rows = [{**run.record, "run_folder": None if run.path is None else str(run.path)} for run in _runs(folders)]
    return _table(rows)


def episodes(folders: Folders) -> pl.DataFrame:
    """A row per episode of every run: pair, method, variant, seed, and all that training measured there.

    ``source_rounds`` counts the rounds up to the episode's end; ``regret`` is the cumulative source regret there. A
    column that a method does not measure is null for it.
    """
    rows = []
    for run in _runs(folders):
        length = run.config().get("training", {}).get("episode_length")
        identity = {name: run.record[name] for name in _IDENTITY}
        for record in run.episodes():
            rounds = None if length is None else record["episode"] * length
            rows.append({**identity, "source_rounds": rounds, **record})
    return _table(rows)


def compare(runs: Folders, *, baseline: str = "nlinucb", variant: str = "default") -> pl.DataFrame:
    """Methods side by side, a row per pair, method and variant, best first within a pair.

    Args:
        runs: run folders or folders of runs. A run that is in two of them counts once.
        baseline: the method that ``difference`` is measured against, seed by seed.
        variant: the variant of the baseline.

    Returns:
        ``seeds`` (how many), ``accuracy``, ``accuracy_deviation`` (sample standard deviation), ``accuracy_macro``,
        ``value``, ``value_deviation``, ``regret``, ``source_regret``, ``rounds``, ``seconds``; against the baseline the
        ``difference`` of the ``metric`` ("target_accuracy" where exactly one arm pays 1, else "target_value") with its
        95% interval ``low`` to ``high`` and ``p_value``, on the ``paired_seeds`` that both have. These are null for the
        baseline itself, and where no seed has both; what needs target labels is null where there are none.
    """
    records = _unique(run.record for run in _runs(runs))
    rows: list[dict[str, Any]] = []
    for row in summarise(records):
        paired = None
        if row.key != (baseline, variant):
            of_pair = [record for record in records if record["pair"] == row.pair]
            scores = (score_by_seed(of_pair, key, row.metric) for key in (row.key, (baseline, variant)))
            paired = paired_difference(*scores)
        rows.append(
            {
                **{name: getattr(row, name) for name in ("pair", "method", "variant")},
                "seeds": len(row.seeds),
                "metric": row.metric.field,
                "accuracy": row.accuracy.value,
                "accuracy_deviation": row.accuracy.deviation,
                "accuracy_macro": row.accuracy_macro.value,
                "value": row.value.value,
                "value_deviation": row.value.deviation,
                **{name: getattr(row, name).value for name in ("regret", "source_regret")},
                **{name: getattr(row, name) for name in ("rounds", "seconds")},
                "paired_seeds": 0 if paired is None else paired.n,
                **{
                    name: None if paired is None or np.isnan(getattr(paired, name)) else float(getattr(paired, name))
                    for name in ("difference", "low", "high", "p_value")
                },
            }
        )
    numbers = ("accuracy", "accuracy_macro", "value", "regret", "source_regret", "difference", "low", "high", "p_value")
    table = pl.DataFrame(rows, schema_overrides=dict.fromkeys(numbers, pl.Float64), infer_schema_length=None)
    return table.sort(["pair", "value"], descending=[False, True], nulls_last=True, maintain_order=True)


def _runs(folders: Folders) -> list[Any]:
    several = [folders] if isinstance(folders, str | Path) else list(folders)
    if not several:
        raise InvalidInput("folders is empty; give at least one run's folder or folder of runs")
    return [run for folder in several for run in load_runs(folder)]


def _unique(records: Any) -> list[Record]:
    """Records of different settings; a bench that was moved or copied is not counted twice."""
    seen: dict[tuple[Any, ...], Record] = {}
    for record in records:
        identity = tuple(record[name] for name in _IDENTITY)
        first = seen.setdefault(identity, record)
        if first is not record and first.get("config_hash") != record.get("config_hash"):
            raise InvalidInput(
                "two runs of other settings have the same pair, method, variant and seed: "
                f"{', '.join(map(str, identity))}; compare them one folder at a time"
            )
    return list(seen.values())


def _table(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Rows whose keys may differ, whole numbers and fractions of one column both as fractions."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns: dict[str, list[Any]] = {name: [row.get(name) for row in rows] for name in names}
    return pl.DataFrame(columns, strict=False)
