"""One row in single precision beside the scores in double precision that batches have."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

import daband
from daband.linear._standardise import StandardiseStep
from daband.serving._deployed_policy import load_deployed
from daband.serving._members import Member, RowScorer
from daband.serving._numpy_networks import network_from


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


def test_a_row_has_the_scores_of_its_batch(deployed):
    policy, contexts = deployed
    assert policy.frozen._row_scorer is not None
    mean, width = policy.frozen.score(contexts[:50])
    rows = [policy.frozen._row_scorer(row) for row in contexts[:50]]
    np.testing.assert_allclose([row[0] for row in rows], mean, atol=2e-6)
    np.testing.assert_allclose([row[1] for row in rows], width, atol=2e-6)
    batch = policy.decide(contexts[:50], round_number=0)
    assert [policy.decide(row, round_number=at).arm for at, row in enumerate(contexts[:50])] == batch.arm.tolist()


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("encoder", ["conv", "mlp"])
def test_an_image_has_the_scores_of_its_batch(encoder, dtype, tmp_path):
    """Convolutions read an image as it is; a perceptron reads its numbers, and bytes as shares of 255."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (30, 20, 18, 3)).astype(np.uint8)
    contexts = images if dtype is np.uint8 else (images / 255.0).astype(dtype)
    recipe = {"base": "small", "learning": {"steps": 2, "batch": 8}, "encoder": {"name": encoder, "options": {}}}
    policy = daband.DABand(context_shape=(20, 18, 3), n_arms=3, recipe=recipe, seed=0)
    policy.update(contexts, rng.integers(0, 3, 30), rng.random(30))
    daband.export(policy, tmp_path / "p.daband")
    deployed = load_deployed(tmp_path / "p.daband")
    batch, scorer = deployed.decide(contexts, round_number=0), deployed.frozen._row_scorer
    assert scorer is not None
    assert scorer.reads_images == (encoder == "conv")
    rows = [deployed.decide(row, round_number=at) for at, row in enumerate(contexts)]
    np.testing.assert_allclose([row.mean for row in rows], batch.mean, atol=2e-6)
    np.testing.assert_allclose([row.bonus for row in rows], batch.bonus, atol=2e-6)
    assert [row.arm for row in rows] == batch.arm.tolist()
    constant = Member(np.array([[0.3], [0.1], [0.2]]), np.zeros((3, 0, 0)), share=0.5, width_share=0.0, constant=True)
    frozen = replace(deployed.frozen, members=(*deployed.frozen.members, constant))
    assert frozen._row_scorer is not None
    np.testing.assert_allclose(frozen.decide_row(contexts[:1], 0)[0], frozen.score(contexts[:1])[0][0], atol=2e-6)


def test_every_expert_of_a_trained_policy_is_in_the_scorer(deployed, request):
    policy, _ = deployed
    if request.node.callspec.params["deployed"] == "trained":
        assert policy.frozen.transform is not None
        assert any(member.constant for member in policy.frozen.members)
        assert sum(member.network is None for member in policy.frozen.members) >= 3
    assert policy.frozen._row_scorer is not None


def test_small_widths_keep_their_accuracy():
    """Far more rounds in some directions than in others: z'A^-1 z in single precision would be off by a tenth."""
    rng = np.random.default_rng(0)
    d = 16
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
    inverse = (basis * np.append(np.full(d - 1, 1e-7), 1.0)) @ basis.T
    weights = {f"dense.{at}.weight": rng.normal(size=(d, d)).astype(np.float32) for at in range(2)}
    biases = {f"dense.{at}.bias": np.zeros(d, np.float32) for at in range(2)}
    network = network_from({"kind": "mlp", "layers": 2}, weights | biases)
    member = Member(np.zeros((2, d)), np.stack([inverse, inverse]), network=network)
    scorer = RowScorer.of([member], d)
    assert scorer is not None
    for _ in range(20):
        x = rng.normal(size=d)
        z = network(x[None])[0]
        np.testing.assert_allclose(scorer(x)[1], np.sqrt(z @ inverse @ z), atol=1e-6)


def test_ties_are_scored_in_double_precision(tmp_path):
    """Arms without a round are equal: rounding in single precision must not decide between them."""
    rng = np.random.default_rng(1)
    policy = daband.DABand(context_shape=(33,), n_arms=7, alpha=1.0, seed=0)
    policy.prepare(rng.normal(size=(50, 33)))
    policy.deploy("target")
    daband.export(policy, tmp_path / "p.daband")
    deployed = load_deployed(tmp_path / "p.daband")
    assert deployed.frozen._row_scorer is not None
    assert all(deployed.decide(rng.normal(size=33)).propensity == pytest.approx(1 / 7) for _ in range(20))


def test_a_column_of_almost_no_deviation_is_scored_in_double_precision():
    rng = np.random.default_rng(0)
    weights = {f"dense.{at}.weight": rng.normal(size=(4, 4)).astype(np.float32) for at in range(2)}
    biases = {f"dense.{at}.bias": np.zeros(4, np.float32) for at in range(2)}
    network = network_from({"kind": "mlp", "layers": 2}, weights | biases)
    step = StandardiseStep(np.zeros(4), np.array([1.0, 1.0, 1e-200, 1.0]), None, clip=5.0, scale=1.0)
    members = [Member(np.zeros((2, 4)), np.stack([np.eye(4)] * 2), network=network)]
    assert RowScorer.of(members, 4) is not None
    members.append(Member(np.zeros((2, 5)), np.stack([np.eye(5)] * 2), transform=step))
    assert RowScorer.of(members, 4) is None


@pytest.mark.parametrize("deployed", ["trained"], indirect=True)
def test_numbers_beyond_single_precision_are_clipped_before_they_are_rounded(deployed):
    """Behind a transform a context may have a norm of 1e60: the cast to float32 would overflow, with a warning."""
    policy, contexts = deployed
    row = contexts[10].copy()
    row[3] = 1e50
    decision = policy.decide(row, round_number=0)
    assert [warning.kind for warning in decision.warnings] == ["far_outside"]
    np.testing.assert_allclose(decision.mean, policy.decide(row[None], round_number=0).mean[0], atol=2e-6)


@pytest.mark.parametrize("d", [5, 64, 100])
def test_widths_by_blocks_of_a_triangle_are_those_of_the_whole(d):
    """Beside a network of d features stand regressions on contexts, and on standardised ones, which are clipped."""
    rng = np.random.default_rng(d)
    weights = {f"dense.{at}.weight": rng.normal(size=(d, d)).astype(np.float32) for at in range(2)}
    biases = {f"dense.{at}.bias": np.ones(d, np.float32) for at in range(2)}
    network = network_from({"kind": "mlp", "layers": 2}, weights | biases)
    step = StandardiseStep(np.zeros(d), np.full(d, 2.0), None, clip=0.5, scale=1.0)
    members = []
    for parts in ({"network": network}, {}, {"transform": step}):
        size = d + ("transform" in parts)
        root = rng.normal(size=(3, size, size))
        members.append(Member(rng.normal(size=(3, size)), root @ root.transpose(0, 2, 1), 0.3, 0.4, **parts))
    scorer = RowScorer.of(members, d)
    assert scorer is not None
    x = rng.normal(size=d)
    scores = [member.score(x[None]) for member in members]
    mean, width = sum(0.3 * score[0][0] for score in scores), sum(0.4 * score[1][0] for score in scores)
    np.testing.assert_allclose(scorer(x)[:2], [mean, width], rtol=1e-5, atol=1e-5)


def test_copies_and_threads_of_a_scorer_have_arrays_of_their_own(deployed):
    policy, contexts = deployed
    scorer = policy.frozen._row_scorer
    expected = [scorer(row) for row in contexts]
    copied = pickle.loads(pickle.dumps(scorer))
    np.testing.assert_array_equal([copied(row) for row in contexts], expected)
    with ThreadPoolExecutor(8) as threads:
        np.testing.assert_array_equal(list(threads.map(scorer, contexts)), expected)


def test_a_call_within_another_has_a_workspace_of_its_own(deployed):
    """As where one thread is stopped by another in the middle of a row."""
    policy, contexts = deployed
    scorer = policy.frozen._row_scorer
    expected = [scorer(row) for row in contexts[:2]]

    class Interrupted:
        ndim = 1

        def __array__(self, dtype=None, copy=None):
            np.testing.assert_array_equal(scorer(contexts[1]), expected[1])
            return contexts[0]

    np.testing.assert_array_equal(scorer(Interrupted()), expected[0])
    assert len(scorer._free) == 2


@pytest.mark.parametrize("alpha", [0.0, 1e100])
def test_scores_have_the_optimism_of_the_policy(alpha, tmp_path):
    """However large it is: single precision ends at 3e38."""
    rng = np.random.default_rng(2)
    policy = daband.DABand(context_shape=(5,), n_arms=3, alpha=alpha, seed=0)
    contexts = rng.normal(size=(60, 5))
    policy.prepare(contexts)
    policy.update(contexts, rng.choice(3, 60, p=[0.1, 0.3, 0.6]), rng.random(60))
    policy.deploy("target")
    daband.export(policy, tmp_path / "p.daband")
    deployed = load_deployed(tmp_path / "p.daband")
    assert deployed.frozen._row_scorer is not None
    rows = [deployed.decide(row, round_number=at) for at, row in enumerate(contexts)]
    assert [row.arm for row in rows] == deployed.decide(contexts, round_number=0).arm.tolist()
    mean, width, score = deployed.frozen._row_scorer(contexts[0])
    np.testing.assert_allclose(score, mean + min(alpha, 1e15) * width, rtol=1e-5)
