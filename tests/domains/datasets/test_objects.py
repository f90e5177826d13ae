"""On folders made in the layout of the distribution: the full set was not to be had."""

import numpy as np
import pytest
from PIL import Image

from daband.domains import load
from daband.errors import DataError

FOLDERS = [
    "airplane",
    "bicycle",
    "bus",
    "car",
    "knife",
    "motorcycle",
    "plant",
    "skateboard",
    "train",
    "truck",
]
OTHERS = ["piano", "mug"]


@pytest.fixture
def s2rda(places, write_images):
    root = places / "s2rda49"
    write_images(root / "synthetic", FOLDERS + OTHERS, 3)
    write_images(root / "real", FOLDERS + OTHERS, 5, seed=1, suffix=".jpg")
    (root / "splits").mkdir()
    for name, numbers in (("real_val.txt", range(3)), ("real_test.txt", range(3, 5))):
        lines = [
            f"real/{folder}/{folder}_{number:03d}.jpg"
            for folder in FOLDERS + OTHERS
            for number in numbers
        ]
        (root / "splits" / name).write_text("\n".join(lines) + "\n")
    return root


def test_reads_the_ten_classes_and_the_lists(s2rda):
    pair = load("s2rda49")
    assert pair.class_names == ("aeroplane", *FOLDERS[1:])
    assert (len(pair.source), len(pair.target), len(pair.target_test)) == (27, 30, 20)
    assert pair.context_shape == (3, 224, 224)
    np.testing.assert_array_equal(pair.target_test.read_expected(0, 20).sum(axis=0), np.full(10, 2))
    assert pair.target.batch(0, 9, seed=0).shape == (9, 3, 224, 224)


def test_without_lists_half_is_held(s2rda):
    (s2rda / "splits/real_val.txt").unlink()
    pair = load("s2rda49")
    assert (len(pair.target), len(pair.target_test)) == (30, 20)


def test_lists_that_overlap_are_refused(s2rda):
    path = s2rda / "splits/real_test.txt"
    path.write_text(path.read_text() + "real/bus/bus_000.jpg\n")
    with pytest.raises(DataError, match=r"real_val\.txt .*real_test\.txt .*bus_000\.jpg"):
        load("s2rda49")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bus/bus_000.jpg", "'bus/bus_000.jpg'"),
        ("real/../bus/x.jpg", "'real/../bus/x.jpg'"),
        ("real/bus/gone.jpg", " real/bus/gone.jpg, "),
    ],
)
def test_lists_with_nonsense(s2rda, line, message):
    path = s2rda / "splits/real_val.txt"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(DataError, match=message):
        load("s2rda49")


def test_a_class_missing_in_the_synthetic_domain(s2rda):
    for image in (s2rda / "synthetic/knife").iterdir():
        image.unlink()
    with pytest.raises(DataError, match="'knife'"):
        load("s2rda49")


def test_missing_data_say_what_to_fetch_and_where_to_put_it(s2rda):
    (s2rda / "splits/real_val.txt").write_text("real/piano/piano_000.jpg\n")
    with pytest.raises(DataError, match=r"real_val\.txt .*classes"):
        load("s2rda49")
    (s2rda / "synthetic").rename(s2rda / "elsewhere")
    told = (
        rf"s2rda49/synthetic .* {s2rda.parent}\. .*"
        r"http.*"
    )
    with pytest.raises(DataError, match=told + "s2rda49/real"):
        load("s2rda49")


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
    with pytest.raises(DataError, match="'train'"):
        load("visda17")


def test_missing_visda_data_name_the_remedy():
    with pytest.raises(DataError, match="`daband data check visda17`"):
        load("visda17")
