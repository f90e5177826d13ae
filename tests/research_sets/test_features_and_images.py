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


def test_what_a_context_pays_survives_the_split(shared_data):
    from scipy.io import loadmat

    content = loadmat(shared_data / "amazon_reviews_400/dvd_400.mat")
    truth = {
        row.tobytes(): label
        for row, label in zip(content["fts"], content["labels"].reshape(-1), strict=True)
    }
    pair = load("amazon/books-dvd")
    labels = pair.target_test.read_expected(0, 999).argmax(axis=1)
    assert [truth[row.tobytes()] for row in pair.target_test.read(0, 999)] == labels.tolist()


def test_passes_show_a_context_again_in_another_order(shared_data):
    pair = load("office_caltech", source="dslr", target="webcam", source_test=0)
    order = pair.source.order(0, 3 * 157, seed=0).reshape(3, 157)
    np.testing.assert_array_equal(np.sort(order, axis=1), np.tile(np.arange(157), (3, 1)))
    assert (order[0] != order[1]).any()


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


def test_photographs_of_one_sign_stay_on_one_side(places, write_images):
    folders = [f"{number:02d}" for number in range(43)]
    write_images(places / "signs/synthetic", folders, 1, size=(8, 8))
    from PIL import Image

    for label, folder in enumerate(folders):
        (places / "signs/real" / folder).mkdir(parents=True)
        for track in range(4):
            for frame in range(2):
                image = np.full((8, 8, 3), (label, track, frame), dtype=np.uint8)
                Image.fromarray(image).save(
                    places / f"signs/real/{folder}/{track:05d}_{frame:05d}.png"
                )
    pair = load("signs", side=8)
    tracks = [
        {(int(image[0, 0, 0]), int(image[1, 0, 0])) for image in images}
        for images in (pair.target.read(np.arange(172)), pair.target_test.read(0, 172))
    ]
    assert len(tracks[0]) == len(tracks[1]) == 86
    assert not tracks[0] & tracks[1]


def write_emoji(root, vendor, motifs=6):
    """Write an npm package with a man, a woman and a person for each motif, and one picture
    twice.
    """
    import json

    from PIL import Image
    from research_sets.readers import _EMOJI_GROUPS

    listed = []
    for label, group in enumerate(_EMOJI_GROUPS):
        for motif in range(motifs):
            for number, form in enumerate(
                ("1F468-200D-", "1F469-200D-", "1F9D1-200D-", "1F9D1-1F9D1-")
            ):
                code = f"{form}{label:X}{motif:X}"
                file = root / f"img/{vendor}/64/{code.lower()}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (64, 64), (label, motif, min(number, 2))).save(file)
                listed.append(
                    {
                        "unified": code,
                        "image": file.name,
                        "category": group,
                        f"has_img_{vendor}": True,
                    }
                )
    (root / "emoji.json").write_text(json.dumps(listed), encoding="utf-8")


def test_forms_of_one_emoji_stay_on_one_side_and_copies_are_left_out(places):
    for vendor in ("google", "twitter"):
        write_emoji(places / f"node_modules/emoji-datasource-{vendor}", vendor)
    pair = load("emoji", side=16, source_test=None)
    assert len(pair.source) == len(pair.target) + len(pair.target_test) == 9 * 6 * 3
    seen = pair.target.read(np.arange(81))
    held = pair.target_test.read(0, 81)
    motifs = [
        {(int(image[0, 0, 0]), int(image[1, 0, 0])) for image in images} for images in (seen, held)
    ]
    assert len(motifs[0]) == len(motifs[1]) == 27
    assert not motifs[0] & motifs[1]
    np.testing.assert_array_equal(
        pair.target_test.read_expected(0, 81).argmax(axis=1), held[:, 0, 0, 0]
    )


def test_a_folder_that_is_not_an_emoji_package(places):
    write_emoji(places / "emoji-datasource-google", "google", motifs=1)
    write_emoji(places / "emoji-datasource-twitter", "facebook", motifs=1)
    with pytest.raises(DataError, match=r"emoji-datasource-twitter .*has_img_twitter"):
        load("emoji")
    with pytest.raises(DataError, match="npm install --prefix"):
        load("emoji/google-facebook")
