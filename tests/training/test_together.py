"""Several runs trained together give what each gives alone, up to rounding."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import daband
from daband.errors import InvalidInput
from daband.policies import DABand, LinUCB, NeuralLinUCB, recipe_for
from daband.policies.steps import Steps
from daband.training import Training, train, train_together

ARMS = 4


def images(n=320, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, ARMS, n)
    pictures = rng.integers(0, 60, (n, 3, 16, 16))
    for row, label in enumerate(labels):
        pictures[row, :, 4 * label : 4 * label + 4] += 150
    return pictures.astype(np.uint8), labels


def vectors(n=320, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, ARMS, n)
    return (np.eye(6)[labels] * 2 + rng.normal(size=(n, 6))).astype(np.float32), labels


def pair_of(make):
    (x, y), (tx, ty) = make(), make(seed=1)
    shifted = 255 - tx if tx.dtype == np.uint8 else tx + 1
    return daband.domains.from_arrays(source=(x, y), target=shifted, target_test=(shifted, ty), n_arms=ARMS)


def policy_of(kind, pair, seed, recipe, **changes):
    found = recipe_for(recipe, context_shape=pair.context_shape)
    if pair.context_shape == (3, 16, 16):
        found = replace(found, encoder=replace(found.encoder, options={**found.encoder.options, "channels": (6,)}))
    found = replace(found, learning=replace(found.learning, steps=4, batch=12, **changes))
    return kind(
        context_shape=pair.context_shape,
        n_arms=ARMS,
        recipe=found,
        reveal="one_correct_arm",
        device="cpu",
        seed=seed,
    )


CASES = [
    (images, DABand, "default-rpd"),
    (images, NeuralLinUCB, "nlinucb"),
    (images, DABand, "paper"),
    (vectors, DABand, "default"),
    (vectors, DABand, "paper"),
]


@pytest.mark.parametrize(("make", "kind", "recipe"), CASES, ids=[f"{c[0].__name__}-{c[2]}" for c in CASES])
def test_each_run_is_what_it_is_alone(make, kind, recipe):
    pair = pair_of(make)
    settings = {"source": pair.source, "target": pair.target, "episodes": 4, "episode_length": 32}
    alone = [policy_of(kind, pair, seed, recipe) for seed in range(3)]
    runs = [train(policy, **settings) for policy in alone]
    beside = [policy_of(kind, pair, seed, recipe) for seed in range(3)]
    together = train_together([Training(policy, **settings) for policy in beside])
    for one, other, run, twin in zip(alone, beside, runs, together, strict=True):
        np.testing.assert_array_equal(run.arm, twin.arm)
        assert set(run.episodes[-1]) == set(twin.episodes[-1])
        for name, value in run.episodes[-1].items():
            assert twin.episodes[-1][name] == pytest.approx(value, rel=2e-3, abs=2e-4), name
        x = pair.target.batch(0, 16, seed=0)
        np.testing.assert_allclose(other.latent(x, "target"), one.latent(x, "target"), atol=2e-3)
        after, before = other.learner.vector.detach(), one.learner.vector.detach()
        assert torch.linalg.vector_norm(after - before) < 0.02 * torch.linalg.vector_norm(before)


def test_what_was_trained_together_goes_on_alone_and_is_saved_alone(tmp_path):
    pair = pair_of(images)
    settings = {"source": pair.source, "target": pair.target, "episode_length": 32}
    policies = [policy_of(DABand, pair, seed, "default") for seed in range(2)]
    folders = [tmp_path / str(seed) for seed in range(2)]
    train_together(
        [Training(p, **settings, episodes=3, directory=f) for p, f in zip(policies, folders, strict=True)],
        save_every=0.0,
    )
    policies[0].save(tmp_path / "p.safetensors")
    again = daband.load(tmp_path / "p.safetensors")
    x = pair.target.batch(0, 16, seed=0)
    np.testing.assert_array_equal(again.decide(x, "target").mean, policies[0].decide(x, "target").mean)
    for policy in (policies[0], again):
        policy.adapt(steps=3)
    np.testing.assert_array_equal(again.decide(x, "target").mean, policies[0].decide(x, "target").mean)
    assert policies[1].learner.steps.runs == 2  # and the other one is where it was


def test_a_run_that_is_ahead_waits_for_the_others(tmp_path):
    pair = pair_of(vectors)
    settings = {"source": pair.source, "target": pair.target, "episode_length": 32}
    first = policy_of(DABand, pair, 0, "default")
    train(first, **settings, episodes=4, directory=tmp_path / "0")
    seen = []
    again = [policy_of(DABand, pair, seed, "default") for seed in range(2)]
    runs = train_together(
        [
            Training(
                policy,
                **settings,
                episodes=4,
                directory=tmp_path / str(seed),
                progress=lambda record, seed=seed: seen.append((seed, record["episode"])),
            )
            for seed, policy in enumerate(again)
        ]
    )
    assert seen == [(1, 1), (1, 2), (1, 3), (1, 4)]
    assert [run.rounds for run in runs] == [128, 128]


def test_a_run_that_fails_leaves_the_others_alone():
    pair = pair_of(vectors)
    settings = {"source": pair.source, "target": pair.target, "episodes": 4, "episode_length": 32}
    policies = [policy_of(DABand, pair, seed, "default") for seed in range(3)]
    lonely = policy_of(DABand, pair, 1, "default")
    with torch.no_grad():
        policies[0].learner.vector[0] = torch.nan
    broken, *others = train_together([Training(policy, **settings) for policy in policies])
    assert isinstance(broken, Exception)
    assert "not finite" in str(broken)
    run = train(lonely, **settings)
    np.testing.assert_array_equal(others[0].arm, run.arm)
    assert others[0].episodes[-1]["skipped_steps"] == 0


def test_weights_of_the_same_terms_may_differ():
    pair = pair_of(vectors)
    recipe = recipe_for("default", context_shape=(6,))
    strong = recipe.with_weights(adversarial=3.0)
    policies = [
        DABand(context_shape=(6,), n_arms=ARMS, recipe=r, reveal="one_correct_arm", device="cpu")
        for r in (recipe, strong)
    ]
    runs = train_together([Training(p, source=pair.source, target=pair.target, episodes=2) for p in policies])
    assert runs[0].episodes[-1]["adversarial"] != runs[1].episodes[-1]["adversarial"]


def test_what_does_not_fit_together_is_told():
    pair = pair_of(vectors)
    neural = policy_of(DABand, pair, 0, "default")
    other = policy_of(DABand, pair, 0, "paper")
    linear = LinUCB(context_shape=(6,), n_arms=ARMS)
    for mixed in ([neural, other], [neural, linear]):
        with pytest.raises(InvalidInput, match="together"):
            train_together([Training(policy, source=pair.source) for policy in mixed])
    with pytest.raises(InvalidInput, match="one shape"):
        Steps([neural.learner, other.learner])
