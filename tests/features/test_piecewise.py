"""Numbers cut into pieces: ramps between quantiles, which a file holds without a number of
training.
"""

from __future__ import annotations

import numpy as np
import pytest

import daband
from daband.features import Piecewise, Standardise

DRAW = np.random.default_rng(0)
NUMBERS = np.column_stack(
    [DRAW.lognormal(size=500), DRAW.integers(2, size=500) * 7.0, np.full(500, 3.0)]
)


def _fitted(*contexts, **settings):
    return Piecewise(**settings).fit(*contexts)


def _ridge_error(features, values):
    theta = np.linalg.solve(
        features.T @ features + 0.1 * np.eye(features.shape[1]), features.T @ values
    )
    return float(np.square(features @ theta - values).mean())


def test_a_regression_on_pieces_follows_what_no_line_does():
    x = np.linspace(-3.0, 3.0, 400)[:, None]
    bump = np.exp(-np.square(x[:, 0]))
    lines = Standardise().fit(x)(x)
    pieces = _fitted(x)(x)
    assert _ridge_error(lines, bump) > 0.1
    assert _ridge_error(pieces, bump) < 0.005


def test_a_number_of_two_values_has_one_piece_and_a_constant_none():
    step = _fitted(NUMBERS).get_step()
    assert np.bincount(step.column[step.scale > 0], minlength=3).tolist() == [8, 1, 0]
    features = step(NUMBERS)
    assert (features[:, 0] == 1.0).all()
    np.testing.assert_allclose(features[:, 1:].mean(axis=0), 0.0, atol=1e-9)
    of_two = features[:, 9]
    np.testing.assert_allclose(of_two, Standardise().fit(NUMBERS)(NUMBERS)[:, 1], atol=1e-3)


def test_features_of_a_number_have_the_variance_of_a_standardised_one():
    features = _fitted(NUMBERS)(NUMBERS)
    np.testing.assert_allclose(features[:, 1:9].var(axis=0).sum(), 1 / 3)  # of 3 numbers


def test_beyond_the_outer_knots_nothing_changes():
    piecewise = _fitted(NUMBERS)
    far = np.array([[1e300, 1e300, -1e300], [40.0, 7.0, 3.0]])
    np.testing.assert_array_equal(*piecewise(far))


def test_spare_features_are_zero_and_many_numbers_have_fewer_pieces():
    few = _fitted(NUMBERS)
    assert few(NUMBERS).shape == (500, few.n_features((3,))) == (500, 25)
    assert not few(NUMBERS)[:, 10:].any()
    many = DRAW.normal(size=(300, 60))
    step = _fitted(many).get_step()
    assert np.bincount(step.column[step.scale > 0]).tolist() == [2] * 60
    assert _fitted(DRAW.normal(size=(300, 200)))(DRAW.normal(size=(1, 200))).shape == (1, 201)


def test_domains_with_units_of_their_own_have_the_same_features():
    x = DRAW.normal(size=(400, 2))
    euros = x + 5.0
    zlotys = (x + 5.0) * [4.3, 1.0]
    piecewise = _fitted(euros, zlotys, by_domain=[0])
    np.testing.assert_allclose(piecewise(euros, 0), piecewise(zlotys, 1), atol=1e-9)
    assert not np.allclose(
        _fitted(euros, zlotys)(euros, 0), _fitted(euros, zlotys)(zlotys, 1), atol=0.1
    )


def test_no_knot_is_a_number_of_training():
    step = _fitted(NUMBERS).get_step()
    assert not np.isin(
        np.append(step.start[:8], step.start[:8] + step.width[:8]), NUMBERS[:, 0]
    ).any()


def test_arrays_that_do_not_fit_are_refused():
    state = _fitted(NUMBERS).state()
    column = state["0.column"]
    for wrong in ({"0.column": column[1:]}, {"0.column": 5 + column}, {"0.start": np.nan * column}):
        with pytest.raises((ValueError, IndexError)):
            _fitted(NUMBERS).restore({**state, **wrong})


def test_it_stands_in_front_of_a_policy_and_is_saved_and_exported_with_it(tmp_path):
    draw = np.random.default_rng(1)
    x = draw.normal(size=(600, 2))
    policy = daband.LinUCB(
        context_shape=(2,), n_arms=2, transform=Piecewise(), shift="units", seed=0
    )
    policy.prepare(x, 10.0 * x)
    policy.update(
        x, np.arange(600) % 2, np.where(np.arange(600) % 2 == 0, np.exp(-(x[:, 0] ** 2)), 0.5)
    )
    assert policy.transform.by_domain
    arms = policy.decide(x, rule="greedy").arm
    assert (arms == (np.exp(-(x[:, 0] ** 2)) < 0.5)).mean() > 0.9
    policy.save(tmp_path / "p.safetensors")
    daband.export(policy, tmp_path / "p.daband", domain="target", explore="greedy")
    np.testing.assert_array_equal(
        daband.load(tmp_path / "p.safetensors").decide(x, rule="greedy").arm, arms
    )
    np.testing.assert_array_equal(
        daband.load_deployed(tmp_path / "p.daband").decide(10.0 * x).arm, arms
    )
