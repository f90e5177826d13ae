"""The compiled loops and the numpy ones are the same functions."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from daband.linear import _kernels_numba as kernels_numba
from daband.linear import _kernels_numpy as kernels_numpy
from daband.linear._exploration import Exploration, seeded_draws
from daband.linear._kernels import draw_key

KEY = np.uint64(12345678901234567890)


def test_uniform_numbers_are_the_same_to_the_bit_and_uniform():
    compiled, plain = (d.uniforms(KEY, 7, 20_000, 4) for d in (kernels_numba, kernels_numpy))
    np.testing.assert_array_equal(compiled, plain)
    assert abs(plain.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(plain.T)[0, 1]) < 0.03
    assert abs(np.corrcoef(plain[:-1, 0], plain[1:, 0])[0, 1]) < 0.03
    assert len(np.unique(plain)) == plain.size
    assert (plain >= 0).all()
    assert (plain < 1).all()


def test_a_batch_of_uniforms_is_its_singles():
    whole = kernels_numpy.uniforms(KEY, 0, 6, 3)
    parts = np.concatenate([kernels_numpy.uniforms(KEY, i, 1, 3) for i in range(6)])
    np.testing.assert_array_equal(whole, parts)


@pytest.mark.parametrize("epsilon", [0.0, 0.3])
def test_choices_agree(epsilon):
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 3, (500, 5)).astype(float)  # many ties
    available = rng.random((500, 5)) < 0.6
    available[np.arange(500), rng.integers(0, 5, 500)] = True
    draws = rng.random((500, 2))
    arms, propensities = np.empty(500, np.int64), np.empty(500)
    kernels_numba.choose_batch(scores, available, epsilon, draws, arms, propensities)
    for kernels in (kernels_numba, kernels_numpy):
        singles = [kernels.choose(scores[i], available[i], epsilon, *draws[i]) for i in range(500)]
        np.testing.assert_array_equal(arms, [arm for arm, _ in singles])
        np.testing.assert_allclose(propensities, [propensity for _, propensity in singles])
    greedy = Exploration("greedy", epsilon=epsilon)
    singles = [
        greedy.choose(
            scores[i : i + 1], 0 * scores[:1], lambda *_, i=i: draws[i : i + 1], available=available[i : i + 1]
        )
        for i in range(500)
    ]
    np.testing.assert_array_equal(arms, [arm[0] for arm, _ in singles])
    np.testing.assert_allclose(propensities, [propensity[0] for _, propensity in singles])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gathered_columns_agree_and_indices_are_checked(dtype):
    rng = np.random.default_rng(4)
    columns, order, factor = rng.normal(size=(3, 50)).astype(dtype), rng.permutation(50)[:20], rng.random(20)
    results = [np.empty((3, 20)) for _ in range(2)]
    for kernels, out in zip((kernels_numba, kernels_numpy), results, strict=True):
        kernels.gather_columns(columns, order, factor, out)
    np.testing.assert_array_equal(*results)
    np.testing.assert_array_equal(results[0], columns[:, order].astype(np.float64) * factor)
    for wrong in (order + 45, order - 50, order[:5]):
        with pytest.raises(ValueError, match="must fit columns"):
            kernels_numba.gather_columns(columns, wrong, factor, results[0])


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize("model", ["disjoint", "shared"])
def test_episodes_agree(model, direct, standardise):
    rng = np.random.default_rng(1)
    n, n_arms, dim = 20, 3, 4
    rows = n if model == "disjoint" else n * n_arms
    z = rng.uniform(-1, 1, (rows, dim))
    heads = n_arms if model == "disjoint" else 1
    products = np.broadcast_to(z, (heads, rows, dim)).copy()  # A = I
    covariance = np.einsum("hid,jd->hij", products, z)
    variance = np.einsum("hii->ih", covariance).reshape(n, n_arms).copy()
    rewards, draws, weights = rng.random((n, n_arms)), rng.random((n, 2)), rng.choice([0.0, 1.0, 2.5], n)
    out = []
    for kernels in (kernels_numba, kernels_numpy):
        mean, var, arms, propensities = np.zeros((2, n, n_arms)), variance.copy(), np.empty(n, np.int64), np.empty(n)
        running, units = np.zeros(5), np.empty((n, 2))
        kernels.play_episode(
            (covariance if direct else products, z, direct, model == "shared"),
            (mean, var),
            (np.full((n, n_arms), 0.5), np.ones((n, n_arms), bool), 0.1, draws),
            (rewards, weights),
            (running, standardise),
            (arms, propensities, units),
        )
        out.append((mean, var, arms, propensities, running, units))
        received, counted = rewards[np.arange(n), arms], weights > 0
        centre = np.average(received, weights=weights)
        np.testing.assert_allclose(running[:2], [weights.sum(), centre])
        np.testing.assert_allclose(running[2], weights @ (received - centre) ** 2)
        np.testing.assert_array_equal(running[3:], [received[counted].min(), received[counted].max()])
    for compiled, plain in zip(*out, strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=1e-9, atol=1e-12)


def single_round_arrays(n_heads=3, dim=5, pending=4):
    """The arrays of ``PrimalRidge``, each inside a larger one whose margin shows writes beyond it."""
    shapes = {
        "inverse": (n_heads, dim, dim),
        "theta": (n_heads, 2, dim),
        "moment": (n_heads, 2, dim),
        "pending": (n_heads, pending, dim),
    }
    outer = {name: np.full((shape[0] + 4, *shape[1:]), 7.0) for name, shape in shapes.items()}
    arrays = {name: array[2:-2] for name, array in outer.items()}
    arrays["inverse"][:] = np.eye(dim)
    for name in ("theta", "moment", "pending"):
        arrays[name][:] = 0.0
    for name in ("n_pending", "counts", "since_refresh"):
        outer[name] = np.full(n_heads + 4, 7)
        arrays[name] = outer[name][2:-2]
        arrays[name][:] = 0
    return outer, arrays


@pytest.mark.parametrize("dim", [1, 3, 4, 5, 11, 32])
def test_single_rounds_agree(dim):
    rng = np.random.default_rng(dim)
    results = []
    rounds = [(rng.normal(size=dim), int(rng.integers(3)), rng.random(2)) for _ in range(4)]
    context = rng.normal(size=(1, dim))
    for kernels in (kernels_numba, kernels_numpy):
        _, arrays = single_round_arrays(dim=dim)
        variances = [kernels.update_one(*arrays.values(), z, head, both, 1e12) for z, head, both in rounds]
        inverse = arrays["inverse"]
        np.testing.assert_array_equal(inverse, inverse.transpose(0, 2, 1))
        results.append([*arrays.values(), variances])
    for compiled, plain in zip(*results, strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=1e-10, atol=1e-13)
    mean, bonus, theta = np.empty((1, 3)), np.empty((1, 3)), arrays["theta"]
    kernels_numba.score_one(inverse, theta, context, 4.0, 10.0, mean, bonus)
    np.testing.assert_allclose(mean[0], 4.0 + (theta[:, 0] - 4.0 * theta[:, 1]) @ context[0], rtol=1e-12)
    variances = [context[0] @ matrix @ context[0] for matrix in inverse]
    np.testing.assert_allclose(bonus[0], 10.0 * np.sqrt(variances), rtol=1e-12)


@pytest.mark.parametrize("kernels", [kernels_numba, kernels_numpy])
@pytest.mark.parametrize(("head", "n_pending"), [(-1, 0), (3, 0), (2**40, 0), (1, 4), (1, -1), (1, 2**40)])
def test_no_index_leads_outside_the_arrays(kernels, head, n_pending):
    outer, arrays = single_round_arrays()
    arrays["n_pending"][1] = n_pending
    before = {name: array.copy() for name, array in outer.items()}
    with pytest.raises(IndexError):
        kernels.update_one(*arrays.values(), np.ones(5), head, np.ones(2), 1e12)
    if not 0 <= head < 3:
        heads = np.array([0, head])
        with pytest.raises(IndexError):
            kernels.update_rounds(arrays["inverse"], arrays["theta"], heads, np.ones((2, 5)), np.ones((2, 2)))
    for name, array in outer.items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("kernels", [kernels_numba, kernels_numpy])
def test_sums_of_squares_overflow_without_a_warning(kernels):
    assert kernels.sum_of_squares(np.array([3.0, 4.0])) == 25.0
    assert kernels.sum_of_squares(np.array([1e200, 1e200])) == np.inf
    assert np.isnan(kernels.sum_of_squares(np.array([1.0, np.nan])))


def test_even_choices_are_even_among_the_available():
    available = np.tile([True, False, True, True], (6_000, 1))
    even, means = Exploration("greedy", epsilon=1.0), np.full((6_000, 4), 0.5)
    arms, propensities = even.choose(means, means, seeded_draws(draw_key(0), 5), available=available)
    np.testing.assert_array_equal(propensities, np.full(6_000, 1 / 3))
    np.testing.assert_allclose(np.bincount(arms, minlength=4) / 6_000, [1 / 3, 0, 1 / 3, 1 / 3], atol=0.03)
    single, _ = even.choose(means[:1], means[:1], seeded_draws(draw_key(0), 5 + 17), available=available[:1])
    assert single[0] == arms[17]


def test_the_normal_distribution_function():
    x = np.linspace(-12, 12, 60).reshape(6, 10)
    np.testing.assert_allclose(kernels_numba.normal_cdf(x), kernels_numpy.normal_cdf(x), rtol=1e-13)
    np.testing.assert_allclose(kernels_numpy.normal_cdf(x), stats.norm.cdf(x), rtol=1e-12)


def test_everything_works_without_numba():
    """On a machine without numba the same choices are made; here numba is hidden from a fresh interpreter."""
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
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    import daband

    rng = np.random.default_rng(0)
    policy = daband.LinUCB(context_shape=(4,), n_arms=3, alpha=0.5, seed=2)
    assert done.stdout.strip() == str(policy.play(rng.normal(size=(40, 4)), rng.random((40, 3))).arm.tolist())
