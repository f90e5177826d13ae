import numpy as np
import pytest

from daband.errors import InvalidInput, NotFitted
from daband.linear import OutlierWarning, Standardise

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(2000, 5)) * [1.0, 2.0, 0.5, 1.0, 1.0] + [0.0, 3.0, -1.0, 0.0, 0.0]


def test_features_are_centred_scaled_and_have_a_constant():
    features = Standardise().fit(X[:1000], X[1000:])(X)
    assert features.shape == (2000, 6)
    np.testing.assert_allclose(features[:, :5].mean(axis=0), 0.0, atol=1e-3)
    np.testing.assert_allclose(features[:, :5].std(axis=0), 1 / np.sqrt(5), rtol=1e-2)
    np.testing.assert_array_equal(features[:, 5], 1.0)


def test_many_dimensions_keep_a_quarter_of_a_deviation():
    wide = GENERATOR.normal(size=(300, 400))
    np.testing.assert_allclose(Standardise().fit(wide)(wide)[:, :-1].std(), 1 / 4, rtol=1e-2)


@pytest.mark.parametrize(("scale", "offset"), [(1000.0, 0.0), (1.0, 10.0), (1e-6, -1e-3), (-3.0, 1e6)])
def test_units_and_offsets_change_nothing(scale, offset):
    plain = Standardise().fit(X)(X)[:, :5]
    other = Standardise().fit(X * scale + offset)(X * scale + offset)[:, :5]
    np.testing.assert_allclose(other, np.sign(scale) * plain, atol=1e-6)


def test_a_constant_column_becomes_zeros():
    flat = np.concatenate([X, np.full((2000, 1), 1e9 + 0.1)], axis=1)
    np.testing.assert_allclose(Standardise().fit(flat)(flat)[:, 5], 0.0, atol=1e-6)


@pytest.mark.parametrize("n", [50, 2000])
def test_one_row_of_enormous_size_changes_little_and_is_said(n):
    spoilt = X[:n].copy()
    spoilt[7] = 1e9
    plain, fitted = Standardise().fit(X[:n]), Standardise().fit(spoilt)
    np.testing.assert_allclose(fitted(X[:n]), plain(X[:n]), atol=0.6 if n == 50 else 0.1)
    with pytest.warns(OutlierWarning, match=r"1e\+09 in place \d.*counts as 5 deviations"):
        features = fitted(spoilt)
    assert np.abs(features).max() <= 5.0
    with pytest.warns(OutlierWarning):
        assert np.isfinite(plain(np.full((1, 5), 1e300))).all()


def test_rare_features_are_clipped_without_a_warning():
    rare = np.zeros((5000, 3))
    rare[0, 1] = 1.0
    assert np.abs(Standardise().fit(rare)(rare)).max() <= 5.0


def test_a_batch_equals_its_singles_and_images_are_read_as_unit_range():
    fitted = Standardise().fit(X)
    np.testing.assert_array_equal(fitted(X[:4]), np.concatenate([fitted(X[i : i + 1]) for i in range(4)]))
    images = GENERATOR.integers(0, 256, size=(20, 3, 4, 4), dtype=np.uint8)
    np.testing.assert_allclose(Standardise().fit(images)(images), Standardise().fit(images / 255.0)(images / 255.0))


def test_state_goes_round():
    fitted = Standardise().fit(X)
    again = Standardise(**fitted.settings())
    assert not again.fitted
    with pytest.raises(NotFitted, match="prepare"):
        again(X)
    again.restore(fitted.state())
    np.testing.assert_array_equal(again(X), fitted(X))
    with pytest.raises(ValueError, match="positive"):
        again.restore({"mean": np.zeros(2), "deviation": np.zeros(2)})


def test_principal_components_of_what_is_standardised():
    fitted = Standardise(components=2).fit(X)
    assert (fitted.n_features((5,)), fitted(X).shape) == (3, (2000, 3))
    np.testing.assert_array_equal(fitted(X)[:, 2], 1.0)
    scaled = Standardise(components=2).fit(1000 * X + 50)
    np.testing.assert_allclose(np.abs(scaled(1000 * X + 50)), np.abs(fitted(X)), atol=1e-6)
    again = Standardise(**fitted.settings())
    again.restore(fitted.state())
    np.testing.assert_array_equal(again(X), fitted(X))


@pytest.mark.parametrize(
    ("batches", "message"),
    [((), "at least one"), ((np.zeros(3),), "shape"), ((X, X[:, :2]), "different dimensions"), ((X * np.nan,), "NaN")],
)
def test_what_cannot_be_fitted(batches, message):
    with pytest.raises(InvalidInput, match=message):
        Standardise().fit(*batches)


def test_numbers_with_own_statistics_are_standardised_by_domain_and_others_together():
    draw = np.random.default_rng(0)
    source, target = draw.normal(size=(500, 3)), draw.normal(1.0, 1.0, size=(400, 3))
    target[:, 1] *= 4.3  # another currency
    transform = Standardise(own=[1]).fit(source, target)
    pooled = Standardise().fit(source, target)
    for domain, contexts in enumerate((source, target)):
        features = transform(contexts, domain)
        alone = Standardise().fit(contexts)(contexts)
        np.testing.assert_allclose(features[:, [0, 2, 3]], pooled(contexts)[:, [0, 2, 3]])
        np.testing.assert_allclose(features[:, 1], alone[:, 1])
    again = Standardise(**transform.settings())
    again.restore(transform.state())
    np.testing.assert_array_equal(again(target, 1), transform(target, 1))
    assert Standardise(own=[1], components=2).fit(source, target)(target, 1).shape == (400, 3)


def test_a_domain_without_contexts_has_the_statistics_of_the_others():
    source = np.random.default_rng(0).normal(size=(50, 2))
    transform = Standardise(own=[0, 1]).fit(source)
    np.testing.assert_array_equal(transform(source, 1), transform(source, 0))
    with pytest.raises(InvalidInput, match="own names number 2"):
        Standardise(own=[2]).fit(source)
