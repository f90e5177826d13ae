"""Live lines, the log and the tables of runs."""

import io

import pytest
from rich.console import Console

from daband.bench import Experiment
from daband.bench._executors import RunEvent
from daband.bench._tables import Table
from daband.cli import _runs
from daband.cli._runs import make_listener, to_terminal_table


@pytest.fixture
def specs():
    return Experiment(pair="synthetic", episodes=10).runs(["linucb", "random"], [0, 1])


def test_a_log_has_a_line_a_minute_and_one_at_the_end(specs, console, monkeypatch):
    screen = console(False)
    now = iter(range(0, 10_000, 40))  # 40 seconds from event to event
    monkeypatch.setattr(_runs.time, "monotonic", lambda: float(next(now)))
    hear = make_listener(4)
    for number in range(1, 6):
        hear(RunEvent("episode", specs[0], {"episode": number}))
    hear(RunEvent("finished", specs[0], {"target_accuracy": 0.25}))
    hear(RunEvent("found", specs[1], {"target_accuracy": 0.5}))
    hear(RunEvent("failed", specs[2], {"error": "[bold]out[/bold] of luck"}))
    assert screen.file.getvalue().splitlines() == [
        "running   linucb, seed 0: episode 2/10",
        "running   linucb, seed 0: episode 4/10",
        "finished  [1/4] linucb, seed 0: target accuracy 0.2500",
        "found     [2/4] random, seed 0: target accuracy 0.5000",
        "failed    [3/4] linucb, seed 1: [bold]out[/bold] of luck",
    ]


def test_a_table_keeps_its_words_in_a_narrow_terminal():
    cells = {f"regret in the target {n}": "1,234.5 ± 67.8" for n in range(4)}
    table = Table(
        "what it says [v2]", [{"method": "linucb", **cells}, {"method": "daband", **cells}]
    )
    narrow = Console(file=io.StringIO(), width=60)
    narrow.print(to_terminal_table(table))
    shown = narrow.file.getvalue()
    assert "│ linucb │" in shown
    assert "what it says [v2]" in shown
