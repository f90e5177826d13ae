"""Tables inside packages become pairs as they are declared: rows, arms, what is left out, rewards
of near guesses.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import fresh
from pictures import read_pictures


@pytest.fixture
def declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Declare one data set of a package of npm that lies in ``tmp_path``."""
    monkeypatch.setenv("NODE_PATH", str(tmp_path))

    def declared(**entry):
        monkeypatch.setattr(fresh, "read_declarations", lambda: {"third_tables": {"one": entry}})
        return fresh.load("third_tables", "one")

    return declared


def _people(n: int) -> list[dict[str, object]]:
    draw = np.random.default_rng(0)
    ages = draw.integers(20, 60, n).tolist()
    pays = draw.normal(size=n).tolist()
    towns = [("a", "b")[i % 2] for i in range(n)]
    return [
        {"age": age, "the town": town, "pay": pay, "net": pay}
        for age, town, pay in zip(ages, towns, pays, strict=True)
    ]


def test_columns_of_the_split_the_arm_and_those_named_are_no_features(declare, tmp_path):
    (tmp_path / "people.json").write_text(json.dumps(_people(400)))
    pair = declare(
        table="npm:people.json",
        source="`the town` == 'a'",
        target="`the town` == 'b'",
        arm="pay",
        arms=4,
        drop="net file",
    )
    assert pair.context_shape == (1,)  # the age
    assert pair.n_arms == 4
    assert (
        len(pair.source) + len(pair.source_test) == len(pair.target) + len(pair.target_test) == 200
    )


def test_a_guess_next_to_the_right_arm_pays_part(declare, tmp_path):
    (tmp_path / "people.json").write_text(json.dumps(_people(400)))
    pair = declare(
        table="npm:people.json",
        with_={},
        source="age < 40",
        target="age >= 40",
        arm="pay",
        arms=3,
        near=True,
        drop="net",
    )
    rewards = pair.target_test.read_expected(0, len(pair.target_test))
    assert set(np.unique(rewards)) == {0.0, 0.5, 1.0}
    np.testing.assert_array_equal(rewards[:, 1] == 1.0, rewards[:, 0] == rewards[:, 2])


def test_each_file_is_a_row_and_a_column_may_be_added(declare, tmp_path):
    for group, words in (
        ("ham-1", "meet me"),
        ("spam-1", "buy now"),
        ("ham-2", "see me"),
        ("spam-2", "buy this"),
    ):
        (tmp_path / group).mkdir()
        for number in range(20):
            text = {"group": group, "text": f"{words} word{number}"}
            (tmp_path / group / f"{number}.json").write_text(json.dumps(text))
    pair = declare(
        **{
            "table": "npm:*/*.json",
            "with": {"spam": "group.str.startswith('spam')"},
            "arm": "spam",
            "text": "text",
        },
        source="group in ['ham-1', 'spam-1']",
        target="group in ['ham-2', 'spam-2']",
    )
    assert pair.n_arms == 2
    contexts = pair.target_test.read(0, 20)
    rewards = pair.target_test.read_expected(0, 20)
    assert (contexts == rewards[:, [1]]).all(axis=0).any()  # "buy": spam alone has it
    assert rewards.sum(axis=0).tolist() == [10, 10]


def test_windows_of_signals_are_means_of_eight_samples(tmp_path):
    signal = np.arange(300 * 6, dtype=float).reshape(300, 6)
    np.save(
        tmp_path / "watch.npy",
        {"X": [signal], "y": [3], "subject": [1], "side": [0]},
        allow_pickle=True,
    )
    frame = fresh._read_motions(tmp_path / "watch.npy")
    assert frame.shape == (2, 96 + 3)
    assert frame["mean 0"].tolist() == [signal[:8, 0].mean(), signal[128:136, 0].mean()]
    assert frame["exercise"].tolist() == [3, 3]


def test_pictures_are_told_apart_by_their_columns(declare, tmp_path):
    draw = np.random.default_rng(0)
    (tmp_path / "wear").mkdir()
    for piece in range(2):  # the second piece has light at the bottom; the last picture is broken
        pictures = draw.integers(1, 100, (60, 28, 28))
        pictures[30:] += 100
        pictures[:, 14:] = pictures[:, 14:] * piece
        rows = [*pictures.reshape(60, -1).tolist(), [1, 2, 3]]
        (tmp_path / "wear" / f"{piece}.json").write_text(json.dumps({"data": rows}))
    pair = declare(
        table="npm:wear.clothes", source="light < 100", target="light >= 100", arm="piece"
    )
    assert pair.context_shape == (1, 28, 28)
    assert (len(pair.source) + len(pair.source_test), len(pair.target) + len(pair.target_test)) == (
        60,
        60,
    )
    bottom = pair.target_test.read(0, 30)[:, 0, 14:].any(axis=(1, 2))
    np.testing.assert_array_equal(bottom, pair.target_test.read_expected(0, 30)[:, 1] == 1.0)


def test_a_typeface_without_the_characters_is_left_out(tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    for name in ("DejaVuSans.ttf", "DejaVuSans-Oblique.ttf"):
        (tmp_path / name).write_bytes((fonts / name).read_bytes())
    frame = read_pictures(tmp_path / "ABC.glyphs")
    assert frame.groupby("slanted").size().to_dict() == {False: 3, True: 3}
    assert frame["picture"].map(lambda one: one.shape == (1, 28, 28) and one.max() > 200).all()
    # what no typeface has is drawn as one box
    boxes = read_pictures(tmp_path / "\ue000\ue001.glyphs")
    assert boxes.empty


def test_a_row_a_sentence(declare, tmp_path):
    rows = [
        {"party": party, "year": year, "text": " ".join(["We meet. Who asks?"] * 10)}
        for party in "ab"
        for year in (1, 2)
    ]
    (tmp_path / "speeches.json").write_text(json.dumps(rows))
    pair = declare(
        table="npm:speeches.json",
        explode="text",
        source="year == 1",
        target="year == 2",
        arm="party",
        text="text",
    )
    assert len(pair.source) + len(pair.source_test) == 40


def test_letters_of_a_text_in_place_of_words(declare, tmp_path):
    rows = [
        {"sex": sex, "year": year, "name": f"{stem}{end}"}
        for stem in "klmnprstvz"
        for sex, end in (("f", "ela"), ("m", "ko"))
        for year in (1, 2)
    ]
    (tmp_path / "names.json").write_text(json.dumps(rows))
    pair = declare(
        table="npm:names.json",
        letters=True,
        source="year == 1",
        target="year == 2",
        arm="sex",
        text="name",
    )
    contexts = pair.target_test.read(0, 10)
    rewards = pair.target_test.read_expected(0, 10)
    assert (contexts == rewards[:, [0]]).all(axis=0).any()  # "a", which every one of them ends with


def test_tables_without_a_header_and_with_more_of_one(tmp_path):
    (tmp_path / "people.data").write_text("39, State-gov, 5\n50, ?, 6\n")
    frame = fresh._read_file(tmp_path / "people.data")
    assert frame.columns.tolist() == ["row", "c0", "c1", "c2"]
    assert frame["c1"].isna().tolist() == [False, True]
    for name in ("r8-test", "r8-train"):
        (tmp_path / f"{name}.tab").write_text(
            "Category\tText\nd\tstring\nclass\tmeta\nearn\tprofit rose\n"
        )
    frame = fresh._read_file(tmp_path / "r8-*.tab")
    assert frame["file"].tolist() == ["r8-test", "r8-train"]
    assert frame["Text"].tolist() == ["profit rose"] * 2


def test_first_names_have_a_sex_and_countries(tmp_path):
    line = list("M  Aldo".ljust(86))
    line[33] = "5"
    (tmp_path / "nam_dict.txt").write_text("# said before\n" + "".join(line) + "\n?  Kim\n")
    (name,) = fresh._read_file(tmp_path / "nam_dict.txt").to_dict("records")
    assert (name["name"], name["sex"], name["Italy"], name["Germany"]) == ("Aldo", "M", True, False)


def test_words_have_their_vector_their_rank_a_tag_and_a_feeling(tmp_path, monkeypatch):
    (tmp_path / "text" / "en").mkdir(parents=True)
    (tmp_path / "text" / "en" / "en-lexicon.txt").write_text(";;;\ngood JJ NN\nwalk NN\n")
    (tmp_path / "vader_lexicon.txt").write_text("good\t1.9\t0.9\t[2]\n")
    monkeypatch.setattr(fresh, "_find_folder", lambda package: tmp_path)
    vectors = np.arange(6, dtype=np.float32).reshape(3, 2)
    words = [
        word + b" " + vector.tobytes()
        for word, vector in zip((b"the", b"good", b"walk"), vectors, strict=True)
    ]
    (tmp_path / "words.bin").write_bytes(b"3 2\n" + b"\n".join(words))
    frame = fresh._read_file(tmp_path / "words.bin")
    np.testing.assert_array_equal(frame[["0", "1"]], vectors)
    assert frame["tag"].fillna("").tolist() == ["", "JJ", "NN"]
    assert frame["felt"].fillna(0.0).tolist() == [0.0, 1.9, 0.0]


def test_clip_art_and_icons_by_their_folders(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for place, colour in (
        ("animals/cat.png", "red"),
        ("food/old/jar.png", "grey"),
        ("computer/key.png", "red"),
    ):
        (tmp_path / "art" / place).parent.mkdir(parents=True, exist_ok=True)
        image.new("RGBA", (300, 200), colour).save(tmp_path / "art" / place)
    frame = read_pictures(tmp_path / "art.clipart")
    assert frame["shows"].tolist() == ["animals", "food"]
    assert frame["colour"].tolist() == [255.0, 0.0]
    for place in (
        "oxygen/base/48x48/apps/a.png",
        "oxygen/base/22x22/apps/a.png",
        "xfce/mimes/48/b.png",
    ):
        (tmp_path / "icons" / place).parent.mkdir(parents=True, exist_ok=True)
        image.new("RGBA", (48, 48), (0, 0, 0, 0)).save(tmp_path / "icons" / place)
    frame = read_pictures(tmp_path / "icons.icons")
    assert frame[["theme", "kind"]].to_numpy().tolist() == [
        ["oxygen", "apps"],
        ["xfce", "mimetypes"],
    ]
    assert frame["picture"][0].min() == 255  # what is transparent lies on white
