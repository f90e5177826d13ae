"""Contexts that are large against the ridge: accurate up to a limit, refused by name above it."""

from fractions import Fraction

import numpy as np
import pytest

from daband.errors import InvalidInput
from daband.linear._ridge import MAX_SQUARED_NORM
from daband.linear._ridge_head import RidgeHead

from .dense import play

DIM = 4
ROUNDS = 120


def make_head(*, arms="disjoint", dim=DIM, ridge=1.0):
    return RidgeHead(n_arms=2, dim=dim, arms=arms, ridge=ridge)


def exactly(contexts, rewards, probe):
    """Means and widths of ridge 1 in rational numbers: every double is one, so nothing is rounded
    until the end.
    """
    rows = [[Fraction(float(x)) for x in row] for row in contexts]
    paid = [Fraction(float(x)) for x in rewards]
    asked = [[Fraction(float(x)) for x in row] for row in probe]
    gram = [
        [sum(row[i] * row[j] for row in rows) + (i == j) for j in range(DIM)] for i in range(DIM)
    ]
    moment = [sum(row[i] * r for row, r in zip(rows, paid, strict=True)) for i in range(DIM)]
    # Gauss-Jordan on [A | moment, probes]; A is positive definite, so no pivot is zero.
    table = [gram[i] + [moment[i]] + [row[i] for row in asked] for i in range(DIM)]
    for i in range(DIM):
        table[i] = [x / table[i][i] for x in table[i]]
        for j in range(DIM):
            if j != i:
                table[j] = [x - table[j][i] * y for x, y in zip(table[j], table[i], strict=True)]
    mean = [float(sum(x * line[DIM] for x, line in zip(row, table, strict=True))) for row in asked]
    square = [
        sum(x * line[DIM + 1 + n] for x, line in zip(row, table, strict=True))
        for n, row in enumerate(asked)
    ]
    return np.array(mean), np.sqrt([float(s) for s in square])


def contexts_of(kind, square):
    """Contexts (ROUNDS, d) and a probe, with a largest squared norm of at most ``square``."""
    rng = np.random.default_rng(7)
    contexts = rng.uniform(-1, 1, (ROUNDS, DIM))
    probe = rng.uniform(-1, 1, (6, DIM))
    size = 0.4 * np.sqrt(square / DIM)
    if kind == "one row":
        contexts[50] = 2 * size * np.array([1.0, -0.9, 0.8, 0.7])
    elif kind == "first row":
        contexts[0] = 2 * size * np.array([1.0, -0.9, 0.8, 0.7])
    elif kind == "one feature":
        contexts[:, 2] *= size
        probe[:, 2] *= size
    else:
        contexts = contexts * size
        probe = probe * size
    return contexts, probe


@pytest.mark.parametrize("batch", [1, 7, ROUNDS])
@pytest.mark.parametrize("square", [1e4, 1e7, MAX_SQUARED_NORM])
@pytest.mark.parametrize("kind", ["one row", "first row", "one feature", "all"])
def test_predictions_are_accurate_up_to_the_limit(kind, square, batch):
    contexts, probe = contexts_of(kind, square)
    rewards = np.random.default_rng(8).random(ROUNDS)
    head = make_head()
    for start in range(0, ROUNDS, batch):
        part = slice(start, start + batch)
        head.learn(contexts[part], np.zeros(len(contexts[part]), np.int64), rewards[part])
    mean, width = exactly(contexts, rewards, probe)
    predicted, bonus = head.score(probe)
    np.testing.assert_allclose(predicted[:, 0], mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(bonus[:, 0], width, rtol=1e-6)


@pytest.mark.parametrize("dim", [5, 120])
def test_an_outlier_does_not_spoil_what_comes_after_it(dim):
    """The inverse is computed from A after every 1,024 rounds, where the outlier hides all others:
    it must be kept.
    """
    rng = np.random.default_rng(0)
    contexts = rng.uniform(-1, 1, (3_000, dim))
    rewards = rng.random(3_000)
    contexts[500] *= np.sqrt(0.9 * MAX_SQUARED_NORM) / np.linalg.norm(contexts[500])
    head = make_head(dim=dim)
    heads = np.zeros(3_000, np.int64)
    for start in range(0, 3_000, 20):
        part = slice(start, start + 20)
        head.learn(contexts[part], heads[part], rewards[part])
    # The outlier fixes one direction; in the others the regression is that of the projected
    # ordinary rounds.
    direction = contexts[500] / np.linalg.norm(contexts[500])
    others = np.delete(contexts, 500, axis=0)
    others = others - np.outer(others @ direction, direction)
    moment = others.T @ np.delete(rewards, 500)
    theta = np.linalg.solve(np.eye(dim) + others.T @ others, moment)
    np.testing.assert_allclose(head.statistics.compute_coefficients()[0], theta, atol=1e-5)


@pytest.mark.parametrize("arms", ["disjoint", "shared"])
@pytest.mark.parametrize("n", [1, 5, 150])
def test_larger_contexts_are_refused_and_change_nothing(arms, n):
    rng = np.random.default_rng(1)
    head = make_head(arms=arms)
    shape = (n, DIM) if arms == "disjoint" else (n, 2, DIM)
    contexts = rng.uniform(-1, 1, shape)
    rewards = rng.random((n, 2))
    play(head, contexts, rewards)
    before = {name: array.copy() for name, array in head.state().items()}
    contexts[-1] = 1e9
    for call in (
        lambda: head.learn(contexts, np.zeros(n, np.int64), rewards[:, 0]),
        lambda: play(head, contexts, rewards, first_round=n),
    ):
        with pytest.raises(InvalidInput, match=r"ridge=1 .* 4e\+18"):
            call()
        for name, array in head.state().items():
            np.testing.assert_array_equal(array, before[name])
