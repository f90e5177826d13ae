import numpy as np
import pytest

from daband.errors import InvalidInput
from daband.features import PCA, Shift, Standardise
from daband.features._transforms import adapt_transform

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


@pytest.mark.parametrize("n", [50, 2000])
def test_one_row_of_enormous_size_changes_little(n):
    spoilt = X[:n].copy()
    spoilt[7] = 1e9
    plain = Standardise().fit(X[:n])
    fitted = Standardise().fit(spoilt)
    np.testing.assert_allclose(fitted(X[:n]), plain(X[:n]), atol=0.6 if n == 50 else 0.1)
    assert np.abs(fitted(spoilt)).max() <= 5.0
    assert np.isfinite(plain(np.full((1, 5), 1e300))).all()


def test_rare_features_are_clipped():
    rare = np.zeros((5000, 3))
    rare[0, 1] = 1.0
    assert np.abs(Standardise().fit(rare)(rare)).max() <= 5.0


def test_numbers_that_were_almost_always_zero_are_clipped():
    features = np.concatenate([X, np.zeros((len(X), 1))], axis=1)
    features[0, 5] = 1e-6  # as a feature of a network with ReLU
    shown = np.append(X[0], 0.5)[None]
    assert Standardise().fit(features)(shown)[0, 5] == pytest.approx(5.0 * 6**-0.5)


def test_a_batch_equals_its_singles_and_images_are_read_as_unit_range():
    fitted = Standardise().fit(X)
    np.testing.assert_array_equal(
        fitted(X[:4]), np.concatenate([fitted(X[i : i + 1]) for i in range(4)])
    )
    images = GENERATOR.integers(0, 256, size=(20, 3, 4, 4), dtype=np.uint8)
    np.testing.assert_allclose(
        Standardise().fit(images)(images), Standardise().fit(images / 255.0)(images / 255.0)
    )


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ((), "at least one"),
        ((np.zeros(3),), "shape"),
        ((X, X[:, :2]), r"dimensions .*\[2, "),
        ((X * np.nan,), "NaN"),
    ],
)
def test_what_cannot_be_fitted(batches, message):
    with pytest.raises(InvalidInput, match=message):
        Standardise().fit(*batches)


def test_each_domain_by_itself_undoes_other_units():
    source = X[:1000]
    target = X[1000:] * [4.3, 4.3, 1.0, 4.3, 4.3] + [0.0, 100.0, 0.0, 0.0, 0.0]
    own = Standardise(by_domain=True).fit(source, target)
    plain = Standardise().fit(X[1000:])(X[1000:])
    np.testing.assert_allclose(own(target, 1), plain, atol=1e-6)
    np.testing.assert_array_equal(own(source), own(source, 0))
    some = Standardise(by_domain=[1]).fit(source, target)
    np.testing.assert_allclose(some(target, 1)[:, 1], plain[:, 1], atol=1e-6)
    pooled = Standardise().fit(source, target)
    rest = [0, 2, 3, 4, 5]
    np.testing.assert_array_equal(some(target, 1)[:, rest], pooled(target)[:, rest])
    np.testing.assert_array_equal(pooled(target, 1), pooled(target, 0))


@pytest.mark.parametrize(
    "made", [Standardise(by_domain=True), Standardise(by_domain=[0, 2], components=3)]
)
def test_statistics_of_several_domains_survive_a_file(made):
    made.fit(X[:500], np.empty((0, 5)), 7 * X[500:])
    other = Standardise(**made.settings())
    other.restore(made.state())
    for domain in (0, 1, 2):
        np.testing.assert_array_equal(other(X, domain), made(X, domain))
    np.testing.assert_array_equal(made(X, 1), made(X, 0))  # a domain without contexts borrows
    assert not np.allclose(made(X, 2), made(X, 0))


def test_places_that_a_context_does_not_have_are_refused():
    with pytest.raises(InvalidInput, match=r"by_domain .*5$"):
        Standardise(by_domain=[5]).fit(X)


@pytest.mark.parametrize(
    ("shift", "by_domain"),
    [
        (Shift.of("covariate"), False),
        (Shift.of("labels"), False),
        (Shift.of("units"), True),
        (Shift.of("style", "labels"), True),
        (Shift.of("units", units=(1, 4)), (1, 4)),
    ],
)
def test_a_shift_says_which_numbers_are_standardised_by_domain(shift, by_domain):
    assert adapt_transform(Standardise(components=2), shift, 5).by_domain == by_domain
    assert adapt_transform(PCA(2), shift, 5).by_domain == bool(by_domain)
    assert adapt_transform(None, shift, 5) is None
    fitted = Standardise().fit(X)
    assert adapt_transform(fitted, shift, 5) is fitted


def test_principal_components_by_domain_lose_each_domains_mean():
    moved = X + 50.0
    own = PCA(2, by_domain=True).fit(X, moved)
    common = PCA(2).fit(X, moved)
    np.testing.assert_allclose(own(moved, 1), own(X, 0), atol=1e-8)
    assert np.abs(common(moved) - common(X)).max() > 10
    other = PCA(**own.settings())
    other.restore(own.state())
    np.testing.assert_array_equal(other(moved, 1), own(moved, 1))
