"""Compare decisions, verdicts and estimates of six fixtures with recorded numbers, so that a change
of structure is seen to change no result. ``python -m tests.golden.test_golden`` records them again.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import daband
from daband.domains import Columns, from_arrays, from_log, from_table

RECORD = Path(__file__).with_name("golden.json")


def _summarise(policy, contexts, **estimates):
    """Return how often each arm is predicted best, the mean predictions, and estimates."""
    decision = policy.select(contexts, domain="target")
    return {
        "arms": np.bincount(decision.mean.argmax(axis=1), minlength=policy.n_arms).tolist(),
        "means": decision.mean.mean(axis=0).tolist(),
        "best": float(decision.mean.max(axis=1).mean()),
        **estimates,
    }


def _summarise_choice(choice, contexts):
    """Return what ``choose`` reports about a policy."""
    found = choice.assessment
    return _summarise(
        choice.policy,
        contexts,
        verdict=found.verdict,
        name=type(choice.policy).__name__,
        advantage=found.advantage,
        low=found.low,
        source_advantage=found.source_advantage,
    )


def _read_ab_test(folder):
    from daband.domains._examples import read_example

    for name, content in read_example("ab-test").files.items():
        (folder / name).write_bytes(content)
    columns = Columns(
        ["age", "spent", "channel"],
        categorical=["channel"],
        arm="offer",
        reward="euros",
        propensity="p",
    )
    return from_table(source=folder / "norway.csv", target=folder / "sweden.csv", columns=columns)


def log_of_an_experiment(folder):
    pair = _read_ab_test(folder)
    choice = daband.choose(pair, incumbent="letter")
    contexts = pair.target.batch(0, 500, seed=1)
    always_offer = daband.Constant(context_shape=pair.source.context_shape, n_arms=3, arm=2)
    value = daband.evaluate_log(always_offer, pair.source)
    daband.export(choice.policy, folder / "market.daband")
    deployed = daband.load_deployed(folder / "market.daband")
    arm = deployed.decide({"age": 24, "spent": 80.0, "channel": "web"}).arm_name
    estimates = {"value": value.value, "value_low": value.low, "young": arm}
    return {**_summarise_choice(choice, contexts), **estimates}


def log_in_clusters(folder):
    rng = np.random.default_rng(3)
    clusters = np.repeat(np.arange(60), 20)
    contexts = rng.normal(size=(1200, 3))
    arms = rng.integers(0, 2, 60)[clusters]
    noise = rng.normal(size=60)[clusters] + rng.normal(size=1200)
    rewards = 0.8 * arms * (contexts[:, 0] > 0) + noise
    pair = from_log(
        source=(contexts, arms, rewards, np.full(1200, 0.5)),
        clusters=clusters,
        target=rng.normal(0.5, 1.0, (600, 3)),
        n_arms=2,
    )
    choice = daband.choose(pair, incumbent=0)
    return _summarise_choice(choice, pair.target.batch(0, 500, seed=1))


def table_with_labels(folder):
    rng = np.random.default_rng(4)

    def write(name, n, shift):
        import polars as pl

        age, income = rng.normal(40 + shift, 12, n), rng.normal(30, 8, n)
        label = np.where(age + rng.normal(0, 6, n) > 45, "loan", "card")
        label = np.where(income + rng.normal(0, 4, n) > 38, "fund", label)
        pl.DataFrame({"age": age, "income": income, "offer": label}).write_csv(folder / name)

    write("here.csv", 900, 0)
    write("there.csv", 900, 6)
    columns = Columns(["age", "income"], label="offer")
    pair = from_table(source=folder / "here.csv", target=folder / "there.csv", columns=columns)
    choice = daband.choose(pair, quick=True)
    accuracy = daband.evaluate(choice.policy, pair.target_test).accuracy
    contexts = pair.target.batch(0, 400, seed=1)
    return {**_summarise_choice(choice, contexts), "accuracy": accuracy}


def _play(policy, n_rounds, seed):
    """Play rounds in which the best of three arms depends on the context."""
    rng = np.random.default_rng(seed)
    contexts = rng.normal(size=(n_rounds, 4))
    rewards = contexts[:, :3] * 3 + 10 + rng.normal(size=(n_rounds, 3))
    for start in range(0, n_rounds, 50):
        policy.play(contexts[start : start + 50], rewards[start : start + 50])
        policy.adapt()
    return rng.normal(size=(300, 4))


def linear_bandit(folder):
    policy = daband.LinUCB(context_shape=(4,), n_arms=3, seed=0)
    contexts = _play(policy, 600, 5)
    policy.save(folder / "p.safetensors")
    return _summarise(daband.load(folder / "p.safetensors"), contexts)


def mixture_bandit(folder):
    policy = daband.Mixture(context_shape=(4,), n_arms=3, seed=0)
    return _summarise(policy, _play(policy, 600, 6))


def network_of_two_domains(folder):
    pytest.importorskip("torch")
    rng = np.random.default_rng(7)
    source, target = rng.normal(size=(400, 5)), rng.normal(0.7, 1.0, size=(400, 5))
    labels = (source[:, 0] > 0).astype(int) + 2 * (source[:, 1] > 0)
    pair = from_arrays(source=(source, labels), target=target)
    policy = daband.DABand.for_pair(pair, recipe="small", seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=4)
    return _summarise(policy, pair.target.batch(0, 300, seed=1))


FIXTURES = {
    function.__name__: function
    for function in (
        log_of_an_experiment,
        log_in_clusters,
        table_with_labels,
        linear_bandit,
        mixture_bandit,
        network_of_two_domains,
    )
}


def _is_close(value, expected):
    """Return True if two results agree, up to the rounding of other processors."""
    if isinstance(expected, str):
        return value == expected
    return np.allclose(value, expected, rtol=0.02, atol=0.02 * np.abs(expected).max())


@pytest.mark.parametrize("name", FIXTURES)
def test_a_fixture_has_the_recorded_results(name, tmp_path):
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))[name]
    results = FIXTURES[name](tmp_path)
    assert results.keys() == recorded.keys()
    different = {
        key: (results[key], recorded[key])
        for key in recorded
        if not _is_close(results[key], recorded[key])
    }
    assert not different


if __name__ == "__main__":
    import tempfile

    found = {}
    for fixture, make in FIXTURES.items():
        with tempfile.TemporaryDirectory() as folder:
            found[fixture] = make(Path(folder))
    RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
