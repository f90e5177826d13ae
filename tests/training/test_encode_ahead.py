"""Contexts that are known beforehand are encoded right after steps: the same run, to the last bit where it resumes."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

import daband
from daband.linear._primal_ridge import RidgeSums
from daband.neural import _neural_linucb as neural
from daband.neural.encoders._encoder import InferenceEncoder
from daband.neural.learning._learner import Learner

FEW = {"learning": {"steps": 2, "batch": 8}}


@pytest.fixture
def pair() -> daband.domains.Pair:
    return daband.domains.load("digit", tiny=True)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What is done on a GPU is done here; for every call of an encoder, whether the contexts were encoded before."""
    monkeypatch.setattr(Learner, "encodes_ahead", property(lambda self: self.ema is not None and not self.shared))
    calls: list[bool] = []
    encode = InferenceEncoder.encode

    def noted(self: InferenceEncoder, contexts: np.ndarray, domain: int) -> np.ndarray:
        calls.append(domain in self.ahead and contexts is self.ahead[domain][0])
        return encode(self, contexts, domain)

    monkeypatch.setattr(InferenceEncoder, "encode", noted)
    return calls


def policy(pair: daband.domains.Pair, seed: int = 0) -> daband.DABand:
    return daband.DABand.for_pair(pair, seed=seed, device="cpu", recipe=FEW)


def train(pair: daband.domains.Pair, *policies: daband.DABand, episodes: int = 4, directory: Path | None = None):
    more = {"source": pair.source, "target": pair.target, "episodes": episodes, "episode_length": 8}
    return daband.train(list(policies) if len(policies) > 1 else policies[0], directory=directory, **more)


def test_a_run_asks_for_what_was_encoded_and_is_the_same_run(
    pair: daband.domains.Pair, asked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = policy(pair)
    run = train(pair, ahead)
    assert sum(asked) == 7  # the rounds of all episodes but the first, and the target contexts of all
    monkeypatch.setattr(Learner, "encodes_ahead", False)
    later = policy(pair)
    again = train(pair, later)
    assert sum(asked) == 7
    np.testing.assert_array_equal(run.arm, again.arm)
    np.testing.assert_allclose(ahead._head.statistics.theta, later._head.statistics.theta, atol=1e-5)


def test_stacked_runs_are_encoded_at_once(pair: daband.domains.Pair, asked: list[bool]) -> None:
    runs = train(pair, policy(pair), policy(pair, seed=1))
    assert sum(asked) == 14
    alone = policy(pair, seed=1)
    np.testing.assert_array_equal(runs[1].arm, train(pair, alone).arm)


@pytest.mark.usefixtures("asked")
def test_a_resumed_run_is_the_same_to_the_last_bit(pair: daband.domains.Pair, tmp_path: Path) -> None:
    at_once, resumed = policy(pair), policy(pair)
    run = train(pair, at_once)
    train(pair, policy(pair), episodes=2, directory=tmp_path / "run")
    again = train(pair, resumed, directory=tmp_path / "run")
    assert run.episodes == again.episodes
    np.testing.assert_array_equal(at_once._head.statistics.theta, resumed._head.statistics.theta)


@pytest.mark.usefixtures("asked")
def test_a_copy_whose_network_nobody_asked_for_yet_decides_alike(pair: daband.domains.Pair) -> None:
    trained = policy(pair)
    train(pair, trained)
    contexts = pair.require_target_test().read(0, 16)
    copied = pickle.loads(pickle.dumps(trained))
    np.testing.assert_array_equal(copied.decide(contexts, "target").mean, trained.decide(contexts, "target").mean)
    learner = trained.learner
    assert learner.ema is not None
    with torch.no_grad():
        latent = learner.ema(torch.from_numpy(contexts), domain_rows=(0, len(contexts))).latent
    np.testing.assert_allclose(trained.latent(contexts, "target"), latent.numpy(), atol=1e-6)


def test_sums_on_a_device_are_those_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    rounds = draw.normal(size=(500, 6)), draw.integers(0, 3, 500), draw.random(500), draw.random(500)
    expected = RidgeSums(3, 6)
    expected.add(*rounds)
    monkeypatch.setattr(neural, "_NUMBERS_AT_ONCE", 3 * 6 * 120)
    total, counts = neural.sums_on_device(3, *(torch.from_numpy(column) for column in rounds))
    np.testing.assert_allclose(total[:, :, :-2], expected.gram, rtol=1e-12)
    np.testing.assert_allclose(total[:, :, -2:].transpose(1, 2), expected.moment, rtol=1e-12)
    np.testing.assert_array_equal(counts, expected.counts)
