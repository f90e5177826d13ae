"""Live lines, the log and the tables of runs."""

import io
import re

import pytest
from rich.console import Console

from daband.bench import Experiment
from daband.bench._executors import RunEvent
from daband.bench._tables import Table
from daband.cli import _runs
from daband.cli._runs import show_progress, to_terminal_table


@pytest.fixture
def specs():
    return Experiment(pair="synthetic", episodes=10).runs(["linucb", "random"], [0, 1])


def episode(spec, number, regret=12.0, **more):
    return RunEvent("episode", spec, {"episode": number, "regret": regret, **more})


def last_frame(screen):
    """What stood on the terminal last: rich moves up and draws anew."""
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "\n", screen.file.getvalue())
    return [line.strip() for line in text.splitlines() if line.strip()]


def test_live_lines_tell_episode_regret_time_and_the_whole(specs, console):
    screen = console(True)
    with show_progress(specs) as hear:
        hear(RunEvent("found", specs[0], {"target_accuracy": 0.5}))
        hear(episode(specs[1], 3, of=10))
        hear(episode(specs[2], 2, regret=None, of=10))
        hear(RunEvent("failed", specs[3], {"error": "[bold]no[/bold] markup"}))
        hear(episode(specs[1], 7, regret=40.4, of=10))
    lines = last_frame(screen)
    text = " ".join(lines)
    for word in (
        "2.9/4 runs",
        "failed    [2/4]",
        "random, seed 0",
        "7/10",
    ):
        assert word in text, word
    assert "[bold]no[/bold] markup" in text


def test_a_log_has_a_line_a_minute_and_one_at_the_end(specs, console, monkeypatch):
    screen = console(False)
    now = iter(range(0, 10_000, 40))  # 40 seconds from event to event
    monkeypatch.setattr(_runs.time, "monotonic", lambda: float(next(now)))
    with show_progress(specs) as hear:
        for number in range(1, 6):
            hear(episode(specs[0], number, regret=None if number == 5 else 12.0, of=10))
        hear(RunEvent("finished", specs[0], {"target_accuracy": 0.25}))
        hear(RunEvent("found", specs[1], {"target_accuracy": 0.5}))
        hear(RunEvent("failed", specs[2], {"error": "out of luck"}))
    assert screen.file.getvalue().splitlines() == [
        "running   linucb, seed 0: episode 2/10",
        "running   linucb, seed 0: episode 4/10",
        "finished  [1/4] linucb, seed 0: target accuracy 0.2500",
        "found     [2/4] random, seed 0: target accuracy 0.5000",
        "failed    [3/4] linucb, seed 1: out of luck",
    ]


def test_runs_of_several_pairs_and_variants_are_told_apart(specs, console):
    screen = console(False)
    other = specs[1].model_copy(update={"pair": "digit", "variant": "paper:RP"})
    with show_progress([specs[0], other]) as hear:
        hear(RunEvent("finished", other, {"target_accuracy": 0.5}))
    assert "digit  random paper:RP, seed 0: target" in screen.file.getvalue()


def test_a_run_over_all_contexts_learns_its_length_on_the_way(specs, console):
    endless = specs[0].model_copy(update={"episodes": "all"})
    screen = console(True)
    with show_progress([endless]) as hear:
        hear(episode(endless, 1))
        hear(episode(endless, 2, of=8))
    assert "2/8" in " ".join(last_frame(screen))


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
