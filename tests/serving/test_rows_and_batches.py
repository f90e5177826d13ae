"""A row has the scores that it has in a batch."""

from __future__ import annotations

import numpy as np
import pytest

import daband
from daband.serving import load_deployed


@pytest.fixture(params=["tables", "large offsets", "paper", "trained"])
def deployed(request, tmp_path):
    rng = np.random.default_rng(3)
    recipe = {"recipe": "paper"} if request.param == "paper" else {}
    contexts = rng.normal(size=(300, 7)) + (1e5 if request.param == "large offsets" else 0.0)
    transform = {"transform": daband.Standardise()} if request.param == "trained" else {}
    policy = daband.DABand(context_shape=(7,), n_arms=4, seed=0, **recipe, **transform)
    policy.prepare(contexts)
    for part in np.split(contexts, 6):
        policy.update(part, rng.integers(0, 3, 50), rng.random(50))
    if request.param == "trained":  # as users export it: every expert has a share, the constant too
        policy.adapt()
        contexts[:5] *= 20.0  # beyond what the transform clips
    policy.deploy("target")
    daband.export(policy, tmp_path / "p.daband")
    return load_deployed(tmp_path / "p.daband"), contexts


@pytest.fixture(
    params=[("covariate", 0.0), ("covariate", 50.0), ("covariate", 1e9), ("style", 0.0)], ids=str
)
def mixed(request, tmp_path):
    """A mixture with pieces, some of them short, whose members or which itself standardises
    contexts.
    """
    shift, offset = request.param
    rng = np.random.default_rng(4)
    contexts = rng.normal(size=(400, 5))
    contexts[:, 1] = np.where(rng.random(400) < 0.7, 1e-3 * rng.random(400), contexts[:, 1])
    contexts += offset
    rewards = 10.0 + contexts[:, :3] - offset + rng.normal(size=(400, 3))
    pair = daband.domains.from_arrays(source=(contexts, rewards), target=contexts, shift=shift)
    policy = daband.Mixture.for_pair(pair, recipe="small", seed=0)
    policy.prepare(contexts)
    policy.observe_target(contexts)
    arms = rng.integers(0, 3, 400)
    policy.update(contexts, arms, rewards[np.arange(400), arms])
    policy.adapt(steps=2)
    policy.deploy("target")
    daband.export(policy, tmp_path / "p.daband")
    return load_deployed(tmp_path / "p.daband"), contexts


def test_a_mixture_scores_a_row_as_a_batch(mixed):
    policy, contexts = mixed
    batch = policy.decide(contexts[:100], round_number=0)
    rows = [policy.decide(row, round_number=at) for at, row in enumerate(contexts[:100])]
    np.testing.assert_allclose([row.mean for row in rows], batch.mean, rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose([row.bonus for row in rows], batch.bonus, rtol=1e-5, atol=1e-5)
    assert [row.arm for row in rows] == batch.arm.tolist()


def test_a_row_has_the_scores_of_its_batch(deployed):
    policy, contexts = deployed
    batch = policy.decide(contexts[:50], round_number=0)
    rows = [policy.decide(row, round_number=at) for at, row in enumerate(contexts[:50])]
    np.testing.assert_allclose([row.mean for row in rows], batch.mean, atol=2e-6)
    np.testing.assert_allclose([row.bonus for row in rows], batch.bonus, atol=2e-6)
    assert [row.arm for row in rows] == batch.arm.tolist()


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("encoder", ["conv", "mlp"])
def test_an_image_has_the_scores_of_its_batch(encoder, dtype, tmp_path):
    """Convolutions read an image as it is; a perceptron reads its numbers, and bytes as shares of
    255.
    """
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (30, 20, 18, 3)).astype(np.uint8)
    contexts = images if dtype is np.uint8 else (images / 255.0).astype(dtype)
    recipe = {
        "base": "small",
        "learning": {"steps": 2, "batch": 8},
        "encoder": {"name": encoder, "options": {}},
    }
    policy = daband.DABand(context_shape=(20, 18, 3), n_arms=3, recipe=recipe, seed=0)
    policy.update(contexts, rng.integers(0, 3, 30), rng.random(30))
    daband.export(policy, tmp_path / "p.daband")
    deployed = load_deployed(tmp_path / "p.daband")
    batch = deployed.decide(contexts, round_number=0)
    rows = [deployed.decide(row, round_number=at) for at, row in enumerate(contexts)]
    np.testing.assert_allclose([row.mean for row in rows], batch.mean, atol=2e-6)
    np.testing.assert_allclose([row.bonus for row in rows], batch.bonus, atol=2e-6)
    assert [row.arm for row in rows] == batch.arm.tolist()


def test_ties_are_no_matter_of_rounding(tmp_path):
    """Arms without a round are equal: rounding in single precision must not decide between them."""
    rng = np.random.default_rng(1)
    policy = daband.DABand(context_shape=(33,), n_arms=7, alpha=1.0, seed=0)
    policy.prepare(rng.normal(size=(50, 33)))
    policy.deploy("target")
    daband.export(policy, tmp_path / "p.daband")
    deployed = load_deployed(tmp_path / "p.daband")
    assert all(
        deployed.decide(rng.normal(size=33)).propensity == pytest.approx(1 / 7) for _ in range(20)
    )


@pytest.mark.parametrize("deployed", ["trained"], indirect=True)
def test_numbers_beyond_single_precision_are_clipped_before_they_are_rounded(deployed):
    """Behind a transform a context may have a norm of 1e60: the cast to float32 would overflow,
    with a warning.
    """
    policy, contexts = deployed
    row = contexts[10].copy()
    row[3] = 1e50
    decision = policy.decide(row, round_number=0)
    np.testing.assert_allclose(
        decision.mean, policy.decide(row[None], round_number=0).mean[0], atol=2e-6
    )


@pytest.mark.parametrize("alpha", [0.0, 1e100])
def test_a_row_is_decided_with_any_optimism(alpha, tmp_path):
    """However large it is: single precision ends at 3e38."""
    rng = np.random.default_rng(2)
    policy = daband.DABand(context_shape=(5,), n_arms=3, alpha=alpha, seed=0)
    contexts = rng.normal(size=(60, 5))
    policy.prepare(contexts)
    policy.update(contexts, rng.choice(3, 60, p=[0.1, 0.3, 0.6]), rng.random(60))
    policy.deploy("target")
    daband.export(policy, tmp_path / "p.daband")
    deployed = load_deployed(tmp_path / "p.daband")
    rows = [deployed.decide(row, round_number=at) for at, row in enumerate(contexts)]
    assert [row.arm for row in rows] == deployed.decide(contexts, round_number=0).arm.tolist()
