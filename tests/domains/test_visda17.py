"""On folders made in the layout of the distribution: the full set was not to be had."""

import numpy as np
import pytest
from PIL import Image

from daband.domains._registry import load
from daband.errors import DataError

CLASSES = [
    *("aeroplane", "bicycle", "bus", "car", "horse", "knife"),
    *("motorcycle", "person", "plant", "skateboard", "train", "truck"),
]


@pytest.fixture
def visda(places, write_images):
    for split, suffix in (("train", ".png"), ("validation", ".jpg")):
        write_images(places / "visda17" / split, CLASSES, 4, suffix=suffix, seed=len(split))
        write_list(places / "visda17" / split)
    return places / "visda17"


def write_list(folder):
    lines = [
        f"{label}/{path.name} {number}"
        for number, label in enumerate(CLASSES)
        for path in sorted((folder / label).iterdir())
    ]
    (folder / "image_list.txt").write_text("\n".join(lines) + "\n")


def test_reads_the_layout(visda):
    pair = load("visda17")
    assert pair.class_names == tuple(CLASSES)
    assert (len(pair.source), len(pair.target), len(pair.target_test)) == (43, 24, 24)
    batch = pair.source.rounds(0, 16, seed=0)
    assert batch.contexts.shape == (16, 3, 224, 224)
    assert batch.contexts.dtype == np.uint8
    np.testing.assert_array_equal(pair.target_test.read_expected(0, 24).sum(axis=0), np.full(12, 2))


def test_images_are_resized_to_256_and_cropped_to_224(visda):
    pair = load("visda17")
    whole = Image.open(visda / "train/aeroplane/aeroplane_000.png").convert("RGB").resize((256, 256), 2)
    expected = np.asarray(whole)[16:240, 16:240].transpose(2, 0, 1)
    np.testing.assert_array_equal(pair.source.read(np.array([0]))[0], expected)


def test_works_without_the_lists(visda):
    for split in ("train", "validation"):
        (visda / split / "image_list.txt").unlink()
    assert len(load("visda17", source_test=0).source) == 48


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("aeroplane/aeroplane_000.png", "should read"),
        ("aeroplane/aeroplane_000.png 12", "should read"),
        ("aeroplane/aeroplane_000.png 1", "the labels do not match the images"),
        ("aeroplane/gone.png 0", r"gone.png is listed in .* but not there"),
        ("../aeroplane_000.png 0", "points outside"),
    ],
)
def test_a_list_that_does_not_match_the_images(visda, line, message):
    path = visda / "train" / "image_list.txt"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(DataError, match=message):
        load("visda17")


def test_a_class_without_images(visda):
    path = visda / "train" / "image_list.txt"
    path.write_text("\n".join(line for line in path.read_text().splitlines() if not line.startswith("train/")))
    with pytest.raises(DataError, match="no example of class 'train'"):
        load("visda17")


def test_missing_data_name_the_remedy():
    with pytest.raises(DataError, match="daband data check visda17"):
        load("visda17")
