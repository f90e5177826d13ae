"""What ``serve --learn`` learns is what ``learn_log`` learns from the exported events."""

import numpy as np
import pytest

import daband
from daband.ledger._store import Store
from daband.policies import policies
from daband.policies._checkpoints import read_checkpoint
from daband.policies._settings import get_setting_defaults
from daband.service import Settings, export_events
from daband.service._worker import Worker
from tests.service.api import Api
from tests.service.conftest import served

GROUP = 50
TRUTH = np.random.default_rng(7).normal(size=(3, 4))


def draw_rewards(contexts, arms, rng):
    return (contexts * TRUTH[arms]).sum(axis=1) + arms + rng.normal(size=len(arms))


def write_policy(name, folder, *, shift):
    """Write a policy that learned a log of another market; its contexts have another mean."""
    rng = np.random.default_rng(0)
    contexts = rng.normal(size=(300, 4))
    arms = rng.integers(3, size=300)
    pair = daband.domains.from_log(
        source=(contexts, arms, draw_rewards(contexts, arms, rng), np.full(300, 1 / 3)),
        target=rng.normal(size=(200, 4)) + shift,
        n_arms=3,
        shift="style",  # DABand then learns from target contexts as well
    )
    known = get_setting_defaults(policies.get(name))
    options = {
        key: value for key, value in (("recipe", "small"), ("device", "cpu")) if key in known
    }
    policy = policies.get(name).for_pair(pair, seed=0, **options)
    daband.train(policy, source=pair.source, target=pair.target, episodes=4, episode_length=64)
    policy.deploy("target")
    policy.save(folder / "policy.safetensors")
    daband.export(policy, folder / "market.daband", pair=pair, domain="target", epsilon=0.3)


@pytest.mark.parametrize("shift", [pytest.param(0.0, marks=pytest.mark.slow), 2.0])
@pytest.mark.parametrize("name", policies.names())
def test_a_service_learns_as_learn_log_does(name, shift, tmp_path):
    """Rewards are lower than in training, and some events have fewer eligible arms."""
    write_policy(name, tmp_path, shift=shift)
    log = f"sqlite:///{tmp_path}/events.db"
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(4 * GROUP, 4)) + shift
    events = [
        {"context": row.tolist(), "eligible": [0, 2] if number % 4 == 0 else [0, 1, 2]}
        for number, row in enumerate(rows)
    ]
    with (
        served(tmp_path / "market.daband", log) as client,
        Api(str(client.base_url)) as api,
    ):
        decisions = api.decide_many(events)
        arms = np.array([decision.arm for decision in decisions])
        for decision, reward in zip(decisions, draw_rewards(rows, arms, rng) - 2.0, strict=True):
            api.reward(decision.event_id, reward)
    store = Store(log)
    policy_file = tmp_path / "policy.safetensors"
    worker = Worker(
        store, Settings(), policy_file=policy_file, learn_every=GROUP, publish_seconds=0.0
    )
    while worker.run_once():
        pass
    (tmp_path / "service.safetensors").write_bytes(store.read_state(store.find_current_model()))
    store.close()
    export_events(log, tmp_path / "week.parquet")
    offline = daband.load(policy_file)
    daband.learn_log(offline, tmp_path / "week.parquet", adapt_every=GROUP)
    offline.save(tmp_path / "offline.safetensors")
    service = daband.load(tmp_path / "service.safetensors")
    assert service.rounds_learned == offline.rounds_learned
    contexts = rng.normal(size=(500, 4)) + 2.0 * shift
    expected = offline.decide(contexts, rule="greedy")
    found = service.decide(contexts, rule="greedy")
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-9, atol=1e-9)
    if service.learns_by_gradients:  # the replay buffers and the state of gradient steps
        arrays = read_checkpoint(tmp_path / "service.safetensors").arrays
        expected_arrays = read_checkpoint(tmp_path / "offline.safetensors").arrays
        for key in arrays.keys() - {"rounds"}:
            np.testing.assert_allclose(arrays[key], expected_arrays[key], atol=1e-8, err_msg=key)
