"""Off-policy evaluation: the estimators' maths, values of known policies, what is warned of and what is refused."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import daband
from daband.domains._contract import LoggedRounds
from daband.evaluation._cross_fitting import DensityRatio
from daband.evaluation._off_policy import ESTIMATORS
from daband.evaluation._off_policy_estimators import (
    MeanEstimate,
    choose_threshold,
    direct_method,
    doubly_robust,
    effective_sample_size,
    importance_weights,
    inverse_propensity,
    mean_estimate,
    normal_interval,
    self_normalised,
    switch_doubly_robust,
)
from daband.linear._reward_model import RewardModel, cross_fitted_rewards, flat_features, split_folds

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
K, D = 3, 4
SLOPES = np.random.default_rng(5).normal(size=(K, D)) / 4


def expected(x):
    return np.clip(0.5 + x @ SLOPES.T, 0.05, 0.95)


def logging(x):
    share = np.exp(x[:, :1] * np.array([1.0, 0.0, -1.0]))
    return 0.05 + (1 - 0.05 * K) * share / share.sum(axis=1, keepdims=True)


def valued(x):
    """The policy that is valued: mostly the best arm."""
    share = np.full((len(x), K), 0.1 / K)
    share[np.arange(len(x)), expected(x).argmax(axis=1)] += 0.9
    return share


def logged(n=2_000, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, D))
    share = logging(x)
    arm = (rng.random(n)[:, None] > share.cumsum(axis=1)).sum(axis=1).clip(max=K - 1)
    reward = (rng.random(n) < expected(x)[np.arange(n), arm]).astype(float)
    return x, arm, reward, share[np.arange(n), arm]


def value(x):
    return float((valued(x) * expected(x)).sum(axis=1).mean())


class TestEstimators:
    """Pure functions against formulas written out, and against obp."""

    weights = np.array([0.5, 2.0, 0.0, 1.0])
    rewards = np.array([1.0, 0.0, 1.0, 0.5])
    predicted = np.array([0.6, 0.2, 0.3, 0.5])
    direct = np.array([0.5, 0.4, 0.6, 0.3])

    def test_weights(self):
        found = importance_weights(np.array([[0.2, 0.8], [0.5, 0.5]]), np.array([1, 0]), np.array([0.4, 0.25]))
        np.testing.assert_allclose(found, [2.0, 2.0])

    def test_inverse_propensity(self):
        assert inverse_propensity(self.rewards, self.weights) == mean_estimate(np.array([0.5, 0.0, 0.0, 0.5]))

    def test_self_normalised(self):
        found = self_normalised(self.rewards, self.weights)
        assert found.value == pytest.approx(1.0 / 3.5)
        terms = self.weights * (self.rewards - found.value) / self.weights.mean()
        assert found.error == pytest.approx(terms.std(ddof=1) / 2)
        nothing = self_normalised(self.rewards, np.zeros(4))
        assert np.isnan(nothing.value)
        assert nothing.error == np.inf

    def test_doubly_robust(self):
        terms = self.direct + self.weights * (self.rewards - self.predicted)
        assert doubly_robust(self.rewards, self.weights, self.predicted, self.direct) == mean_estimate(terms)
        apart = doubly_robust(self.rewards, self.weights, self.predicted, self.direct[:3], paired=False)
        second = self.weights * (self.rewards - self.predicted)
        assert apart.value == pytest.approx(self.direct[:3].mean() + second.mean())
        assert apart.error**2 == pytest.approx(self.direct[:3].var(ddof=1) / 3 + second.var(ddof=1) / 4)

    def test_switch(self):
        arguments = (self.rewards, self.weights, self.predicted, self.direct)
        assert switch_doubly_robust(*arguments, threshold=np.inf) == doubly_robust(*arguments)
        assert switch_doubly_robust(*arguments, threshold=-1.0) == direct_method(self.direct)
        cut = np.array([0.5, 0.0, 0.0, 1.0])
        assert switch_doubly_robust(*arguments, threshold=1.0) == doubly_robust(
            self.rewards, cut, self.predicted, self.direct
        )

    def test_a_threshold_is_chosen_where_few_weights_are_huge(self):
        rng = np.random.default_rng(0)
        n = 2_000
        rewards, predicted, direct = rng.random(n), np.full(n, 0.5), np.full(n, 0.5)
        weights = np.ones(n)
        assert choose_threshold(rewards, weights, predicted, direct) == np.inf
        weights[0], rewards[0] = 1e5, 1.0  # its correction alone would be 25, more than any bias can be
        assert 1.0 <= choose_threshold(rewards, weights, predicted, direct) < 1e5
        weights[:1_200] = 1e5
        assert choose_threshold(rewards, weights, predicted, direct) > 1e5  # half of the rounds are kept, at least

    def test_values_are_those_of_obp(self):
        """On the log that obp's values were recorded for; and on obp's own data, by the record."""
        sys.path.insert(0, str(BENCHMARKS))
        try:
            study = importlib.import_module("off_policy")
        finally:
            sys.path.remove(str(BENCHMARKS))
        record = json.loads((BENCHMARKS / "records" / "off-policy.json").read_text())
        rows = {row["log"]: row for row in record["obp"]}
        assert len(rows) == 7
        for row in rows.values():
            assert row["daband"] == pytest.approx(row["obp"], abs=1e-6)
        assert study.our_values(study.generated_log()) == pytest.approx(rows["generated"]["obp"], abs=1e-6)

    def test_obp_itself(self):
        pytest.importorskip("obp")
        sys.path.insert(0, str(BENCHMARKS))
        try:
            study = importlib.import_module("off_policy")
        finally:
            sys.path.remove(str(BENCHMARKS))
        for log in (study.generated_log(), study.open_bandit_log("bts", "men")):
            assert study.our_values(log) == pytest.approx(study.obp_values(log), abs=1e-6)


class TestIntervals:
    def test_normal(self):
        low, high = normal_interval(MeanEstimate(2.0, 0.5), 0.95)
        assert (low, high) == pytest.approx((2.0 - 0.979982, 2.0 + 0.979982), abs=1e-5)

    def test_one_value_says_nothing_of_its_error(self):
        assert mean_estimate(np.array([0.3])).error == np.inf

    def test_effective_sample_size(self):
        assert effective_sample_size(np.full(7, 2.0)) == pytest.approx(7)
        assert effective_sample_size(np.array([1.0, 0.0, 0.0])) == pytest.approx(1)
        assert effective_sample_size(np.zeros(3)) == 0.0


class TestModels:
    def test_density_ratio_of_two_normals(self):
        """Against the true ratio: means of 0 and .5, deviations of 1 and .8."""
        rng = np.random.default_rng(0)
        source, target = rng.normal(size=(20_000, 2)), 0.5 + 0.8 * rng.normal(size=(10_000, 2))
        at = np.array([[0.0, 0.0], [0.5, 0.5], [1.0, -0.5]])
        true = np.exp(-0.5 * (((at - 0.5) / 0.8) ** 2 - at**2).sum(axis=1)) / 0.8**2
        np.testing.assert_allclose(DensityRatio(source, target)(at), true, rtol=0.1)

    def test_density_ratio_of_correlated_features(self):
        """Products of features are needed; with few contexts there are none, nor squares."""
        rng = np.random.default_rng(0)
        source = rng.normal(size=(8_000, 2))
        target = rng.normal(size=(8_000, 2)) @ np.linalg.cholesky([[1.0, 0.6], [0.6, 1.0]]).T
        at = np.array([[1.0, 1.0], [1.0, -1.0]])
        true = np.exp([0.5 * (2 - 2 / 1.6), 0.5 * (2 - 2 / 0.4)]) / np.sqrt(1 - 0.36)
        np.testing.assert_allclose(DensityRatio(source, target)(at), true, rtol=0.15)
        assert len(DensityRatio(source, target).coefficients) == 6
        assert len(DensityRatio(source[:110], target).coefficients) == 5
        assert len(DensityRatio(source[:90], target).coefficients) == 3

    def test_density_ratio_of_equals_is_one(self):
        x = np.random.default_rng(1).normal(size=(500, 3))
        np.testing.assert_allclose(DensityRatio(x, x)(x), 1.0, atol=1e-6)

    def test_domains_apart_and_constant_columns_stay_finite(self):
        x = np.random.default_rng(2).normal(size=(50, 3))
        x[:, 1] = 4.0
        ratio = DensityRatio(x, x + np.array([100.0, 0.0, 0.0]))(x)
        assert np.isfinite(ratio).all()
        assert (ratio >= 0).all()

    def test_reward_model_is_ridge_regression(self):
        x, arm, reward, _ = logged(200)
        model = RewardModel(x, arm, reward, n_arms=K + 1)
        z = np.concatenate([np.ones((200, 1)), (x - x.mean(axis=0)) / x.std(axis=0)], axis=1)
        rows = arm == 1
        theta = np.linalg.solve(z[rows].T @ z[rows] + np.eye(D + 1), z[rows].T @ (reward[rows] - reward.mean()))
        predicted = model.predict(x)
        np.testing.assert_allclose(predicted[:, 1], z @ theta + reward.mean(), atol=1e-10)
        np.testing.assert_allclose(predicted[:, K], reward.mean())  # an arm that was never pulled

    def test_reward_model_of_shared_arms(self):
        rng = np.random.default_rng(3)
        x, arm = rng.normal(size=(300, K, D)), rng.integers(0, K, 300)
        slope = rng.normal(size=D)
        model = RewardModel(x, arm, x[np.arange(300), arm] @ slope, n_arms=K)
        np.testing.assert_allclose(model.predict(x), x @ slope, atol=0.1)
        assert model.influence(x, np.full((300, K), 1 / K)).shape == (300,)

    def test_influence_is_what_a_reward_moves(self):
        """Weight times residual: against a finite difference."""
        x, arm, reward, _ = logged(60)
        shares = valued(x)

        def total(paid):
            model = RewardModel(x, arm, paid, n_arms=K)
            model._middle = 0.0  # the centre of shrinkage is not fitted
            return (shares * model.predict(x)).sum()

        model = RewardModel(x, arm, reward - reward.mean(), n_arms=K)
        nudged = reward - reward.mean()
        nudged[[4, 9]] += np.array([1e-4, -1e-4])  # the mean stays
        moved = total(nudged) - total(reward - reward.mean())
        residuals = reward - reward.mean() - model.predict(x)[np.arange(60), arm]
        weights = model.influence(x, shares) / residuals
        assert moved == pytest.approx((weights[4] - weights[9]) * 1e-4, rel=1e-6)

    def test_folds_hold_out_every_row_once(self):
        held = [out for fit, out in split_folds(23, 5, 0) if not set(fit) & set(out)]
        assert sorted(np.concatenate(held)) == list(range(23))
        assert list(split_folds(1, 5, 0)) == []

    def test_cross_fitting_hides_a_rounds_own_reward(self):
        x, arm, reward, _ = logged(100)
        before = cross_fitted_rewards(x, arm, reward, n_arms=K)
        reward[7] += 5.0
        after = cross_fitted_rewards(x, arm, reward, n_arms=K)
        np.testing.assert_array_equal(before[7], after[7])
        assert np.abs(after - before).max() > 0.01

    def test_long_contexts_are_reduced(self):
        rng = np.random.default_rng(4)
        images, others = rng.integers(0, 255, (80, 3, 16, 16), np.uint8), rng.random((90, 3, 16, 16))
        features, more = flat_features(images, others)
        assert features.shape == (80, 64)
        assert more.shape == (90, 64)


class TestValues:
    """Known policies on simulated logs; seeds are fixed and tolerances are four standard errors or more."""

    @pytest.mark.parametrize("estimator", ESTIMATORS)
    def test_in_the_domain_of_the_log(self, estimator):
        found = daband.evaluate_log(valued, logged(8_000), estimator)
        assert found.value == pytest.approx(value(logged(50_000, 9)[0]), abs=0.06)
        assert found.low < found.value < found.high
        assert found.rounds == 8_000
        assert json.loads(json.dumps(found.as_dict()))["estimator"] == estimator

    @pytest.mark.parametrize("estimator", ESTIMATORS)
    def test_in_a_target(self, estimator):
        """Arm 0 pays more in the target than in the source, by far more than the tolerance."""

        def first_arm(x):
            return np.tile([0.9, 0.05, 0.05], (len(x), 1))

        def worth(x):
            return float((first_arm(x) * expected(x)).sum(axis=1).mean())

        shift = 0.8 * SLOPES[0] / np.linalg.norm(SLOPES[0])
        target = np.random.default_rng(1).normal(size=(4_000, D)) + shift
        truth = worth(np.random.default_rng(2).normal(size=(50_000, D)) + shift)
        here = daband.evaluate_log(first_arm, logged(8_000), estimator).value
        found = daband.evaluate_log(first_arm, logged(8_000), estimator, target)
        assert truth - here > 0.13
        assert found.value == pytest.approx(truth, abs=0.09)
        assert found.domain == "target"

    def test_a_log_of_the_policy_itself_is_a_mean(self):
        x, arm, reward, _ = logged(500)
        share = logging(x)
        own = (x, arm, reward, share[np.arange(500), arm])
        for estimator in ("ips", "snips"):
            found = daband.evaluate_log(logging, own, estimator)
            assert found.value == pytest.approx(reward.mean())
            assert found.effective_sample_size == pytest.approx(500)

    def test_nothing_leaves_the_range_of_the_rewards(self):
        """Target contexts are far from those of the log, where a regression line predicts any reward."""
        x, arm, reward, p = logged(1_000)
        paid = 20.0 + 70.0 * reward
        with np.errstate(over="ignore"):
            found = daband.evaluate_log(valued, (x, arm, paid, p), "dm", 30.0 * x[:500])
        assert 20.0 <= found.low <= found.value <= found.high <= 90.0
        near = daband.evaluate_log(
            lambda rows: np.tile([0.0, 0.0, 1.0], (len(rows), 1)), (x[:60], arm[:60], paid[:60], p[:60])
        )
        assert 20.0 <= near.low < near.value < near.high <= 90.0

    def test_a_wrong_reward_model_is_corrected(self):
        class Wrong:
            def fit(self, X, y): ...

            def predict(self, X):
                return np.full(len(X), 3.0)

        truth = value(logged(50_000, 9)[0])
        log = logged(8_000)
        assert daband.evaluate_log(valued, log, "dm", reward_model=Wrong()).value == pytest.approx(3.0)
        assert daband.evaluate_log(valued, log, "dr", reward_model=Wrong()).value == pytest.approx(truth, abs=0.3)

    def test_a_regressor_of_scikit_learn(self):
        from sklearn.tree import DecisionTreeRegressor

        found = daband.evaluate_log(valued, logged(1_000), "dr", reward_model=DecisionTreeRegressor(max_depth=3))
        assert found.low < value(logged(50_000, 9)[0]) < found.high

    def test_policies_forms_of_logs_and_rules(self):
        x, arm, reward, p = logged(600)
        pair = daband.domains.from_log(source=(x, arm, reward, p), source_test=0.5, target=x + 0.1, n_arms=K)
        policy = daband.LinUCB(context_shape=(D,), n_arms=K, epsilon=0.2)
        daband.train(policy, source=pair.source, episodes=4)
        before = policy.decide(x).mean
        rows = np.arange(len(pair.source_test))
        read = (pair.source_test.read(rows), *pair.source_test.read_log(rows))
        by_domain = daband.evaluate_log(policy, pair.source_test)
        assert by_domain == daband.evaluate_log(policy, read) == daband.evaluate_log(policy, LoggedRounds(*read))
        assert by_domain.domain == "source"
        assert daband.evaluate_log(policy, pair.source_test, target=pair.target).domain == "target"
        greedy = daband.evaluate_log(policy, pair.source_test, "ips", rule="greedy")
        by_hand = policy.decide(read[0], rule="greedy").arm == read[1]
        assert greedy.value == pytest.approx(np.mean(by_hand * read[2] / read[3]))
        np.testing.assert_array_equal(policy.decide(x).mean, before)

    @pytest.mark.parametrize("target", [None, "other"])
    def test_shared_arms(self, target):
        rng = np.random.default_rng(6)
        x, arm, reward = rng.normal(size=(200, K, D)), rng.integers(0, K, 200), rng.random(200)
        policy = daband.LinUCB(context_shape=(D,), n_arms=K, arms="shared", epsilon=0.3)
        policy.update(x, arm, reward)
        other = None if target is None else rng.normal(size=(100, K, D))
        for estimator in ESTIMATORS:
            found = daband.evaluate_log(policy, (x, arm, reward, np.full(200, 1 / K)), estimator, other)
            assert 0.2 < found.value < 0.8

    def test_a_neural_policy_and_images(self):
        rng = np.random.default_rng(7)
        x, arm, reward = rng.integers(0, 255, (60, 1, 8, 8), np.uint8), rng.integers(0, K, 60), rng.random(60)
        policy = daband.DABand(context_shape=(1, 8, 8), n_arms=K, recipe="small", epsilon=0.5, device="cpu")
        log = (x, arm, reward, np.full(60, 1 / K))
        assert np.isfinite(daband.evaluate_log(policy, log, target=x[::2]).value)


class TestWarnings:
    def said(self, policy, log, **settings):
        return " ".join(daband.evaluate_log(policy, log, **settings).warnings)

    def test_none_where_all_is_well(self):
        assert daband.evaluate_log(valued, logged()).warnings == ()

    def test_small_effective_sample(self):
        assert "effective sample is small" in self.said(valued, logged(150))

    def test_an_arm_that_was_never_pulled(self):
        x, arm, reward, p = logged()
        arm = np.where(arm == 2, 1, arm)
        assert "never chose arm 2" in self.said(valued, (x, arm, reward, p))

    def test_propensities_of_another_log(self):
        x, arm, reward, p = logged()
        assert "weights average" in self.said(valued, (x, arm, reward, np.sqrt(p)))

    def test_one_round_that_decides(self):
        x, arm, reward, p = logged()
        arm[3] = valued(x[3:4]).argmax()
        p[3] = 1e-6
        assert "one round (row 3)" in self.said(valued, (x, arm, reward, p))

    def test_the_direct_method_trusts_its_model(self):
        assert "'dm' trusts its reward model" in self.said(valued, logged(), estimator="dm")

    def test_switching_leaves_weight_to_the_model(self):
        x, arm, reward, p = logged()
        arm[3], p[3] = valued(x[3:4]).argmax(), 1e-6
        assert "'switch-dr' leaves" in self.said(valued, (x, arm, reward, p), estimator="switch-dr")

    def test_a_target_unlike_the_log(self):
        x = logged()[0]
        assert "few contexts like the target's" in self.said(valued, logged(), target=x + 6.0)


class TestBadInput:
    x, arm, reward, p = logged(40)

    def refused(self, match, policy=valued, log=None, *arguments, **settings):
        with pytest.raises(daband.InvalidInput, match=match):
            daband.evaluate_log(
                policy, (self.x, self.arm, self.reward, self.p) if log is None else log, *arguments, **settings
            )

    @pytest.mark.parametrize("bad", [0.0, 1.5, -1.0, np.nan])
    def test_a_propensity(self, bad):
        p = self.p.copy()
        p[11] = bad
        self.refused("log: propensity must lie in.*row 11", log=(self.x, self.arm, self.reward, p))

    @pytest.mark.parametrize("estimator", [name for name in ESTIMATORS if name != "dm"])
    def test_no_propensities(self, estimator):
        self.refused("log has no propensities", valued, (self.x, self.arm, self.reward, None), estimator)

    def test_the_direct_method_needs_none(self):
        found = daband.evaluate_log(valued, (self.x, self.arm, self.reward, None), "dm")
        assert np.isfinite(found.value)

    def test_arms(self):
        for bad in (K, -1):
            arm = self.arm.copy()
            arm[6] = bad
            self.refused(f"arm {bad} in row 6", log=(self.x, arm, self.reward, self.p))
        self.refused("arm must hold integers", log=(self.x, self.arm + 0.5, self.reward, self.p))

    def test_rewards_and_contexts(self):
        reward = self.reward.copy()
        reward[5] = np.inf
        self.refused("reward in row 5", log=(self.x, self.arm, reward, self.p))
        x = self.x.copy()
        x[8, 1] = np.nan
        self.refused("NaN.*row 8", log=(x, self.arm, self.reward, self.p))
        self.refused("shape", log=(self.x, self.arm, self.reward[:-1], self.p))

    def test_an_empty_log(self):
        self.refused("log is empty", log=(self.x[:0], self.arm[:0], self.reward[:0], self.p[:0]))

    def test_what_is_no_log(self):
        for bad in (None, 3, (self.x, self.arm), {"contexts": self.x}):
            with pytest.raises(daband.InvalidInput, match="log must be"):
                daband.evaluate_log(valued, bad)
        pair = daband.domains.from_log(source=(self.x, self.arm, self.reward, self.p), target=self.x, n_arms=K)
        self.refused("log has 3 arms, the policy 2", daband.Random(context_shape=(D,), n_arms=2), pair.source)

    def test_too_few_rounds_to_fit(self):
        self.refused("at least 10 rows", log=(self.x[:6], self.arm[:6], self.reward[:6], self.p[:6]))

    def test_settings(self):
        self.refused("estimator must be ", estimator="cips")
        for bad in (0.0, 1.0, "95%", np.nan):
            self.refused("confidence", confidence=bad)
        self.refused("reward_model must have fit and predict", reward_model=3)
        self.refused("policy must be", policy=3)
        self.refused("rule is for a daband policy", rule="greedy")

    def test_targets(self):
        self.refused("target must hold contexts of the log's shape", target=self.x[:, :2])
        self.refused("target must hold contexts of the log's shape", target=self.x[:0])
        spoiled = self.x.copy()
        spoiled[2, 0] = np.inf
        self.refused("target has a NaN or infinite value, first in row 2", target=spoiled)
        pair = daband.domains.from_log(source=(self.x, self.arm, self.reward, self.p), target=self.x, n_arms=K)
        self.refused("target must be contexts alone", target=pair.source)

    def test_probabilities_of_a_function(self):
        self.refused("sum to 1, those of row 0", policy=lambda x: np.full((len(x), K), 0.5))
        self.refused("sum to 1", policy=lambda x: np.tile([1.5, -0.5, 0.0], (len(x), 1)))
        self.refused(r"shape \(B, K\)", policy=lambda x: np.ones(len(x)))
        self.refused("one row per context", policy=lambda x: np.full((2, K), 1 / K))


def test_support_that_is_lost_beside_an_unseen_arm_is_told():
    """Arm 2 is never logged; and where x > 0 the log never plays arm 1, which the policy always takes there."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 1))
    arm = np.where(x[:, 0] > 0, 0, rng.integers(0, 2, len(x)))
    propensity = np.where(x[:, 0] > 0, 1.0, 0.5)
    log = (x, arm, rng.normal(size=len(x)), propensity)

    def policy(contexts):
        return np.tile([0.0, 0.95, 0.05], (len(contexts), 1))

    warnings = daband.evaluate_log(policy, log, estimator="snips").warnings
    assert any("never chose arm 2" in text for text in warnings)
    assert any("instead of 0.95" in text and "where the log never does" in text for text in warnings)

    even = (x, rng.integers(0, 2, len(x)), rng.normal(size=len(x)), np.full(len(x), 0.5))
    warnings = daband.evaluate_log(policy, even, estimator="snips").warnings
    assert not any("instead of" in text for text in warnings)  # the missing 5% are told once


def test_propensities_that_make_weights_without_end_and_wrong_seeds_are_refused():
    log = ([[0.0], [1.0]] * 20, [0, 1] * 20, [0.0, 1.0] * 20, [0.5] * 39 + [1e-310])

    def policy(contexts):
        return [[0.5, 0.5]] * len(contexts)

    with pytest.raises(daband.InvalidInput, match=r"the propensity 1e-310 makes a weight of inf"):
        daband.evaluate_log(policy, log)
    with pytest.raises(daband.InvalidInput, match="seed must be a whole number >= 0, got -1"):
        daband.evaluate_log(policy, log, seed=-1)
