"""Killed with SIGKILL under load, the service loses nothing that it acknowledged; the benchmark
does so 50 times.
"""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def service_kill():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import service_kill
    finally:
        sys.path.remove(str(BENCHMARKS))
    return service_kill


@pytest.mark.slow
def test_five_kills_lose_nothing(service_kill, log):
    found = service_kill.run(log, kills=5, between=(0.05, 0.6))
    assert found["acknowledged_events"] >= 50
    assert found["models_learned"] >= 1
    assert found["acknowledged_rewards"] >= 10
    assert {fault: found[fault] for fault in service_kill.FAULTS} == dict.fromkeys(
        service_kill.FAULTS, 0
    )


def test_the_comparison_finds_what_is_wrong(service_kill, sqlite_log):
    found = service_kill._compare(sqlite_log, {"e": {"arm": 1, "propensity": 1.0}}, {"e": 1.0})
    assert (found["lost_events"], found["lost_rewards"]) == (1, 1)
