import numpy as np
import pytest

from daband.domains import load
from daband.errors import DataError
from tests.domains.datasets.test_digits import write_mnist


def write_usps(places, n=40, **changes):
    generator = np.random.default_rng(2)
    arrays = {}
    for split in ("train", "test"):
        arrays[f"x_{split}"] = generator.integers(0, 256, size=(n, 28, 28), dtype=np.uint8)
        arrays[f"y_{split}"] = (np.arange(n) % 10).astype(np.uint8)
    (places / "usps_semeion").mkdir(parents=True, exist_ok=True)
    np.savez(places / "usps_semeion/usps_28.npz", **{**arrays, **changes})


def write_semeion(places, n=60):
    generator = np.random.default_rng(3)
    (places / "usps_semeion").mkdir(parents=True, exist_ok=True)
    images = 255 * generator.integers(0, 2, size=(n, 16, 16), dtype=np.uint8)
    np.savez(
        places / "usps_semeion/semeion_16.npz", x=images, y=(np.arange(n) % 10).astype(np.uint8)
    )


def test_each_collection_keeps_its_own_split(places):
    write_mnist(places / "mnist")
    write_usps(places)
    write_semeion(places)
    to_usps = load("handwritten/mnist-usps", source_test=None)
    assert (len(to_usps.source), len(to_usps.target), len(to_usps.target_test)) == (40, 40, 40)
    with np.load(places / "usps_semeion/usps_28.npz") as packed:
        np.testing.assert_array_equal(to_usps.target.read(np.arange(40))[:, 0], packed["x_train"])
        np.testing.assert_array_equal(to_usps.target_test.read(0, 40)[:, 0], packed["x_test"])
    to_semeion = load("handwritten/usps-semeion")
    assert (len(to_semeion.source) + len(to_semeion.source_test), len(to_semeion.target)) == (
        40,
        30,
    )
    held = to_semeion.target_test.read_expected(0, 30)
    assert held.sum(axis=0).tolist() == [3.0] * 10
    assert to_semeion.context_shape == (1, 28, 28)
    assert len(load("handwritten/semeion-mnist", source_test=None).source) == 60


def test_one_pair_does_without_the_third_collection(places):
    write_usps(places)
    write_semeion(places)
    load("handwritten/usps-semeion")
    with pytest.raises(DataError, match=r"https://.*`daband data check handwritten`"):
        load("handwritten/usps-mnist")


def test_a_damaged_file_is_named(places):
    write_semeion(places)
    (places / "usps_semeion/usps_28.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(DataError, match=r"usps_28\.npz "):
        load("handwritten/semeion-usps")


def test_the_real_collections(shared_data):
    sizes = {
        name: (len(pair.source) + len(pair.source_test), len(pair.target), len(pair.target_test))
        for name in ("mnist-usps", "usps-semeion", "semeion-mnist")
        for pair in [load(f"handwritten/{name}")]
    }
    assert sizes == {
        "mnist-usps": (60_000, 7_291, 2_007),
        "usps-semeion": (7_291, 800, 793),
        "semeion-mnist": (1_593, 60_000, 10_000),
    }
