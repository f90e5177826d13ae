"""amazon, office_caltech, signs and emoji, on the real files and on damaged ones."""

import numpy as np
import pytest
from scipy.io import savemat

from daband.domains import load
from daband.domains._registry import pairs
from daband.errors import DataError, InvalidInput

REVIEWS = {"books": 2000, "dvd": 1999, "elec": 1998, "kitchen": 1999}
PICTURES = {"amazon": 958, "caltech10": 1123, "dslr": 157, "webcam": 295}


@pytest.mark.parametrize(
    ("family", "sizes", "features"), [("amazon", REVIEWS, 400), ("office_caltech", PICTURES, 800)]
)
def test_every_ordered_pair_of_the_real_files(shared_data, family, sizes, features):
    names = [name for name in pairs if name.startswith(f"{family}/")]
    assert len(names) == 12
    for name in names:
        source, target = name.partition("/")[2].split("-")
        pair = load(name)
        assert pair.name == name
        assert len(pair.source) + len(pair.source_test) == sizes[source]
        assert abs(len(pair.source_test) - sizes[source] / 10) <= 0.5
        assert len(pair.target) + len(pair.target_test) == sizes[target]
        assert abs(len(pair.target) - len(pair.target_test)) <= pair.n_arms
        assert pair.context_shape == (features,)
        assert pair.source.read(np.arange(5)).dtype == np.float64


def test_office_caltech_contexts_have_unit_norm(shared_data):
    pair = load("office_caltech", source="dslr", target="webcam", source_test=None)
    np.testing.assert_allclose(np.linalg.norm(pair.source.read(np.arange(157)), axis=1), 1.0)


def test_the_split_is_the_same_every_time_and_covers_the_target(shared_data):
    from scipy.io import loadmat

    whole = loadmat(shared_data / "amazon_reviews_400/dvd_400.mat")["fts"]
    one = load("amazon/books-dvd")
    other = load("amazon", source="books", target="dvd")
    seen = one.target.read(np.arange(1000))
    held = one.target_test.read(0, 999)
    np.testing.assert_array_equal(seen, other.target.read(np.arange(1000)))
    both = np.concatenate([seen, held])
    np.testing.assert_array_equal(np.unique(both, axis=0), np.unique(whole, axis=0))
    assert len(both) == len(whole)


def write_mat(path, **content):
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, content)


def test_a_file_without_its_variables_is_named(places):
    good = {"fts": np.eye(8, 400), "labels": np.arange(8).reshape(-1, 1) % 2}
    write_mat(places / "amazon_reviews_400/books_400.mat", **good)
    write_mat(places / "amazon_reviews_400/dvd_400.mat", features=np.zeros((4, 400)))
    with pytest.raises(DataError, match=r"dvd_400\.mat .*variables"):
        load("amazon")


def test_a_file_that_is_not_matlab(places):
    for name in ("books", "dvd"):
        path = places / f"amazon_reviews_400/{name}_400.mat"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"MATLAB 5.0 MAT-file, but not really" * 9)
    with pytest.raises(DataError, match=r"books_400\.mat .*MATLAB"):
        load("amazon")


@pytest.mark.parametrize("name", ["amazon", "handwritten", "office_caltech", "warfarin"])
def test_wrong_domains(name):
    with pytest.raises(InvalidInput, match=r"domains .*'moon'"):
        load(name, source="moon")
    source = {
        "amazon": "books",
        "handwritten": "mnist",
        "office_caltech": "amazon",
        "warfarin": "white",
    }[name]
    with pytest.raises(InvalidInput, match=f"source .*target .*{source}"):
        load(name, target=source)


def test_real_signs(shared_data):
    pair = load("signs")
    assert (len(pair.source) + len(pair.source_test), len(pair.target) + len(pair.target_test)) == (
        1982,
        2000,
    )
    assert pair.n_arms == 43
    assert pair.context_shape == (3, 32, 32)
    held = pair.target_test.read_expected(0, 1000).sum(axis=0)
    assert held.min() >= 15
