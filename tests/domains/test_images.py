import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from daband._image_layout import decode
from daband.domains.readers._images import Framing, ImageContexts, from_images
from daband.errors import DataError, InvalidInput

CLASSES = ["cat", "dog", "owl"]


def by_hand(path, framing):
    image = Image.open(path).convert("RGB").resize((framing.resize, framing.resize), Image.Resampling.BILINEAR)
    edge = (framing.resize - framing.crop) // 2
    return np.asarray(image.crop((edge, edge, edge + framing.crop, edge + framing.crop))).transpose(2, 0, 1)


@pytest.fixture
def files(tmp_path, write_images):
    write_images(tmp_path / "images", CLASSES, 10)
    return sorted((tmp_path / "images").rglob("*.png"))


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("count", [3, 30])
def test_a_store_reads_what_pillow_reads(files, cache, count):
    framing = Framing(20, 16)
    store = ImageContexts(files, framing, cache=cache)
    order = np.random.default_rng(0).permutation(30)[:count]
    images = store.read(order)
    assert images.dtype == np.uint8
    np.testing.assert_array_equal(images, np.stack([by_hand(files[row], framing) for row in order]))
    np.testing.assert_array_equal(store.read(order[::-1]), images[::-1])
    assert store.cached == (count if cache else 0)


def test_the_second_store_needs_no_image_file(files):
    framing = Framing(16, 16)
    first = ImageContexts(files, framing).read(np.arange(30))
    status = [os.stat(path) for path in files]
    for path, was in zip(files, status, strict=True):  # same name, size and time, but no image any more
        path.write_bytes(bytes(was.st_size))
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    np.testing.assert_array_equal(ImageContexts(files, framing).read(np.arange(30)), first)


def test_a_changed_file_is_decoded_afresh(files):
    framing = Framing(8, 8)
    ImageContexts(files, framing).read(np.arange(30))
    Image.fromarray(np.full((9, 9, 3), 77, dtype=np.uint8)).save(files[0])
    np.testing.assert_array_equal(ImageContexts(files, framing).read(np.array([0]))[0], 77)


def test_another_framing_has_another_cache(files):
    assert ImageContexts(files, Framing(8, 8)).read(np.arange(9)).shape == (9, 3, 8, 8)
    assert ImageContexts(files, Framing(9, 8)).cached == 0


@pytest.mark.parametrize("damage", [b"", b"not an image at all", None])
@pytest.mark.parametrize("count", [2, 30])
def test_a_damaged_image_is_named_and_nothing_of_it_is_cached(files, damage, count):
    broken = files[1]
    broken.write_bytes(broken.read_bytes()[:200] if damage is None else damage)
    store = ImageContexts(files, Framing(16, 16))
    with pytest.raises(DataError, match=broken.name):
        store.read(np.arange(count))
    Image.fromarray(np.full((9, 9, 3), 5, dtype=np.uint8)).save(broken)
    again = ImageContexts(files, Framing(16, 16)).read(np.arange(count))
    np.testing.assert_array_equal(again[1], 5)


def test_a_damaged_image_without_a_cache(files):
    files[4].write_bytes(b"no")
    with pytest.raises(DataError, match=files[4].name):
        ImageContexts(files, Framing(16, 16), cache=False).read(np.arange(30))


def test_a_file_that_went_away(files):
    files[2].unlink()
    with pytest.raises(DataError, match="is not there"):
        ImageContexts(files, Framing(16, 16))


def test_a_cache_that_cannot_be_written_is_done_without(files, monkeypatch, tmp_path):
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("DABAND_CACHE", str(tmp_path / "a file"))
    store = ImageContexts(files, Framing(16, 16))
    assert store.read(np.arange(30)).shape == (30, 3, 16, 16)
    assert store.cached == 0


def test_two_stores_may_be_read_at_once(files):
    store, other = (ImageContexts(files, Framing(side, side)) for side in (16, 12))
    with ThreadPoolExecutor(2) as pool:
        images, smaller = pool.map(lambda one: one.read(np.arange(30)), (store, other))
    np.testing.assert_array_equal(images, np.stack([by_hand(path, Framing(16, 16)) for path in files]))
    np.testing.assert_array_equal(smaller, np.stack([by_hand(path, Framing(12, 12)) for path in files]))


def test_odd_kinds_of_images_become_three_channels(tmp_path):
    generator = np.random.default_rng(0)
    grey = generator.integers(0, 256, size=(12, 12), dtype=np.uint8)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    Image.fromarray(grey).convert("P").save(tmp_path / "palette.png", transparency=b"\x00" * 256)
    Image.fromarray(np.dstack([grey] * 4)).save(tmp_path / "alpha.png")
    images = ImageContexts(sorted(tmp_path.glob("*.png")), Framing(12, 12), cache=False).read(np.arange(3))
    np.testing.assert_array_equal(images, np.broadcast_to(grey, (3, 3, 12, 12)))


@pytest.mark.parametrize(("resize", "crop"), [(10, 11), (0, 0)])
def test_impossible_framings(resize, crop):
    with pytest.raises(InvalidInput, match="framing"):
        Framing(resize, crop)


def test_a_pair_of_folders_with_a_split_target(tmp_path, write_images):
    write_images(tmp_path / "drawn", CLASSES, 6)
    write_images(tmp_path / "seen", CLASSES, 8, seed=1, suffix=".jpg")
    pair = from_images(source=tmp_path / "drawn", target=tmp_path / "seen", framing=16, source_test=0)
    assert pair.class_names == tuple(CLASSES)
    assert (len(pair.source), len(pair.target), len(pair.target_test)) == (18, 12, 12)
    assert pair.context_shape == (3, 16, 16)
    rounds = pair.source.rounds(0, 18, seed=0)
    np.testing.assert_array_equal(rounds.rewards.sum(axis=0), [6, 6, 6])
    np.testing.assert_array_equal(pair.target_test.read_expected(0, 12).sum(axis=0), [4, 4, 4])
    seen, held = pair.target.read(np.arange(12)), pair.target_test.read(0, 12)
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
        cache=False,
    )
    assert (len(pair.target), len(pair.target_test), pair.target_labelled) == (7, 6, None)
    assert pair.source.batch(0, 9, seed=0).dtype == np.uint8


def test_a_class_missing_on_one_side_is_named(tmp_path, write_images):
    write_images(tmp_path / "drawn", CLASSES, 3)
    write_images(tmp_path / "seen", CLASSES[:2], 3)
    with pytest.raises(DataError, match=r"class 'owl' has no example"):
        from_images(source=tmp_path / "drawn", target=tmp_path / "seen")
    write_images(tmp_path / "seen", ["Owl", "owl"], 3)
    with pytest.raises(DataError, match=r"seen/Owl is no class of the source \(cat, dog, owl\).*without labels"):
        from_images(source=tmp_path / "drawn", target=tmp_path / "seen")


@pytest.mark.parametrize("kind", ["png", "tif"])
def test_sixteen_bits_of_grey_are_not_all_white(tmp_path, kind):
    grey = np.arange(0, 256, 4, dtype=np.uint8).reshape(8, 8)
    Image.fromarray(grey).save(tmp_path / "eight.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / f"sixteen.{kind}")
    Image.fromarray(grey.astype(np.float32) / 255).save(tmp_path / "fractions.tif")
    np.testing.assert_array_equal(decode(tmp_path / f"sixteen.{kind}"), decode(tmp_path / "eight.png"))
    store = ImageContexts([tmp_path / "fractions.tif"], Framing(8, 8), cache=False)
    with pytest.raises(DataError, match="fractions of an unknown range"):
        store.read(np.array([0]))


def test_eight_bits_of_grey_may_be_written_as_thirty_two(tmp_path):
    """Before: all black."""
    grey = np.arange(0, 256, 4).reshape(8, 8)
    for name, scale in (("eight.tif", 1), ("sixteen.tif", 257)):
        Image.fromarray(grey.astype(np.int32) * scale).save(tmp_path / name)
        np.testing.assert_array_equal(decode(tmp_path / name)[..., 0], grey)


@pytest.mark.parametrize("passes", ["2", 1.5])
def test_passes_of_folders_is_a_whole_number(tmp_path, write_images, passes):
    write_images(tmp_path, ["cup", "pen"], 2)
    with pytest.raises(InvalidInput, match="passes must be a whole number"):
        from_images(source=tmp_path, target=tmp_path, passes=passes)


def test_folders_that_are_not_there_or_have_no_classes(tmp_path):
    with pytest.raises(DataError, match="is not a folder"):
        from_images(source=tmp_path / "gone", target=tmp_path)
    with pytest.raises(DataError, match="one sub-folder per class"):
        from_images(source=tmp_path, target=tmp_path)
