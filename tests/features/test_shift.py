import numpy as np
import pytest

import daband
from daband.features import Shift
from daband.features._shift import as_shift, get_default_shift


def test_images_default_to_style_and_vectors_to_covariate_and_neither_is_stated():
    assert get_default_shift((3, 28, 28)) == Shift(("style",))
    assert get_default_shift((28, 28)).aligns_features
    assert get_default_shift((7,)) == Shift(("covariate",))
    assert not get_default_shift((7,)).stated
    assert get_default_shift((1280,)).aligns_features  # features of a pretrained network
    assert get_default_shift((1280,), is_table=True) == Shift(("covariate",))  # categories, one-hot
    named = [f"city = {place}" for place in range(600)]
    assert as_shift(None, context_shape=(600,), feature_names=named) == Shift(("covariate",))
    assert as_shift(None, context_shape=(7,)) == get_default_shift((7,))


@pytest.mark.parametrize(
    "given", ["units, labels", "labels+units", ["labels", "units"], Shift.of("units", "labels")]
)
def test_several_kinds_are_read_alike_in_any_order(given):
    shift = as_shift(given, context_shape=(4,))
    assert shift == Shift(("units", "labels"), None, stated=True)
    assert shift.has_label_shift
    assert not shift.aligns_features


def test_own_statistics_by_kind_and_column():
    assert as_shift("covariate", context_shape=(3,)).mask_separate_columns(3) == (
        False,
        False,
        False,
    )
    assert as_shift("labels", context_shape=(3,)).mask_separate_columns(3) == (False, False, False)
    assert as_shift("style", context_shape=(3,)).mask_separate_columns(3) == (True, True, True)
    assert as_shift("units", context_shape=(3,)).mask_separate_columns(3) == (True, True, True)
    some = as_shift(
        "covariate", context_shape=(3,), units=["price"], feature_names=["age", "price", "sex"]
    )
    assert some == Shift(("covariate", "units"), (1,), stated=True)
    assert some.mask_separate_columns(3) == (False, True, False)
    assert as_shift(None, context_shape=(3,), units=[2, 0]).mask_separate_columns(3) == (
        True,
        False,
        True,
    )


@pytest.mark.parametrize(
    ("given", "units", "says"),
    [
        ("unit", None, "'unit'; .*'units'"),
        (None, 1.5, r"units .*1\.5"),
        (7, None, "covariate, units, style, labels, .*7$"),
        ([], None, "at least one"),
        ("units", ["prize"], "units .*'prize'; .*'price'"),
        ("units", [5], r"units .*0\.\.1, .*5$"),
        ("units", [-1], "units .*-1$"),
        ("units", [], "units .*one"),
        ({"kind": "units"}, None, "kinds, units .*stated"),
    ],
)
def test_what_is_no_shift_is_refused(given, units, says):
    with pytest.raises(daband.InvalidInput, match=says):
        as_shift(given, context_shape=(2,), units=units, feature_names=["age", "price"])


def test_units_need_flat_contexts():
    with pytest.raises(daband.InvalidInput, match=r"units .*None .*\(3, 8, 8\)"):
        as_shift("units", context_shape=(3, 8, 8), units=[0])


def test_every_reader_takes_a_shift():
    x = np.random.default_rng(0).normal(size=(40, 3))
    y = np.arange(40) % 2
    log = (x, y, y.astype(float), np.full(40, 0.5))
    pair = daband.domains.from_arrays(source=(x, y), target=x, shift="units", units=[2])
    assert pair.shift == Shift.of("units", units=[2])
    assert "shift units (1 of the columns)" in repr(pair)
    assert daband.domains.from_arrays(source=(x, y), target=x).shift == get_default_shift((3,))
    assert daband.domains.from_log(source=log, target=x, n_arms=2, units=[0]).shift == Shift.of(
        "units", units=[0]
    )


def test_a_table_names_its_columns():
    import polars as pl

    old = pl.DataFrame(
        {"city": ["Oslo", "Rome"] * 20, "price": [1.0, None] * 20, "offer": [0, 1] * 20}
    )
    columns = daband.domains.Columns(context=["city", "price"], categorical=["city"], label="offer")
    pair = daband.domains.from_table(
        source=old, target=old.drop("offer"), columns=columns, units=["price"]
    )
    assert pair.feature_names == ("city = Oslo", "city = Rome", "price", "price (missing)")
    assert pair.shift == Shift.of("units", units=[2])
    with pytest.raises(daband.InvalidInput, match="got 'city'"):
        daband.domains.from_table(
            source=old, target=old.drop("offer"), columns=columns, units=["city"]
        )


def test_folders_and_pairs_have_one():
    assert daband.domains.load("digit", tiny=True).shift == get_default_shift((3, 28, 28))
    assert daband.domains.load("synthetic", tiny=True).shift == Shift.of("style")
