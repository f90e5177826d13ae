"""What ran, as sections: settings, versions and hardware, and what there was to warn of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from daband.evaluation import CollapseWatch
from daband.report.document import Block, Folded, Text
from daband.report.runs import RunFiles
from daband.report.statistics import Key
from daband.report.style import label, short
from daband.report.tables import Cell, Table

__all__ = ["setup_blocks", "warnings_of"]

_ENVIRONMENT = (
    ("daband", "daband"), ("commit", "commit"), ("python", "Python"), ("numpy", "numpy"), ("torch", "torch"),
    ("numba", "numba"), ("system", "system"), ("processor", "processor"), ("cpus", "cores"), ("device", "device"),
    ("accelerator", "accelerator"),
)  # fmt: skip
_SAID_AT_MOST = 12
_MOST_COLUMNS = 8


def setup_blocks(runs: Sequence[RunFiles]) -> list[Block]:
    """Settings by method, versions and hardware, each folded."""
    blocks: list[Block] = []
    environments = _environments(runs)
    if environments is not None:
        blocks.append(Folded("Versions and hardware", [environments]))
    settings = _settings(runs)
    if settings is not None:
        blocks.append(Folded("Settings of every method", [settings]))
    if not blocks:
        blocks.append(Text("The run folders are not here, so their settings are not known."))
    return blocks


def warnings_of(runs: Sequence[RunFiles]) -> list[str]:
    """What a reader should know before trusting the numbers; each once, with how many runs it concerns."""
    said: dict[str, list[str]] = {}
    for run in runs:
        name = f"{run.record['pair']}, {label(*run.key)}, seed {run.record['seed']}"
        if run.path is None:
            said.setdefault("The run's folder is not here: curves and pictures leave it out.", []).append(name)
            continue
        watch = CollapseWatch()
        for record in run.episodes():
            for message in watch.observe(record):
                kind = message.partition(":")[0]
                said.setdefault(f"Training showed a sign of collapse: {kind}.", []).append(name)
        if run.environment().get("artifacts_error"):
            error = run.environment()["artifacts_error"]
            said.setdefault(f"Its artifacts could not be kept: {error}.", []).append(name)
    messages = []
    for message, names in said.items():
        shown = "; ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        messages.append(f"{message} ({shown})")
    return [*_uneven(runs), *messages][:_SAID_AT_MOST]


def _uneven(runs: Sequence[RunFiles]) -> list[str]:
    """Methods that are compared on other seeds or budgets than the rest."""
    messages = []
    for pair in dict.fromkeys(run.record["pair"] for run in runs):
        seeds: dict[Key, set[int]] = {}
        rounds: dict[int, list[str]] = {}
        for run in runs:
            if run.record["pair"] == pair:
                seeds.setdefault(run.key, set()).add(run.record["seed"])
                names = rounds.setdefault(run.record["rounds"], [])
                if label(*run.key) not in names:
                    names.append(label(*run.key))
        if len({frozenset(found) for found in seeds.values()}) > 1:
            counts = ", ".join(f"{label(*key)} {len(found)}" for key, found in list(seeds.items())[:8])
            messages.append(
                f"{pair}: methods ran on different seeds ({counts}); differences use the seeds that both have."
            )
        if len(rounds) > 1:
            budgets = "; ".join(f"{n:,} rounds: {', '.join(names[:6])}" for n, names in sorted(rounds.items()))
            messages.append(f"{pair}: runs of different budgets stand side by side ({budgets}).")
    return messages


def _environments(runs: Sequence[RunFiles]) -> Table | None:
    found: dict[tuple[str, ...], list[RunFiles]] = {}
    for run in runs:
        about = run.environment()
        if about:
            row = tuple("" if about.get(key) is None else str(about[key]) for key, _ in _ENVIRONMENT)
            found.setdefault(row, []).append(run)
    if not found:
        return None
    kinds = list(found.items())[:_MOST_COLUMNS]
    table = Table(
        "environment",
        "With which versions and on what hardware the runs ended."
        + (" A column for each kind." if len(kinds) > 1 else ""),
        ["", *(f"{len(mine)} run{'s' if len(mine) > 1 else ''}" for _, mine in kinds)],
        text_columns=1 + len(kinds),
    )
    for at, (_, name) in enumerate(_ENVIRONMENT):
        values = [row[at] for row, _ in kinds]
        if any(values):
            table.add(name, *values)
    finished = [sorted(run.environment().get("finished", "") for run in mine) for _, mine in kinds]
    table.add("finished (UTC)", *(_span(times) for times in finished))
    hours = [sum(float(run.record.get("wall_seconds") or 0.0) for run in mine) / 3600 for _, mine in kinds]
    table.add("time of all runs", *(f"{value:.2f} h" for value in hours))
    return table


def _span(times: Sequence[str]) -> str:
    first, last = times[0][:16].replace("T", " "), times[-1][:16].replace("T", " ")
    return first if first == last else f"{first} to {last}"


def _settings(runs: Sequence[RunFiles]) -> Table | None:
    """A row per setting, a column per method: of its first run on the first pair."""
    chosen: dict[Key, dict[str, str]] = {}
    for run in runs:
        if run.key not in chosen and len(chosen) < _MOST_COLUMNS:
            config = run.config()
            if config:
                chosen[run.key] = _flat(config)
    if not chosen:
        return None
    names = dict.fromkeys(name for settings in chosen.values() for name in settings)
    table = Table(
        "settings",
        "Settings of each method's first run in full: what was asked for (run), the policy, the training.",
        ["setting", *(label(*key) for key in chosen)],
        text_columns=1 + len(chosen),
    )
    for name in names:
        cells = [settings.get(name) for settings in chosen.values()]
        table.add(name, *(Cell("-", muted=True) if value is None else Cell(short(value, 40)) for value in cells))
    return table


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, inner in value.items():
        if isinstance(inner, Mapping) and inner:
            found.update(_flat(inner, f"{prefix}{name}."))
        else:
            found[f"{prefix}{name}"] = inner if isinstance(inner, str) else json.dumps(inner)
    return found
