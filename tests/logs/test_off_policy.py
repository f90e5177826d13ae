"""Off-policy evaluation: the estimator's maths, values of known policies, what is warned of and
what is refused.
"""

import json

import numpy as np
import pytest

import daband
from daband.logs._reward_sums import RewardSums
from daband.rounds._rounds import Rounds

K = 3
D = 4
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


def even(x):
    return np.full((len(x), K), 1 / K)


def first_arm(x):
    return np.tile([1.0, 0.0, 0.0], (len(x), 1))


class TestEstimators:
    """Against formulas written out."""


class TestModels:
    def model(self, x, arm, reward, n_arms=K, folds=2):
        """The model of one fold, fitted to all rounds, which are in the other."""
        sums = RewardSums(folds, n_arms, x, float(reward.mean()))
        sums.add(x, np.ones(len(arm), np.int64), arm, reward)
        return sums.fit([0])

    def test_reward_model_is_ridge_regression(self):
        """Scikit-learn's, with the penalty of the smallest generalised cross-validation error."""
        from sklearn.linear_model import Ridge

        x, arm, reward, _ = logged(300)
        rows = arm == 1
        z = (x - x.mean(axis=0)) / x.std(axis=0)
        errors = []
        fits = []
        for penalty in np.geomspace(1e-3, 30.0, 16):
            fit = Ridge(penalty * rows.sum()).fit(z[rows], reward[rows])
            centred = z[rows] - z[rows].mean(axis=0)
            hat = centred @ np.linalg.solve(
                centred.T @ centred + penalty * rows.sum() * np.eye(D), centred.T
            )
            left = 1 - (1 + np.trace(hat)) / rows.sum()
            errors.append(np.mean((fit.predict(z[rows]) - reward[rows]) ** 2) / left**2)
            fits.append(fit)
        best = fits[int(np.argmin(errors))].predict(z)
        predicted = self.model(x, arm, reward, K + 1).predict(x)
        # one more round with the mean of all
        shrunk = (reward.mean() - reward[rows].mean()) / (rows.sum() + 1)
        np.testing.assert_allclose(predicted[:, 1], np.clip(best + shrunk, 0.0, 1.0), atol=1e-9)
        np.testing.assert_allclose(predicted[:, K], reward.mean())  # an arm that was never pulled


class TestValues:
    """Known policies on simulated logs; seeds are fixed and tolerances are four standard errors or
    more.
    """

    def test_in_the_domain_of_the_log(self):
        found = daband.evaluate_log(valued, logged(8_000))
        assert found.value == pytest.approx(value(logged(50_000, 9)[0]), abs=0.06)
        assert found.low < found.value < found.high
        assert found.rounds == 8_000
        assert json.loads(json.dumps(found.as_dict()))["rounds"] == 8000

    def test_in_a_target(self):
        """Arm 0 pays more in the target than in the source, by far more than the tolerance."""

        def mostly_first(x):
            return np.tile([0.9, 0.05, 0.05], (len(x), 1))

        def worth(x):
            return float((mostly_first(x) * expected(x)).sum(axis=1).mean())

        shift = 0.8 * SLOPES[0] / np.linalg.norm(SLOPES[0])
        target = np.random.default_rng(1).normal(size=(4_000, D)) + shift
        truth = worth(np.random.default_rng(2).normal(size=(50_000, D)) + shift)
        here = daband.evaluate_log(mostly_first, logged(8_000)).value
        found = daband.evaluate_log(mostly_first, logged(8_000), target)
        assert truth - here > 0.13
        assert found.value == pytest.approx(truth, abs=0.09)
        assert found.domain == "target"

    def test_a_log_of_the_policy_itself_is_a_mean(self):
        x, arm, reward, _ = logged(500)
        share = logging(x)
        own = (x, arm, reward, share[np.arange(500), arm])
        found = daband.evaluate_log(logging, own)
        assert found.value == pytest.approx(reward.mean(), abs=0.01)
        assert found.effective_sample_size == pytest.approx(500)

    def test_estimated_propensities(self):
        """A log whose propensities were lost: the value is close, and the estimate reports that
        they are estimated.
        """
        x, arm, reward, _ = logged(8_000)
        found = daband.evaluate_log(valued, (x, arm, reward, None))
        assert found.value == pytest.approx(value(logged(50_000, 9)[0]), abs=0.06)
        assert any("estimated by a logistic model" in text for text in found.warnings)

    def test_policies_forms_of_logs_and_rules(self):
        x, arm, reward, p = logged(600)
        pair = daband.domains.from_log(
            source=(x, arm, reward, p), source_test=0.5, target=x + 0.1, n_arms=K
        )
        policy = daband.LinUCB(context_shape=(D,), n_arms=K, epsilon=0.2)
        daband.train(policy, source=pair.source, episodes=4)
        before = policy.decide(x).mean
        rows = np.arange(len(pair.source_test))
        read = (pair.source_test.read(rows), *pair.source_test.read_log(rows))
        by_domain = daband.evaluate_log(policy, pair.source_test)
        assert (
            by_domain
            == daband.evaluate_log(policy, read)
            == daband.evaluate_log(policy, Rounds(*read))
        )
        assert by_domain.domain == "source"
        assert daband.evaluate_log(policy, pair.source_test, target=pair.target).domain == "target"
        greedy = daband.evaluate_log(policy, pair.source_test, rule="greedy")
        by_hand = daband.evaluate_log(
            lambda x: np.eye(K)[policy.decide(x, rule="greedy").arm], read
        )
        assert greedy.value == pytest.approx(by_hand.value)
        np.testing.assert_array_equal(policy.decide(x).mean, before)

    @pytest.mark.parametrize("target", [None, "other"])
    def test_shared_arms(self, target):
        rng = np.random.default_rng(6)
        x = rng.normal(size=(200, K, D))
        arm = rng.integers(0, K, 200)
        reward = rng.random(200)
        policy = daband.LinUCB(context_shape=(D,), n_arms=K, arms="shared", epsilon=0.3)
        policy.update(x, arm, reward)
        other = None if target is None else rng.normal(size=(100, K, D))
        found = daband.evaluate_log(policy, (x, arm, reward, np.full(200, 1 / K)), other)
        assert 0.2 < found.value < 0.8

    def test_a_neural_policy_and_images(self):
        rng = np.random.default_rng(7)
        x = rng.integers(0, 255, (60, 1, 8, 8), np.uint8)
        arm = rng.integers(0, K, 60)
        reward = rng.random(60)
        policy = daband.DABand(
            context_shape=(1, 8, 8), n_arms=K, recipe="small", epsilon=0.5, device="cpu"
        )
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
        assert "one round (row 3) has" in self.said(valued, (x, arm, reward, p))

    @pytest.mark.parametrize(("every", "is_warned"), [(200, False), (900, True), (3000, True)])
    def test_few_rewards(self, every, is_warned):
        """Warn if fewer than 3.7 rewards differ from the usual one: with fewer expected, a log has
        none in more than 2.5%.
        """
        x, arm, _, _ = logged()
        buys = np.zeros(2_000)
        buys[every - 1 :: every] = 30.0
        log = (x, arm, buys, np.full(2_000, 1 / K))
        assert ("have another reward than 0" in self.said(even, log)) == is_warned

    def test_one_reward_that_decides_makes_the_interval_wide(self):
        """A warning would say nothing: such intervals contain the value more often than others."""
        x, arm, reward, p = logged()
        usual = daband.evaluate_log(first_arm, (x, arm, reward, p))
        arm[3] = 0
        reward[3] = 500.0
        found = daband.evaluate_log(first_arm, (x, arm, reward, p))
        assert found.warnings == ()
        assert found.low < usual.low
        assert found.high - found.low > 4.0 * found.error > 50.0 * usual.error

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("kind", "n"), [("lognormal", 1000), ("baskets", 1000), ("baskets", 5000), ("0.3%", 5000)]
    )
    def test_skewed_rewards_are_covered_and_seldom_warned_of(self, kind, n):
        """Before: warnings in 93 to 100% of these logs, and a coverage of 0.92 for baskets."""
        found = []
        for seed in range(200):
            rng = np.random.default_rng(seed)
            x = rng.normal(size=(n, 2))
            arm = rng.integers(0, K, n)
            reward = rng.lognormal(0.0, 1.0, n)
            frequency = {"lognormal": 1.0, "baskets": 50 / n, "0.3%": 0.003}[kind]
            reward = 1.0 * (rng.random(n) < frequency) * (1.0 if kind == "0.3%" else reward)
            truth = frequency * (1.0 if kind == "0.3%" else np.exp(0.5))
            estimate = daband.evaluate_log(first_arm, (x, arm, reward, np.full(n, 1 / K)))
            found.append((estimate.low <= truth <= estimate.high, bool(estimate.warnings)))
        covered, warned = np.mean(found, axis=0)
        assert covered >= 0.93
        assert warned <= 0.5 * (kind == "0.3%") + 0.02

    def test_a_target_unlike_the_log(self):
        x = logged()[0]
        assert "few contexts like the target's" in self.said(valued, logged(), target=x + 6.0)


class TestBadInput:
    x, arm, reward, p = logged(40)

    def refused(self, match, policy=valued, log=None, *arguments, **settings):
        with pytest.raises(daband.InvalidInput, match=match):
            daband.evaluate_log(
                policy,
                (self.x, self.arm, self.reward, self.p) if log is None else log,
                *arguments,
                **settings,
            )

    @pytest.mark.parametrize("bad", [0.0, 1.5, -1.0, np.nan])
    def test_a_propensity(self, bad):
        p = self.p.copy()
        p[11] = bad
        self.refused("log: propensity .*row 11 ", log=(self.x, self.arm, self.reward, p))

    def test_arms(self):
        for bad in (K, -1):
            arm = self.arm.copy()
            arm[6] = bad
            self.refused(rf"arm {bad} .*row 6 .*0\.\.2", log=(self.x, arm, self.reward, self.p))
        self.refused("arm .*float64", log=(self.x, self.arm + 0.5, self.reward, self.p))

    def test_rewards_and_contexts(self):
        reward = self.reward.copy()
        reward[5] = np.inf
        self.refused("reward .*row 5", log=(self.x, self.arm, reward, self.p))
        x = self.x.copy()
        x[8, 1] = np.nan
        self.refused("NaN.*row 8", log=(x, self.arm, self.reward, self.p))
        self.refused(
            r"reward .*\(40,\), .*\(39,\)", log=(self.x, self.arm, self.reward[:-1], self.p)
        )

    def test_an_empty_log(self):
        self.refused(
            r"log contexts .*\(0, 4\)",
            log=(self.x[:0], self.arm[:0], self.reward[:0], self.p[:0]),
        )

    def test_what_is_no_log(self):
        for bad in (None, 3, (self.x, self.arm), {"contexts": self.x}):
            with pytest.raises(daband.InvalidInput, match=r"^log "):
                daband.evaluate_log(valued, bad)
        pair = daband.domains.from_log(
            source=(self.x, self.arm, self.reward, self.p), target=self.x, n_arms=K
        )
        self.refused(
            "log .*3 .*policy .*2",
            daband.Random(context_shape=(D,), n_arms=2),
            pair.source,
        )

    def test_too_few_rounds_to_fit(self):
        self.refused(
            "log .*target .*10 .*6$", log=(self.x[:6], self.arm[:6], self.reward[:6], self.p[:6])
        )

    def test_settings(self):
        for bad in (0.0, 1.0, "95%", np.nan):
            self.refused("confidence", confidence=bad)
        self.refused("policy .*int$", policy=3)
        self.refused("^rule ", rule="greedy")

    def test_targets(self):
        self.refused(r"target .*\(m, 4\), .*\(40, 2\)", target=self.x[:, :2])
        self.refused(r"target .*\(m, 4\), .*\(0, 4\)", target=self.x[:0])
        spoiled = self.x.copy()
        spoiled[2, 0] = np.inf
        self.refused("target .*NaN .*row 2$", target=spoiled)
        pair = daband.domains.from_log(
            source=(self.x, self.arm, self.reward, self.p), target=self.x, n_arms=K
        )
        self.refused(r"target .*pair\.target", target=pair.source)

    def test_probabilities_of_a_function(self):
        self.refused("policy .*sum 1, .*row 0 ", policy=lambda x: np.full((len(x), K), 0.5))
        self.refused(
            "policy .*sum 1, .*row 0 ", policy=lambda x: np.tile([1.5, -0.5, 0.0], (len(x), 1))
        )
        self.refused(r"shape \(B, K\)", policy=lambda x: np.ones(len(x)))
        self.refused("one row per context", policy=lambda x: np.full((2, K), 1 / K))


def test_support_that_is_lost_beside_an_unseen_arm_is_told():
    """Arm 2 is never logged; and where x > 0 the log never plays arm 1, which the policy always
    takes there.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 1))
    arm = np.where(x[:, 0] > 0, 0, rng.integers(0, 2, len(x)))
    propensity = np.where(x[:, 0] > 0, 1.0, 0.5)
    log = (x, arm, rng.normal(size=len(x)), propensity)

    def policy(contexts):
        return np.tile([0.0, 0.95, 0.05], (len(contexts), 1))

    warnings = daband.evaluate_log(policy, log).warnings
    assert any("never chose arm 2" in text for text in warnings)
    assert any(
        "instead of 0.95" in text and "where the log never does" in text for text in warnings
    )

    even = (x, rng.integers(0, 2, len(x)), rng.normal(size=len(x)), np.full(len(x), 0.5))
    warnings = daband.evaluate_log(policy, even).warnings
    assert not any("instead of" in text for text in warnings)  # the missing 5% are told once


def test_a_shift_that_the_components_of_the_log_lack_is_told():
    """Components of the log alone have no part of column 299, which hardly varies there."""
    rng = np.random.default_rng(0)
    contexts, target = rng.normal(size=(2, 1_000, 300))
    contexts[:, 299] *= 0.1
    target[:, 299] += 8.0
    arms = rng.integers(0, 2, 1_000)
    log = (contexts, arms, contexts[:, 299] * arms, np.full(1_000, 0.5))
    warnings = daband.evaluate_log(lambda x: np.tile([0.0, 1.0], (len(x), 1)), log, target).warnings
    assert any("the log has few contexts like the target's" in text for text in warnings)


def test_propensities_that_make_weights_without_end_and_wrong_seeds_are_refused():
    log = ([[0.0], [1.0]] * 20, [0, 1] * 20, [0.0, 1.0] * 20, [0.5] * 39 + [1e-310])

    def policy(contexts):
        return [[0.5, 0.5]] * len(contexts)

    with pytest.raises(daband.InvalidInput, match=r"propensity .*1e-310"):
        daband.evaluate_log(policy, log)
    with pytest.raises(daband.InvalidInput, match=r"seed .*-1"):
        daband.evaluate_log(policy, log, seed=-1)
