"""Forgetting: a round counts half after ``half_life``, exactly, in linear heads, in buffers and in files."""

import numpy as np
import pytest
from typer.testing import CliRunner

import daband
from daband.errors import InvalidInput

pl = pytest.importorskip("polars")
HALF_LIFE = 40.0


def rounds(n=300, arms=3, dim=4, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, dim)), rng.integers(0, arms, n), rng.random(n)


def weighted_means(contexts, arms, rewards, weights, ridge, n_arms, at):
    """Ridge regressions of weighted rounds by a least-squares solve of its own, and what they predict."""
    means = np.zeros((len(at), n_arms))
    for arm in range(n_arms):
        own, root = arms == arm, np.sqrt(weights[arms == arm])[:, None]
        rows = np.concatenate([contexts[own] * root, np.sqrt(ridge) * np.eye(contexts.shape[1])])
        wanted = np.concatenate([rewards[own] * root[:, 0], np.zeros(contexts.shape[1])])
        means[:, arm] = at @ np.linalg.lstsq(rows, wanted, rcond=None)[0]
    return means


class TestLinUCB:
    @pytest.mark.parametrize("batch", [1, 7, 300])
    def test_equals_weighted_least_squares(self, batch):
        contexts, arms, rewards = rounds()
        policy = daband.LinUCB(context_shape=(4,), n_arms=3, ridge=0.7, half_life=HALF_LIFE)
        for start in range(0, 300, batch):
            part = slice(start, start + batch)
            policy.update(contexts[part], arms[part], rewards[part])
        weights = 0.5 ** (np.arange(299, -1, -1) / HALF_LIFE)
        wanted = weighted_means(contexts, arms, rewards, weights, 0.7, 3, contexts[:20])
        np.testing.assert_allclose(policy.decide(contexts[:20]).mean, wanted, rtol=0, atol=1e-9)
        assert policy.counts.sum() == 300

    def test_times_are_respected_in_any_order(self):
        contexts, arms, rewards = rounds()
        times = np.random.default_rng(1).uniform(0, 400, 300)
        policy = daband.LinUCB(context_shape=(4,), n_arms=3, half_life=HALF_LIFE)
        for start in range(0, 300, 50):
            part = slice(start, start + 50)
            policy.update(contexts[part], arms[part], rewards[part], time=times[part])
        weights = 0.5 ** ((times.max() - times) / HALF_LIFE)
        wanted = weighted_means(contexts, arms, rewards, weights, 1.0, 3, contexts[:20])
        np.testing.assert_allclose(policy.decide(contexts[:20]).mean, wanted, rtol=0, atol=1e-9)

    def test_play_equals_select_and_update_in_turn(self):
        contexts, _, _ = rounds(60)
        table = np.random.default_rng(2).random((60, 3))
        played, single = (daband.LinUCB(context_shape=(4,), n_arms=3, half_life=10) for _ in range(2))
        arms = played.play(contexts, table).arm
        for row in range(60):
            arm = single.select(contexts[row : row + 1]).arm
            assert arm[0] == arms[row]
            single.update(contexts[row : row + 1], arm, table[row, arm])
        np.testing.assert_array_equal(played.decide(contexts).mean, single.decide(contexts).mean)

    def test_a_file_keeps_the_clock_and_an_export_decides_the_same(self, tmp_path):
        contexts, arms, rewards = rounds()
        policy = daband.LinUCB(context_shape=(4,), n_arms=3, half_life=HALF_LIFE)
        policy.update(contexts[:200], arms[:200], rewards[:200])
        policy.save(tmp_path / "p.safetensors")
        again = daband.load(tmp_path / "p.safetensors")
        for one in (policy, again):
            one.update(contexts[200:], arms[200:], rewards[200:])
        np.testing.assert_array_equal(policy.decide(contexts).mean, again.decide(contexts).mean)
        daband.export(policy, tmp_path / "p.daband")
        deployed = daband.load_deployed(tmp_path / "p.daband")
        np.testing.assert_array_equal(deployed.decide(contexts).arm, policy.decide(contexts).arm)

    def test_what_changed_is_found_sooner(self):
        contexts, arms, _ = rounds(600)
        truth = np.where(np.arange(600) < 500, contexts[:, 0] > 0, contexts[:, 0] < 0)
        rewards = (arms == truth).astype(float)
        forgetful, never = (daband.LinUCB(context_shape=(4,), n_arms=3, half_life=value) for value in (30, None))
        for policy in (forgetful, never):
            policy.update(contexts, arms, rewards)
        now = (contexts[:, 0] < 0).astype(int)
        right = [(policy.decide(contexts, rule="greedy").arm == now).mean() for policy in (forgetful, never)]
        assert right[0] > 0.8
        assert right[1] < 0.2

    @pytest.mark.parametrize("value", [0.0, -1.0, np.nan, "soon"])
    def test_what_is_no_half_life_is_refused(self, value):
        with pytest.raises(InvalidInput, match="half_life"):
            daband.LinUCB(context_shape=(4,), n_arms=3, half_life=value)

    def test_refusals(self):
        contexts, arms, rewards = rounds(10)
        with pytest.raises(InvalidInput, match="this one has none"):
            daband.LinUCB(context_shape=(4,), n_arms=3).update(contexts, arms, rewards, time=np.arange(10))
        with pytest.raises(InvalidInput, match="dual"):
            daband.LinUCB(context_shape=(4,), n_arms=3, half_life=5, form="dual")
        policy = daband.LinUCB(context_shape=(4,), n_arms=3, half_life=5)
        with pytest.raises(InvalidInput, match="time must be a finite number"):
            policy.update(contexts, arms, rewards, time=[1.0])
        assert not policy.can_discount
        assert policy.rounds_learned == 0


def test_a_network_draws_old_rounds_less_often():
    contexts, arms, rewards = rounds(256, dim=8)
    policy = daband.NeuralLinUCB(context_shape=(8,), n_arms=3, recipe="small", half_life=32, device="cpu")
    policy.prepare(contexts)
    for start in range(0, 256, 64):
        part = slice(start, start + 64)
        policy.update(contexts[part], arms[part], rewards[part])
    weights = policy.buffers.rounds[0].weights[:256].numpy()
    np.testing.assert_allclose(weights, 0.5 ** (np.arange(255, -1, -1) / 32))
    measured = policy.adapt(steps=2)
    assert "loss" in measured
    features = policy.latent(contexts)
    wanted = weighted_means(features, arms, rewards, weights, 1.0, 3, features)
    fitted = policy._experts[0].head.predict(features, arms)
    assert measured["refitted"]
    np.testing.assert_allclose(fitted, wanted[np.arange(256), arms], rtol=0, atol=1e-9)


class TestLogs:
    @pytest.fixture
    def log(self, tmp_path):
        contexts, arms, rewards = rounds(200, dim=2)
        when = np.datetime64("2026-01-01") + np.arange(200).astype("timedelta64[D]")
        columns = {"x": contexts[:, 0], "y": contexts[:, 1], "arm": arms, "reward": rewards, "when": when}
        frame = pl.DataFrame(columns).with_columns(propensity=1 / 3)
        frame.write_parquet(tmp_path / "log.parquet")
        return tmp_path / "log.parquet", contexts, arms, rewards

    def test_dates_count_days(self, log):
        path, contexts, arms, rewards = log
        policy = daband.LinUCB(context_shape=(2,), n_arms=3, half_life=30)
        daband.fit_log(policy, path, time="when", propensity_weighting="none")
        weights = 0.5 ** (np.arange(199, -1, -1) / 30)
        wanted = weighted_means(contexts, arms, rewards, weights, 1.0, 3, contexts)
        np.testing.assert_allclose(policy.decide(contexts).mean, wanted, rtol=0, atol=1e-9)

    def test_without_a_half_life_a_time_is_refused(self, log):
        with pytest.raises(InvalidInput, match="half_life"):
            daband.fit_log(daband.LinUCB(context_shape=(2,), n_arms=3), log[0], time="when")

    def test_the_command_line(self, log, tmp_path):
        from daband.cli._main import app

        out = tmp_path / "p.safetensors"
        asked = ["--arms", "3", "--half-life", "30", "--time", "when", "--context", "x,y", "--out", str(out)]
        result = CliRunner().invoke(app, ["fit-log", str(log[0]), *asked])
        assert result.exit_code == 0, result.output
        assert daband.load(out).half_life == 30
