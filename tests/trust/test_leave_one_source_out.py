"""Leave-one-source-out: what is known of the sources' rewards bounds the error of an estimate in the target."""

import numpy as np
import pytest

import daband
from daband.domains._mixtures import join_pairs
from daband.domains.readers._arrays import from_arrays
from daband.domains.readers._logs import from_log
from daband.errors import InvalidInput
from daband.trust._leave_one_source_out import SourceCalibration, leave_one_source_out

COEFFICIENTS = np.random.default_rng(9).normal(size=(4, 3))


def market(shift, seed, n=400, turned=False):
    rng = np.random.default_rng(seed)
    contexts = rng.normal(shift, 1.0, (n, 4))
    labels = (contexts @ COEFFICIENTS + 0.3 * rng.gumbel(size=(n, 3))).argmax(axis=1)
    return contexts, (labels + 1) % 3 if turned else labels


def train(pair):
    policies = [daband.LinUCB.for_pair(pair, seed=seed) for seed in (0, 1)]
    even = dict.fromkeys(pair.domains.sources, 1.0) if len(pair.domains.sources) > 1 else None
    for policy in policies:
        daband.train(policy, source=pair.source, target=pair.target, episodes=5, source_weights=even)
    return policies


@pytest.fixture(scope="module")
def pair():
    sources = {"de": market(0.0, 0), "fr": market(0.3, 1), "it": market(-0.3, 2)}
    target = market(0.2, 3)
    return from_arrays(sources=sources, targets={"pl": target[0]}, target_test={"pl": target})


@pytest.fixture(scope="module")
def calibration(pair):
    return leave_one_source_out(pair, train)


def test_every_source_is_a_target_once(pair, calibration):
    assert calibration.sources == ("de", "fr", "it")
    for name, estimate, value in zip(calibration.sources, calibration.estimates, calibration.values, strict=True):
        others = {other: pair.source.by_name[other] for other in pair.domains.sources if other != name}
        assert name not in others
        assert 0.5 < value <= 1.0
        assert abs(estimate - value) < 0.4
    assert calibration.covered == 1.0


def test_policies_never_see_the_rewards_of_the_source_left_out(pair):
    seen = []

    def watched(rest):
        seen.append((rest.domains.names, rest.target))
        return train(rest)

    leave_one_source_out(pair, watched, contexts=200)
    assert [names for names, _ in seen] == [("fr", "it", "de"), ("de", "it", "fr"), ("de", "fr", "it")]
    assert not any(hasattr(target, "read_rewards") for _, target in seen)


def test_the_bound_is_that_of_student(calibration):
    errors = np.array(calibration.values) - np.array(calibration.estimates)
    wanted = 0.8 + errors.mean() - 2.920 * errors.std(ddof=1) * np.sqrt(4 / 3)
    assert calibration.low(0.8) == pytest.approx(wanted)


def test_errors_in_the_sources_decide_the_bound_of_the_target(pair):
    policies = train(pair)
    given = {"source": pair.source_test, "target": pair.target}
    before = daband.assess(policies, **given, required=0.4)
    sure = SourceCalibration(("a", "b", "c"), (0.8, 0.8, 0.8), (0.6, 0.6, 0.6), (0.8, 0.81, 0.79))
    unsure = SourceCalibration(("a", "b", "c"), (0.8, 0.8, 0.8), (0.6, 0.6, 0.6), (0.8, 0.5, 0.1))
    surer = daband.assess(policies, **given, required=0.4, calibration=sure)
    assert surer.low == pytest.approx(sure.low(before.value))
    assert before.low < surer.low < before.value
    two = SourceCalibration(("a", "b"), (0.8, 0.8), (0.6, 0.6), (0.8, 0.8))
    assert daband.assess(policies, **given, required=0.4, calibration=two).low == before.low
    after = daband.assess(policies, **given, required=0.4, calibration=unsure)
    assert after.low < before.low
    assert after.verdict == "ask"
    assert "Left out in turn" in after.reasons[-1]
    assert unsure.covered == pytest.approx(1 / 3)


def test_a_source_that_pays_otherwise_is_found(pair):
    sources = {"de": market(0.0, 0), "fr": market(0.3, 1), "us": market(-0.3, 2, turned=True)}
    odd = from_arrays(sources=sources, targets={"pl": market(0.2, 3)[0]})
    found = leave_one_source_out(odd, train)
    assert found.errors[2] < -0.3
    assert found.low(0.8) < 0.2


def test_logs_can_be_left_out():
    rng = np.random.default_rng(4)

    def log(seed):
        contexts, labels = market(0.1 * seed, seed, 900)
        arms = rng.integers(0, 3, len(labels))
        rounds = contexts, arms, (arms == labels).astype(float), np.full(len(labels), 1 / 3)
        return from_log(source=rounds, target=market(0.2, 7)[0], n_arms=3)

    logs = {name: log(seed) for seed, name in enumerate(("de", "fr"))}
    found = leave_one_source_out(join_pairs(logs, {"pl": logs["de"]}, name="logs"), train)
    assert min(found.values) > 0.5


def test_one_source_is_refused():
    one = from_arrays(source=market(0.0, 0), target=market(0.2, 3)[0])
    with pytest.raises(InvalidInput, match="several sources"):
        leave_one_source_out(one, train)
