"""The compiled loops and the numpy ones are the same functions."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from daband.linear import draws_numba, draws_numpy, kernels_numba, kernels_numpy

KEY = np.uint64(12345678901234567890)


def test_uniform_numbers_are_the_same_to_the_bit_and_uniform():
    compiled, plain = (d.uniforms(KEY, 7, 20_000, 4) for d in (draws_numba, draws_numpy))
    np.testing.assert_array_equal(compiled, plain)
    assert abs(plain.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(plain.T)[0, 1]) < 0.03
    assert abs(np.corrcoef(plain[:-1, 0], plain[1:, 0])[0, 1]) < 0.03
    assert len(np.unique(plain)) == plain.size
    assert (plain >= 0).all()
    assert (plain < 1).all()


def test_a_batch_of_uniforms_is_its_singles():
    whole = draws_numpy.uniforms(KEY, 0, 6, 3)
    parts = np.concatenate([draws_numpy.uniforms(KEY, i, 1, 3) for i in range(6)])
    np.testing.assert_array_equal(whole, parts)


@pytest.mark.parametrize("epsilon", [0.0, 0.3])
def test_choices_agree(epsilon):
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 3, (500, 5)).astype(float)  # many ties
    available = rng.random((500, 5)) < 0.6
    available[np.arange(500), rng.integers(0, 5, 500)] = True
    draws = rng.random((500, 2))
    results = []
    for kernels in (kernels_numba, kernels_numpy):
        arms, chances = np.empty(500, np.int64), np.empty(500)
        ones = np.ones_like(scores)
        kernels.choose_batch(scores, ones, 0 * ones, available, epsilon, draws, arms, chances)
        results.append((arms, chances))
        singles = [kernels.choose(scores[i], available[i], epsilon, *draws[i]) for i in range(500)]
        np.testing.assert_array_equal(arms, [arm for arm, _ in singles])
        np.testing.assert_allclose(chances, [chance for _, chance in singles])
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_allclose(results[0][1], results[1][1])


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("model", ["disjoint", "shared"])
def test_episodes_agree(model, direct):
    rng = np.random.default_rng(1)
    n, n_arms, dim = 20, 3, 4
    rows = n if model == "disjoint" else n * n_arms
    z = rng.uniform(-1, 1, (rows, dim))
    heads = n_arms if model == "disjoint" else 1
    products = np.broadcast_to(z, (heads, rows, dim)).copy()  # A = I
    covariance = np.einsum("hid,jd->hij", products, z)
    variance = np.einsum("hii->ih", covariance).reshape(n, n_arms).copy()
    if model == "shared":
        products, covariance = products[0], covariance[0]
    rewards, draws = rng.random((n, n_arms)), rng.random((n, 2))
    out = []
    for kernels in (kernels_numba, kernels_numpy):
        mean, var, arms, chances = np.zeros((n, n_arms)), variance.copy(), np.empty(n, np.int64), np.empty(n)
        getattr(kernels, f"episode_{model}")(
            covariance if direct else products, z, direct, mean, var, np.full((n, n_arms), 0.5),
            np.ones((n, n_arms), bool), 0.1, draws, rewards, arms, chances,
        )  # fmt: skip
        out.append((mean, var, arms, chances))
    np.testing.assert_array_equal(out[0][2], out[1][2])
    for i in (0, 1, 3):
        np.testing.assert_allclose(out[0][i], out[1][i], rtol=1e-9, atol=1e-12)


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
from daband.linear.kernels import compiled
assert not compiled
rng = np.random.default_rng(0)
policy = daband.LinUCB(context_shape=(4,), n_arms=3, alpha=0.5, seed=2)
print(policy.play(rng.normal(size=(40, 4)), rng.random((40, 3))).arm.tolist())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    import daband

    rng = np.random.default_rng(0)
    policy = daband.LinUCB(context_shape=(4,), n_arms=3, alpha=0.5, seed=2)
    assert done.stdout.strip() == str(policy.play(rng.normal(size=(40, 4)), rng.random((40, 3))).arm.tolist())
