"""A service keeps limits under concurrent requests, and when it loads a new model."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import daband
from tests.service.api import Api
from tests.service.conftest import ARMS, DIM, served


def write_file(path, at_most, n_rounds):
    policy = daband.Constant(context_shape=(DIM,), n_arms=len(ARMS), seed=0, alpha=0.0)
    policy.update(np.zeros((n_rounds, DIM)), [2] * n_rounds, [1.0] * n_rounds)
    policy.update(np.zeros((60, DIM)), [0, 1] * 30, [0.0, 0.5] * 30)
    reference = np.random.default_rng(0).normal(size=(100, DIM))
    daband.export(policy, path, arm_names=ARMS, reference=reference, at_most=at_most)


@pytest.mark.slow
def test_limits_hold_under_16_threads_and_over_models(sqlite_log, tmp_path):
    """Without the counts of the first model, the second would start with a visit for all."""
    file, second = tmp_path / "first.daband", tmp_path / "second.daband"
    write_file(file, {"visit": 0.1}, 30)
    write_file(second, {"visit": 0.1}, 40)
    with served(file, sqlite_log) as client:
        address = str(client.base_url)

        def decide(thread):
            with Api(address) as api:
                return [api.decide([0.1] * DIM, event_id=f"{thread}-{n}") for n in range(40)]

        with ThreadPoolExecutor(16) as pool:
            first = [one for part in pool.map(decide, range(16)) for one in part]
            number = client.post("/models", content=second.read_bytes()).json()["deciding"]
            later = [one for part in pool.map(decide, range(16, 32)) for one in part]
    assert {one.model for one in later} == {number} != {first[0].model}
    for decisions in (first, first + later):
        n_visits = sum(one.arm_name == "visit" for one in decisions)
        assert 0.07 * len(decisions) < n_visits <= 0.1 * len(decisions) + 1
    weights = [(one.arm_name == "visit") / one.propensity for one in first + later]
    assert np.mean(weights) == pytest.approx(1.0, abs=0.35)
