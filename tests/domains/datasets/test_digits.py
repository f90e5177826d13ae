import gzip

import numpy as np
import pytest

from daband.domains import load
from daband.domains.datasets import _digits as module
from daband.domains.datasets._digits import (
    blend,
    load_packaged_photographs,
    read_idx,
)
from daband.errors import DataError, InvalidInput


def write_idx(path, array, *, packed=True):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(
        size.to_bytes(4, "big") for size in array.shape
    )
    content = header + array.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if packed else content)


def write_mnist(folder, n=40, *, n_labels=None, packed=True):
    generator = np.random.default_rng(0)
    ending = ".gz" if packed else ""
    for split in ("train", "t10k"):
        write_idx(
            folder / f"{split}-images-idx3-ubyte{ending}",
            generator.integers(0, 256, size=(n, 28, 28), dtype=np.uint8),
            packed=packed,
        )
        labels = (np.arange(n_labels or n) % 10).astype(np.uint8)
        write_idx(folder / f"{split}-labels-idx1-ubyte{ending}", labels, packed=packed)


def write_release(folder, *, n=20):
    generator = np.random.default_rng(1)
    (folder / "mnist_m").mkdir(parents=True)
    images = {
        f"x_{split}": generator.integers(0, 256, size=(n, 28, 28, 3), dtype=np.uint8)
        for split in ("train", "test")
    }
    labels = (np.arange(n) % 10).astype(np.uint8)
    np.savez(folder / "mnist_m" / "mnist_m_28.npz", **images, y_train=labels, y_test=labels)


def labels_of(domain):
    return domain.read_rewards(np.arange(len(domain)))[0].argmax(axis=1)


def test_the_embedded_form_needs_nothing_and_holds_real_digits():
    pair = load("digit")
    assert "embedded" in pair.about.summary
    assert (len(pair.source), len(pair.target), len(pair.target_test)) == (20_000, 20_000, 3_000)
    assert pair.context_shape == (3, 28, 28)
    assert pair.feedback == "one_hot"
    contexts = pair.source.read(np.arange(100))
    assert contexts.dtype == np.uint8
    np.testing.assert_array_equal(contexts[:, 0], contexts[:, 1])
    # as everyone knows MNIST to begin
    assert labels_of(pair.source)[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]


def test_the_embedded_digits_carry_their_attribution():
    text = (module._EMBEDDED_PATH.parent / "ATTRIBUTION.md").read_text()
    assert "LeCun" in text
    assert "by-sa/3.0" in text
    assert module._EMBEDDED_PATH.stat().st_size < 5_000_000


def test_blending_follows_the_published_recipe():
    generator = np.random.default_rng(5)
    photographs = [generator.integers(0, 256, size=(30, 33, 3), dtype=np.uint8) for _ in range(3)]
    digits = generator.integers(0, 2, size=(60, 28, 28), dtype=np.uint8) * generator.integers(
        1, 256, dtype=np.uint8
    )
    made = blend(digits, photographs, seed=7)
    patches = {
        photograph[top : top + 28, left : left + 28].astype(int).tobytes(): (which, top, left)
        for which, photograph in enumerate(photographs)
        for top in range(3)
        for left in range(6)
    }
    used = set()
    for digit, image in zip(digits, made, strict=True):
        binary = (digit > 0).astype(int)[..., None]
        # |patch - 255 d| is its own inverse, so the patch can be had back and must be one of a
        # photograph.
        patch = np.abs(image.transpose(1, 2, 0).astype(int) - 255 * binary)
        used.add(patches[patch.tobytes()])
    assert len({which for which, _, _ in used}) == 3
    assert len(used) > 20  # of 54 patches: they are drawn, not repeated
    assert {top for _, top, _ in used} == {0, 1, 2}
    assert {left for _, _, left in used} == set(range(6))


def test_packaged_photographs_are_coloured():
    for photograph in load_packaged_photographs():
        assert photograph.ndim == 3
        assert photograph.shape[2] == 3
        assert min(photograph.shape[:2]) >= 300
        assert (photograph[..., 0] != photograph[..., 2]).any()


def test_the_target_shows_other_digits_at_each_position():
    pair = load("digit", tiny=True)
    same = labels_of(pair.source) == labels_of(pair.target_labelled)
    assert same.mean() < 0.2


@pytest.mark.parametrize("packed", [True, False])
def test_released_as_an_npz(places, packed):
    write_mnist(places / "mnist", packed=packed)
    write_release(places)
    pair = load("digit")
    assert "released" in pair.about.summary
    assert (len(pair.source), len(pair.target), len(pair.target_test)) == (40, 20, 20)
    with np.load(places / "mnist_m/mnist_m_28.npz") as arrays:
        np.testing.assert_array_equal(
            pair.target_test.read(3, 4)[0], arrays["x_test"][3].transpose(2, 0, 1)
        )


def test_real_released_form(shared_data):
    pair = load("digit", form="released")
    assert (len(pair.source), len(pair.target), len(pair.target_test)) == (60_000, 20_000, 9_001)


def test_released_images_are_made_by_the_recipe(shared_data):
    """Each released image, taken back through |patch - 255 digit|, is smooth where the binary digit
    has its edges.
    """
    with np.load(shared_data / "mnist_m" / "mnist_m_28.npz") as packed:
        images = packed["x_test"][:300]
        index = packed["mnist_index_test"][:300]
    digits = read_idx(shared_data / "mnist" / "t10k-images-idx3-ubyte.gz")[index]

    def edge(threshold):
        ink = (digits > threshold)[..., None]
        back = np.abs(images.astype(int) - 255 * ink)
        border = ink[:, :, 1:] != ink[:, :, :-1]
        return np.abs(back[:, :, 1:] - back[:, :, :-1])[
            np.broadcast_to(border, back[:, :, 1:].shape)
        ].mean()

    assert edge(0) < 0.5 * min(edge(100), edge(254))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "unsigned"),
        (b"hello world", "unsigned"),
        (bytes([0, 0, 13, 1, 0, 0, 0, 1, 0]), "unsigned"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 9, 1, 2]), "10 bytes.* 17 "),
        (gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 2, 1, 2]))[:-9], "unpacked"),
    ],
    ids=["empty", "text", "floats", "too short", "half a gzip"],
)
def test_a_damaged_idx_file_is_named(tmp_path, content, message):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)
    assert "daband data check digit" in str(caught.value)


def test_images_and_labels_that_do_not_belong_together(places):
    write_mnist(places / "mnist", n_labels=39)
    with pytest.raises(DataError, match=r"\(40, 28, 28\) .*\(39,\)"):
        load("digit", form="released")


def test_a_damaged_packed_file_is_named(places):
    write_mnist(places / "mnist")
    (places / "mnist_m").mkdir()
    (places / "mnist_m/mnist_m_28.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(DataError, match=r"mnist_m_28.npz"):
        load("digit")


def test_what_is_missing_is_said_with_the_remedy(places):
    with pytest.raises(DataError, match="`daband data check digit`"):
        load("digit", form="released")
    write_mnist(places / "mnist")
    with pytest.raises(DataError, match=r"mnist_m_28\.npz"):
        load("digit", form="released")


def test_an_unknown_form():
    with pytest.raises(InvalidInput, match="auto, embedded, released"):
        load("digit", form="printed")
