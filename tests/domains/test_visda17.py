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
    return places / "visda17"


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
    whole = (
        Image.open(visda / "train/aeroplane/aeroplane_000.png").convert("RGB").resize((256, 256), 2)
    )
    expected = np.asarray(whole)[16:240, 16:240].transpose(2, 0, 1)
    np.testing.assert_array_equal(pair.source.read(np.array([0]))[0], expected)


def test_a_class_without_images(visda):
    for path in (visda / "train" / "train").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="class 'train' has no example"):
        load("visda17")


def test_missing_data_name_the_remedy():
    with pytest.raises(DataError, match="daband data check visda17"):
        load("visda17")
