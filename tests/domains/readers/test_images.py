from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from daband.domains import from_images
from daband.domains.readers import _images as module
from daband.domains.readers._images import ImageContexts
from daband.errors import DataError, InvalidInput
from daband.features._image_layout import read_pixels

CLASSES = ["cat", "dog", "owl"]


def by_hand(path, resize, crop):
    image = Image.open(path).convert("RGB").resize((resize, resize), Image.Resampling.BILINEAR)
    edge = (resize - crop) // 2
    return np.asarray(image.crop((edge, edge, edge + crop, edge + crop))).transpose(2, 0, 1)


@pytest.fixture
def files(tmp_path, write_images):
    write_images(tmp_path / "images", CLASSES, 10)
    return sorted((tmp_path / "images").rglob("*.png"))


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("count", [3, 30])
def test_images_are_read_as_pillow_reads_them(files, kept, count, monkeypatch):
    if not kept:
        monkeypatch.setattr(module, "_MAX_CACHED_BYTES", 100)
    contexts = ImageContexts(files, (20, 16))
    order = np.random.default_rng(0).permutation(30)[:count]
    images = contexts.read(order)
    assert images.dtype == np.uint8
    np.testing.assert_array_equal(images, np.stack([by_hand(files[row], 20, 16) for row in order]))
    np.testing.assert_array_equal(contexts.read(order[::-1]), images[::-1])


def test_an_image_is_decoded_once(files):
    contexts = ImageContexts(files, (16, 16))
    first = contexts.read(np.arange(30))
    for path in files:
        path.unlink()
    np.testing.assert_array_equal(contexts.read(np.arange(30)), first)


@pytest.mark.parametrize("damage", [b"", b"not an image at all", None])
@pytest.mark.parametrize("count", [2, 30])
def test_a_damaged_image_is_named_and_nothing_of_it_is_kept(files, damage, count):
    broken = files[1]
    broken.write_bytes(broken.read_bytes()[:200] if damage is None else damage)
    contexts = ImageContexts(files, (16, 16))
    with pytest.raises(DataError, match=broken.name):
        contexts.read(np.arange(count))
    Image.fromarray(np.full((9, 9, 3), 5, dtype=np.uint8)).save(broken)
    np.testing.assert_array_equal(contexts.read(np.arange(count))[1], 5)


def test_a_file_that_went_away(files):
    files[2].unlink()
    with pytest.raises(DataError, match=r"cat_002\.png .*exist"):
        ImageContexts(files, (16, 16)).read(np.arange(3))


def test_odd_kinds_of_images_become_three_channels(tmp_path):
    generator = np.random.default_rng(0)
    grey = generator.integers(0, 256, size=(12, 12), dtype=np.uint8)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    Image.fromarray(grey).convert("P").save(tmp_path / "palette.png")
    Image.fromarray(np.dstack([grey] * 3 + [np.full_like(grey, 255)])).save(tmp_path / "opaque.png")
    images = ImageContexts(sorted(tmp_path.glob("*.png")), (12, 12)).read(np.arange(3))
    np.testing.assert_array_equal(images, np.broadcast_to(grey, (3, 3, 12, 12)))


def test_transparent_pixels_are_white(tmp_path):
    pixels = np.full((12, 12, 4), (200, 10, 10, 255), np.uint8)
    pixels[:, :6, 3] = 0
    Image.fromarray(pixels).save(tmp_path / "alpha.png")
    Image.fromarray(np.zeros((12, 12), np.uint8)).convert("P").save(
        tmp_path / "palette.png", transparency=0
    )
    half, all_transparent = ImageContexts(sorted(tmp_path.glob("*.png")), (12, 12)).read(
        np.arange(2)
    )
    np.testing.assert_array_equal(half[:, :, :6], 255)
    np.testing.assert_array_equal(half[:, 0, 6], (200, 10, 10))
    np.testing.assert_array_equal(all_transparent, 255)


@pytest.mark.parametrize(("resize", "crop"), [(10, 11), (0, 0)])
def test_impossible_framings(resize, crop):
    with pytest.raises(InvalidInput, match="framing"):
        ImageContexts([Path("a.png")], (resize, crop))


def test_a_pair_of_folders_with_a_split_target(tmp_path, write_images):
    write_images(tmp_path / "drawn", CLASSES, 6)
    write_images(tmp_path / "seen", CLASSES, 8, seed=1, suffix=".jpg")
    pair = from_images(
        source=tmp_path / "drawn", target=tmp_path / "seen", framing=16, source_test=0
    )
    assert pair.class_names == tuple(CLASSES)
    assert (len(pair.source), len(pair.target), len(pair.target_test)) == (18, 12, 12)
    assert pair.context_shape == (3, 16, 16)
    rounds = pair.source.rounds(0, 18, seed=0)
    np.testing.assert_array_equal(rounds.rewards.sum(axis=0), [6, 6, 6])
    np.testing.assert_array_equal(pair.target_test.read_expected(0, 12).sum(axis=0), [4, 4, 4])
    seen = pair.target.read(np.arange(12))
    held = pair.target_test.read(0, 12)
    assert not {image.tobytes() for image in seen} & {image.tobytes() for image in held}
    # What an image pays belongs to that very image, after all the shuffling.
    rewards, _ = pair.target_labelled.read_rewards(np.arange(12))
    for row in range(12):
        name = Path(pair.target.files[row]).parent.name
        assert pair.class_names[rewards[row].argmax()] == name


def test_a_flat_target_with_a_test_of_its_own(tmp_path, write_images):
    write_images(tmp_path / "drawn", CLASSES, 3)
    write_images(tmp_path / "flat", ["."], 7, seed=1)
    write_images(tmp_path / "test", CLASSES, 2, seed=2)
    pair = from_images(
        source=tmp_path / "drawn",
        target=tmp_path / "flat",
        target_test=tmp_path / "test",
        source_test=None,
        framing=16,
    )
    assert (len(pair.target), len(pair.target_test), pair.target_labelled) == (7, 6, None)
    assert pair.source.batch(0, 9, seed=0).dtype == np.uint8


def test_a_class_missing_on_one_side_is_named(tmp_path, write_images):
    write_images(tmp_path / "drawn", CLASSES, 3)
    write_images(tmp_path / "seen", CLASSES[:2], 3)
    with pytest.raises(DataError, match="'owl'"):
        from_images(source=tmp_path / "drawn", target=tmp_path / "seen")
    write_images(tmp_path / "seen", ["Owl", "owl"], 3)
    with pytest.raises(DataError, match=r"seen/Owl .*\(cat, dog, owl\)"):
        from_images(source=tmp_path / "drawn", target=tmp_path / "seen")


@pytest.mark.parametrize("kind", ["png", "tif"])
def test_sixteen_bits_of_grey_are_not_all_white(tmp_path, kind):
    grey = np.arange(0, 256, 4, dtype=np.uint8).reshape(8, 8)
    Image.fromarray(grey).save(tmp_path / "eight.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / f"sixteen.{kind}")
    Image.fromarray(grey.astype(np.float32) / 255).save(tmp_path / "fractions.tif")
    np.testing.assert_array_equal(
        read_pixels(tmp_path / f"sixteen.{kind}"), read_pixels(tmp_path / "eight.png")
    )
    store = ImageContexts([tmp_path / "fractions.tif"], (8, 8))
    with pytest.raises(DataError, match=r"fractions\.tif .*floating-point"):
        store.read(np.array([0]))


def test_eight_bits_of_grey_may_be_written_as_thirty_two(tmp_path):
    """Before: all black."""
    grey = np.arange(0, 256, 4).reshape(8, 8)
    for name, scale in (("eight.tif", 1), ("sixteen.tif", 257)):
        Image.fromarray(grey.astype(np.int32) * scale).save(tmp_path / name)
        np.testing.assert_array_equal(read_pixels(tmp_path / name)[..., 0], grey)


def test_folders_that_are_not_there_or_have_no_classes(tmp_path):
    with pytest.raises(DataError, match="/gone "):
        from_images(source=tmp_path / "gone", target=tmp_path)
    with pytest.raises(DataError, match=r"sub-folder .*\[\]"):
        from_images(source=tmp_path, target=tmp_path)
