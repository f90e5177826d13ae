import numpy as np
import pytest
from research_sets.readers import _interpolate

from daband.domains import load
from daband.errors import DataError, InvalidInput
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


def test_interpolation_is_bilinear_between_centres():
    row = (255 * (np.arange(16) >= 8)).astype(np.uint8)
    images = np.stack(
        [
            np.broadcast_to(row, (16, 16)),
            np.broadcast_to(row[:, None], (16, 16)),
            np.full((16, 16), 200),
        ]
    )
    grown = _interpolate(images.astype(np.uint8))
    assert grown.shape == (3, 28, 28)
    centres = (np.arange(28) + 0.5) * 16 / 28 - 0.5
    wanted = np.interp(centres, np.arange(16), row.astype(float))
    np.testing.assert_allclose(grown[0].astype(float), np.broadcast_to(wanted, (28, 28)), atol=0.51)
    np.testing.assert_array_equal(grown[0], grown[1].T)
    assert (grown[2] == 200).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": np.zeros((40, 16, 16), np.uint8)}, r"source contexts \(1, 16, 16\)"),
        ({"y_train": np.full(40, 10, np.uint8)}, r"source .*10, .*0\.\.9"),
        ({"y_test": np.zeros(39, np.uint8)}, r"target_test .*\(40,\)"),
    ],
)
def test_a_wrong_file_is_found_by_the_reader_of_arrays(places, changes, message):
    write_usps(places, **changes)
    write_semeion(places)
    with pytest.raises(InvalidInput, match=message):
        load("handwritten/usps-semeion" if "y_test" not in changes else "handwritten/semeion-usps")


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
