"""The compiled loops and the numpy ones are the same functions."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from daband.linear import _kernels_numba as kernels_numba
from daband.linear import _kernels_numpy as kernels_numpy
from daband.linear._exploration import Exploration, _compute_normal_cdf, make_seeded_draw
from daband.linear._kernels import make_draw_key

KEY = np.uint64(12345678901234567890)


def test_uniform_numbers_are_the_same_to_the_bit_and_uniform():
    plain = kernels_numpy.draw_uniforms(KEY, 7, 20_000, 4)
    compiled = [
        [kernels_numba.draw_uniform(KEY, 7 + row, slot) for slot in range(4)] for row in range(200)
    ]
    np.testing.assert_array_equal(compiled, plain[:200])
    assert abs(plain.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(plain.T)[0, 1]) < 0.03
    assert abs(np.corrcoef(plain[:-1, 0], plain[1:, 0])[0, 1]) < 0.03
    assert len(np.unique(plain)) == plain.size
    assert (plain >= 0).all()
    assert (plain < 1).all()


def test_a_batch_of_uniforms_is_its_singles():
    whole = kernels_numpy.draw_uniforms(KEY, 0, 6, 3)
    parts = np.concatenate([kernels_numpy.draw_uniforms(KEY, i, 1, 3) for i in range(6)])
    np.testing.assert_array_equal(whole, parts)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("epsilon", [0.0, 0.3])
def test_choices_agree(epsilon, masked):
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 3, (500, 5)).astype(float)  # many ties
    available = rng.random((500, 5)) < 0.6 if masked else np.ones((500, 5), bool)
    available[np.arange(500), rng.integers(0, 5, 500)] = True
    draws = rng.random((500, 2))
    greedy = Exploration("greedy", epsilon=epsilon)
    nothing = np.zeros_like(scores)
    batch = greedy.decide(scores, nothing, lambda *_: draws, available if masked else None)
    for kernels in (kernels_numba, kernels_numpy):
        singles = [kernels.choose(scores[i], available[i], epsilon, *draws[i]) for i in range(500)]
        np.testing.assert_array_equal(batch.arm, [arm for arm, _ in singles])
        np.testing.assert_allclose(batch.propensity, [propensity for _, propensity in singles])
    for i in range(500):
        one = slice(i, i + 1)
        single = greedy.decide(
            scores[one], nothing[one], lambda *_, one=one: draws[one], available[one]
        )
        assert single.arm[0] == batch.arm[i]
        assert single.propensity[0] == pytest.approx(batch.propensity[i])
    shares = greedy.probabilities(scores, nothing, available=available)
    np.testing.assert_allclose(shares[np.arange(500), batch.arm], batch.propensity)


def test_ties_are_measured_in_the_unit_of_rewards():
    scores = np.tile([5.0 + 1e-9, 5.0, 4.0], (10, 1))
    drawn = lambda *_: np.full((10, 2), 0.9)  # noqa: E731
    greedy = Exploration("greedy")
    assert greedy.decide(scores, 0 * scores, drawn).arm.tolist() == [0] * 10
    assert greedy.decide(scores, 0 * scores, drawn, scaling=(0.0, 1e4)).arm.tolist() == [1] * 10
    assert (
        greedy.decide(scores[:2], 0 * scores[:2], drawn, scaling=(0.0, 1e4)).arm.tolist() == [1] * 2
    )
    with pytest.raises(ValueError, match="NaN"):
        greedy.decide(np.full((10, 3), np.nan), 0 * scores, drawn)


@pytest.mark.parametrize("has_covariances", [True, False])
@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize("model", ["disjoint", "shared"])
def test_episodes_agree(model, has_covariances, standardise):
    rng = np.random.default_rng(1)
    n = 20
    n_arms = 3
    dim = 4
    rows = n if model == "disjoint" else n * n_arms
    z = rng.uniform(-1, 1, (rows, dim))
    heads = n_arms if model == "disjoint" else 1
    products = np.broadcast_to(z, (heads, rows, dim)).copy()  # A = I
    covariance = np.einsum("hid,jd->hij", products, z)
    variance = np.einsum("hii->ih", covariance).reshape(n, n_arms).copy()
    rewards = rng.random((n, n_arms))
    draws = rng.random((n, 2))
    weights = rng.choice([0.0, 1.0, 2.5], n)
    out = []
    for kernels in (kernels_numba, kernels_numpy):
        mean = np.zeros((2, n, n_arms))
        var = variance.copy()
        arms = np.empty(n, np.int64)
        propensities = np.empty(n)
        running = np.zeros(5)
        scalings = np.empty((n, 2))
        kernels.play_episode(
            (covariance if has_covariances else products, z, has_covariances, mean, var),
            model == "shared",
            (np.full((n, n_arms), 0.5), np.ones((n, n_arms), bool), 0.1, draws),
            rewards,
            weights,
            running,
            standardise,
            (arms, propensities, scalings),
        )
        out.append((mean, var, arms, propensities, running, scalings))
        received = rewards[np.arange(n), arms]
        counted = weights > 0
        centre = np.average(received, weights=weights)
        np.testing.assert_allclose(running[:2], [weights.sum(), centre])
        np.testing.assert_allclose(running[2], weights @ (received - centre) ** 2)
        np.testing.assert_array_equal(
            running[3:], [received[counted].min(), received[counted].max()]
        )
    for compiled, plain in zip(*out, strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=1e-9, atol=1e-12)


def statistics_arrays(n_heads=3, dim=5, pending=4):
    """The arrays of ``PrimalRidge``, each inside a larger one whose margin shows writes
    beyond it.
    """
    shapes = {
        "inverse": (n_heads, dim, dim),
        "theta": (n_heads, 2, dim),
        "gram": (n_heads, dim, dim),
        "moment": (n_heads, 2, dim),
        "pending": (n_heads, pending, dim),
    }
    outer = {name: np.full((shape[0] + 4, *shape[1:]), 7.0) for name, shape in shapes.items()}
    arrays = {name: array[2:-2] for name, array in outer.items()}
    arrays["inverse"][:] = arrays["gram"][:] = np.eye(dim)
    for name in ("theta", "moment", "pending"):
        arrays[name][:] = 0.0
    for name in ("n_pending", "counts", "since_refresh"):
        outer[name] = np.full(n_heads + 4, 7)
        arrays[name] = outer[name][2:-2]
        arrays[name][:] = 0
    return outer, arrays


@pytest.mark.parametrize("dim", [1, 3, 4, 5, 11, 32])
def test_learned_rounds_and_decisions_agree(dim):
    rng = np.random.default_rng(dim)
    contexts = rng.normal(size=(20, dim))
    heads = rng.integers(0, 3, 20)
    targets = rng.random((20, 2))
    results = []
    for kernels in (kernels_numba, kernels_numpy):
        _, arrays = statistics_arrays(dim=dim)
        found = [
            kernels.learn_rounds(
                tuple(arrays.values()), contexts[part], heads[part], targets[part], 1e12
            )
            for part in (slice(0, 1), slice(1, 20))
        ]
        inverse = arrays["inverse"]
        np.testing.assert_array_equal(inverse, inverse.transpose(0, 2, 1))
        results.append([*arrays.values(), found])
    for compiled, plain in zip(*results, strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=1e-9, atol=1e-12)
    for head in range(3):
        z = contexts[heads == head]
        rows = arrays["pending"][head, : arrays["n_pending"][head]]
        np.testing.assert_allclose(
            arrays["gram"][head] + rows.T @ rows, np.eye(dim) + z.T @ z, atol=1e-12
        )
        np.testing.assert_allclose(
            np.linalg.inv(inverse[head]), np.eye(dim) + z.T @ z, rtol=1e-6, atol=1e-9
        )
    theta = arrays["theta"]
    context = rng.normal(size=(1, dim))
    available = np.array([[True, False, True]])
    scored = np.empty((2, 1, 3))
    arm = np.empty(1, np.int64)
    propensity = np.empty(1)
    kernels_numba.decide_one(
        inverse,
        theta,
        context,
        available,
        (4.0, 10.0),
        (0.7, 0.2, KEY),
        3,
        (scored, arm, propensity),
    )
    mean, bonus = scored
    np.testing.assert_allclose(
        mean[0], 4.0 + (theta[:, 0] - 4.0 * theta[:, 1]) @ context[0], rtol=1e-12
    )
    variances = [context[0] @ matrix @ context[0] for matrix in inverse]
    np.testing.assert_allclose(bonus[0], 10.0 * np.sqrt(variances), rtol=1e-12)
    expected = Exploration("ucb", 0.7, 0.2).decide(
        mean, bonus, make_seeded_draw(KEY, 3), available, scaling=(4.0, 10.0)
    )
    np.testing.assert_array_equal((expected.arm, expected.propensity), (arm, propensity))


@pytest.mark.parametrize("kernels", [kernels_numba, kernels_numpy])
@pytest.mark.parametrize(
    ("head", "n_pending"), [(-1, 0), (3, 0), (2**40, 0), (1, 5), (1, -1), (1, 2**40)]
)
def test_no_index_leads_outside_the_arrays(kernels, head, n_pending):
    outer, arrays = statistics_arrays()
    arrays["n_pending"][1] = n_pending
    before = {name: array.copy() for name, array in outer.items()}
    with pytest.raises(IndexError):
        kernels.learn_rounds(
            tuple(arrays.values()), np.ones((2, 5)), np.array([0, head]), np.ones((2, 2)), 1e12
        )
    assert (
        kernels.learn_rounds(
            tuple(arrays.values()), np.ones((1, 5)), np.array([0]), np.ones((1, 2)), 4.0
        )[0]
        == -1
    )
    for name, array in outer.items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("kernels", [kernels_numba, kernels_numpy])
def test_no_rounds_change_nothing(kernels):
    _, arrays = statistics_arrays()
    none = np.zeros((0, 5)), np.zeros(0, np.int64), np.zeros((0, 2))
    assert kernels.learn_rounds(tuple(arrays.values()), *none, 1e12) == (0.0, 0)


@pytest.mark.parametrize("kernels", [kernels_numba, kernels_numpy])
def test_sums_of_squares_overflow_without_a_warning(kernels):
    assert kernels.sum_of_squares(np.array([3.0, 4.0])) == 25.0
    assert kernels.sum_of_squares(np.array([1e200, 1e200])) == np.inf
    assert np.isnan(kernels.sum_of_squares(np.array([1.0, np.nan])))


def test_even_choices_are_even_among_the_available():
    available = np.tile([True, False, True, True], (6_000, 1))
    even = Exploration("greedy", epsilon=1.0)
    means = np.full((6_000, 4), 0.5)
    decision = even.decide(means, means, make_seeded_draw(make_draw_key(0), 5), available)
    np.testing.assert_allclose(decision.propensity, np.full(6_000, 1 / 3))
    np.testing.assert_allclose(
        np.bincount(decision.arm, minlength=4) / 6_000, [1 / 3, 0, 1 / 3, 1 / 3], atol=0.03
    )
    single = even.decide(
        means[:1], means[:1], make_seeded_draw(make_draw_key(0), 5 + 17), available[:1]
    )
    assert single.arm[0] == decision.arm[17]


def test_the_normal_distribution_function_without_scipy(monkeypatch):
    x = np.linspace(-12, 12, 60).reshape(6, 10)
    expected = stats.norm.cdf(x)
    np.testing.assert_allclose(_compute_normal_cdf(x), expected, rtol=1e-12)
    monkeypatch.delitem(sys.modules, "scipy.special")
    np.testing.assert_allclose(_compute_normal_cdf(x), expected, rtol=1e-12)


@pytest.mark.slow
def test_everything_works_without_numba():
    """On a machine without numba the same choices are made; here numba is hidden from a fresh
    interpreter.
    """
    script = """
import sys
sys.modules["numba"] = None  # importing it now fails
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "numba" else find(name, *rest)
import numpy as np, daband
from daband.linear._kernels import kernels_are_compiled
assert not kernels_are_compiled()
rng = np.random.default_rng(0)
policy = daband.LinUCB(context_shape=(4,), n_arms=3, alpha=0.5, seed=2)
print(policy.play(rng.normal(size=(40, 4)), rng.random((40, 3))).arm.tolist())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    import daband

    rng = np.random.default_rng(0)
    policy = daband.LinUCB(context_shape=(4,), n_arms=3, alpha=0.5, seed=2)
    assert done.stdout.strip() == str(
        policy.play(rng.normal(size=(40, 4)), rng.random((40, 3))).arm.tolist()
    )
