"""Tables: methods on one pair or several, in 80 columns, and where the time of a run went."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from daband.cli.options import spans
from daband.cli.running import say
from daband.experiments import TARGET_ACCURACY, RunSpec, decimals, profile_run
from daband.report import Mean, MethodSummary

__all__ = ["comparison_table", "profiled"]

_MEANING = {
    "step": "gradient steps",
    "features": "encoding contexts for the head",
    "head": "choosing, learning and refitting",
    "host": "everything else: data, bookkeeping, files",
}

_Column = tuple[str, Callable[[MethodSummary], str]]


def comparison_table(title: str, rows: Sequence[MethodSummary], *, arms: Sequence[str] = ()) -> Table:
    """Methods by pair, the best of each pair in bold.

    Where exactly one arm pays 1 the table shows the accuracy, else value and regret in the rewards' unit; where the
    target has no labels, the source's reward and the arm that is chosen most, by its name in ``arms``. Several pairs
    take the room of some columns; the report and results.json have them.
    """
    names = _short_names([row.pair for row in rows])
    several, known = len(names) > 1, any(row.score.value is not None for row in rows)
    unit = any(row.metric is not TARGET_ACCURACY for row in rows)
    table = Table(
        title=escape(f"{title}: target, zero-shot, after source rewards alone"),
        caption=escape(_caption(rows, known=known, unit=unit)),
    )
    if several:
        table.add_column("pair", overflow="fold", min_width=min(20, max(map(len, names.values()))))
    table.add_column("method", no_wrap=True)
    columns = _columns(rows, known=known, unit=unit, several=several, arms=arms)
    for heading, _ in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for pair in names:
        mine = [row for row in rows if row.pair == pair]
        best = max(row.rank for row in mine)
        for row in mine:
            wins = known and len(mine) > 1 and row.rank == best
            first = [escape(names[pair])] if several else []
            cells = (escape(text(row)) for _, text in columns)
            table.add_row(*first, escape(_name(row)), *cells, style="bold" if wins else "")
        table.add_section()
    if several and known:
        digits = _digits(rows)
        for method in dict.fromkeys(_name(row) for row in rows):
            mean = Mean.of([row.score.value for row in rows if _name(row) == method])
            rest = [""] * (len(columns) - 1)
            table.add_row("mean of pairs", escape(method), Mean(mean.value, 0.0, 1).text(digits), *rest)
    return table


def _columns(
    rows: Sequence[MethodSummary], *, known: bool, unit: bool, several: bool, arms: Sequence[str]
) -> list[_Column]:
    digits = _digits(rows)
    source_digits = decimals(*(row.source_regret.value for row in rows)) if unit else 0
    source: _Column = ("source regret", lambda row: row.source_regret.text(source_digits))
    seconds: _Column = ("s", lambda row: f"{row.seconds:.1f}")
    found: list[_Column] = []
    if not known and any(row.logger_value.value is not None for row in rows):
        found = [("chosen most", lambda row: _chosen_most(row, arms))]
    elif not known:
        reward_digits = decimals(*(row.source_reward.value for row in rows))
        found = [
            ("source reward", lambda row: row.source_reward.text(reward_digits)),
            source,
            ("chosen most", lambda row: _chosen_most(row, arms)),
        ]
    elif unit:
        regret_digits = decimals(*(row.regret.value for row in rows))
        found = [
            ("target value", lambda row: row.score.text(digits)),
            ("target regret", lambda row: row.regret.text(regret_digits)),
        ]
        if not several:
            found.append(("accuracy", lambda row: Mean(row.accuracy.value, 0.0, 1).text(3)))
        found.append(source)
    else:
        found = [("target accuracy", lambda row: row.score.text(digits))]
        if not several:
            found.append(("by class", lambda row: Mean(row.accuracy_macro.value, 0.0, 1).text(3)))
        fits = not several and _same(rows, "rounds") and _same(rows, "seeds")
        found += [source, seconds] if fits else [source]
    if not _same(rows, "rounds"):
        found.append(("rounds", lambda row: f"{row.rounds:,}"))
    if not _same(rows, "seeds"):
        found.append(("seeds", lambda row: str(len(row.seeds))))
    return found


def _caption(rows: Sequence[MethodSummary], *, known: bool, unit: bool) -> str:
    parts = []
    if _same(rows, "rounds"):
        parts.append(f"{rows[0].rounds:,} rounds")
    if _same(rows, "seeds"):
        seeds = rows[0].seeds
        parts.append(f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {spans(seeds)}")
    logged = [row.logger_value.value for row in rows if row.logger_value.value is not None]
    if logged and _same(rows, "pair"):
        parts.append(f"the policy that wrote the log earned {logged[0]:,.{decimals(logged[0])}f} a round in the source")
    if not known:
        parts.append("the target has no labels: how good a method is there is not known")
    elif unit and _same(rows, "pair"):
        for name, value in (("best arm", rows[0].best_value), ("best constant arm", rows[0].constant_value)):
            if value is not None:
                parts.append(f"value of the {name} {value:,.{decimals(value)}f}")
    return "; ".join(parts)


def _digits(rows: Sequence[MethodSummary]) -> int:
    unit = [row.metric for row in rows if row.metric is not TARGET_ACCURACY]
    metric = unit[0] if unit else TARGET_ACCURACY
    return metric.digits(*(row.score.value for row in rows))


def _chosen_most(row: MethodSummary, arms: Sequence[str]) -> str:
    if not row.arm_shares:
        return ""
    share = max(row.arm_shares)
    arm = row.arm_shares.index(share)
    name = arms[arm] if len(arms) == len(row.arm_shares) else f"arm {arm}"
    return f"{name[:16]} ({share:.0%})"


def _name(row: MethodSummary) -> str:
    return row.method if row.variant == "default" else f"{row.method} {row.variant}"


def _same(rows: Sequence[MethodSummary], field: str) -> bool:
    return len({getattr(row, field) for row in rows}) == 1


def _short_names(pairs: Sequence[str]) -> dict[str, str]:
    """Pairs by the name that a table has for them: without the data set's where all are of one."""
    of_one = len({pair.partition("/")[0] for pair in pairs}) == 1 and len(set(pairs)) > 1
    return {pair: pair.partition("/")[2] or pair if of_one else pair for pair in pairs}


def profiled(specs: Sequence[RunSpec], out: Path, *, console: Console) -> None:
    """Do these runs one after the other, each with a stopwatch; say where the time went and where the trace lies."""
    for spec in specs:
        with console.status(f"Profiling {spec.method} on {spec.pair} ..."):
            found = profile_run(spec, out)
        total = sum(found.seconds.values())
        table = Table(title=f"{spec.method} on {spec.pair}: where {total:.1f} s of training went")
        for heading in ("part", "seconds", "share"):
            table.add_column(heading, justify="left" if heading == "part" else "right")
        table.add_column("which is")
        for part, seconds in found.seconds.items():
            table.add_row(part, f"{seconds:.2f}", f"{seconds / total:.1%}", _MEANING[part])
        console.print(table)
        say(console, f"Trace: {found.trace}")
        console.print("Open it at ui.perfetto.dev or in chrome://tracing; it stays on your machine.")
