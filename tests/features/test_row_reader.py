"""What may be given to ``decide``, and what is odd or wrong about it."""

import copy
import io
import math
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import daband
from tests.serving import kinds

pl = pytest.importorskip("polars")
FULL = {"age": 41, "income": 20_000.0, "city": "Oslo", "member": True}


@pytest.fixture(scope="module")
def on_tables(tmp_path_factory):
    """A policy on tables as it is loaded from its file, and the pair."""
    path = tmp_path_factory.mktemp("rows") / "p.daband"
    policy, pair = kinds.table_policy()
    daband.export(policy, path, pair=pair)
    return daband.load_deployed(path), pair, policy


def image_bytes(width, height, mode="RGB", kind="PNG", seed=0):
    shape = (height, width, 3) if mode == "RGB" else (height, width)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue(), pixels


@pytest.fixture(scope="module")
def on_images(tmp_path_factory):
    """Policies on images of 16 pixels: any size resized to 20 and cropped; and only of that
    size.
    """
    folder = tmp_path_factory.mktemp("images")
    policy = daband.LinUCB(context_shape=(3, 16, 16), n_arms=2, transform=daband.PCA(4))
    policy.prepare(np.random.default_rng(0).integers(0, 256, (20, 3, 16, 16), np.uint8))
    daband.export(policy, folder / "same")
    policy.framing = (20, 16)
    daband.export(policy, folder / "any")
    return daband.load_deployed(folder / "any"), daband.load_deployed(folder / "same")


def test_a_policy_on_tables_goes_to_other_processes(on_tables):
    deployed, pair, policy = on_tables
    for one in (deployed, copy.deepcopy(deployed), pickle.loads(pickle.dumps(deployed))):
        assert one.decide(FULL, round_number=0).arm == deployed.decide(FULL, round_number=0).arm
    copied = pickle.loads(pickle.dumps(policy))
    np.testing.assert_array_equal(copied.table.contexts(FULL), pair.table.contexts(FULL))


class TestKinds:
    """The same row in every form gives the same decision."""

    def test_of_a_table(self, on_tables):
        deployed, pair, policy = on_tables
        expected = policy.decide(pair.table.contexts(FULL))
        series = pd.Series(FULL, dtype=object)
        context = pair.table.contexts(FULL)[0]
        forms = [
            FULL,
            series,
            pd.DataFrame([FULL]).iloc[0],
            pl.DataFrame([FULL]).row(0, named=True),
            context,
            context.tolist(),
            torch.tensor(context),
            {**FULL, "age": np.int32(41)},
            {**FULL, "age": 41.0},
            {**FULL, "city": np.str_("Oslo")},
            {**FULL, "member": np.bool_(True)},
            {**FULL, "member": "true"},
        ]
        for form in forms:
            decision = deployed.decide(form)
            np.testing.assert_allclose(decision.mean, expected.mean[0], rtol=1e-6)
            assert decision.arm == expected.arm[0]
            assert decision.arm_name == pair.class_names[decision.arm]
            assert decision.warnings == ()

    def test_batches(self, on_tables):
        deployed, pair, policy = on_tables
        rows = [*kinds.ROWS[:2], {**kinds.ROWS[2], "income": 5e4}]
        expected = policy.decide(pair.table.contexts(rows))
        forms = [
            rows,
            tuple(rows),
            pd.DataFrame(rows),
            pl.DataFrame(rows),
            pair.table.contexts(rows),
        ]
        for form in forms:
            decision = deployed.decide(form)
            np.testing.assert_allclose(decision.mean, expected.mean, rtol=1e-6)
            np.testing.assert_array_equal(decision.arm, expected.arm)
            assert len(decision.arm_name) == len(decision.warnings) == 3

    def test_rows_become_the_contexts_of_training(self, on_tables):
        _, pair, _ = on_tables
        rng = np.random.default_rng(5)
        rows = [
            {
                "age": rng.choice([None, float(rng.normal(50, 200)), float(rng.integers(90))]),
                "income": rng.choice([None, float(rng.normal(1e4, 1e5))]),
                "city": rng.choice([None, "Oslo", "Lima", "Atlantis"]),
                "member": rng.choice([None, True, False]),
            }
            for _ in range(50)
        ]
        expected = pair.table.apply(
            pl.DataFrame(rows, schema_overrides={"age": pl.Float64, "income": pl.Float64})
        )
        np.testing.assert_array_equal(pair.table.contexts(rows), expected)
        np.testing.assert_array_equal(
            [pair.table.row_reader.read(row)[0] for row in rows], expected
        )
        spelt = [{**row, "age": str(row["age"] or "NA")} for row in rows]
        np.testing.assert_array_equal(pair.table.contexts(spelt), expected)
        for wrong, message in (
            ({"age": math.inf}, "'age' .*inf"),
            ({"income": "much"}, "'income' .*'much'"),
            ({"city": ["Oslo"]}, r"'city' .*list"),
        ):
            with pytest.raises(daband.InvalidInput, match=message):
                pair.table.contexts([*rows, {**rows[0], **wrong}])
        with pytest.raises(daband.InvalidInput, match="no 'city'"):
            pair.table.contexts([rows[0], {"age": 1, "income": 2, "member": True}])

    def test_a_missing_value_of_pandas_is_missing_everywhere(self, on_tables):
        """``policy.table.contexts`` read it as the category "<NA>"."""
        deployed, pair, _ = on_tables
        told = {"age": 41, "income": pd.NA, "city": pd.NA, "member": pd.NA}
        nothing = {"age": 41, "income": None, "city": None, "member": None}
        np.testing.assert_array_equal(pair.table.contexts(told), pair.table.contexts(nothing))
        assert deployed.decide(told).mean.tolist() == deployed.decide(nothing).mean.tolist()

    def test_images(self, on_images, tmp_path):
        resized, same = on_images
        content, pixels = image_bytes(16, 16)
        (tmp_path / "photo.png").write_bytes(content)
        expected = same.decide(pixels.transpose(2, 0, 1)).mean
        for form in (content, bytearray(content), memoryview(content), tmp_path / "photo.png"):
            np.testing.assert_allclose(same.decide(form).mean, expected)
        content, pixels = image_bytes(60, 40, kind="BMP")
        framed = np.array(Image.fromarray(pixels).resize((20, 20), Image.Resampling.BILINEAR))[
            2:18, 2:18
        ]
        decision = resized.decide([content, content])
        np.testing.assert_allclose(decision.mean[1], resized.decide(framed.transpose(2, 0, 1)).mean)
        assert decision.warnings == ((), ())


class TestOdd:
    """A named warning in the decision, or an error where that is asked for."""

    @pytest.mark.parametrize(
        ("change", "kind", "column"),
        [
            ({"name": "Ada"}, "extra_column", "name"),
            ({"city": "Atlantis"}, "unseen_category", "city"),
            ({"age": 4000}, "far_outside", "age"),
            ({"age": -4000.0}, "far_outside", "age"),
            ({"age": None}, "missing_value", "age"),
            ({"age": float("nan")}, "missing_value", "age"),
            ({"city": None}, "missing_value", "city"),
            ({"age": pd.NA}, "missing_value", "age"),
        ],
        ids=str,
    )
    def test_in_a_table(self, change, kind, column, on_tables):
        deployed, *_ = on_tables
        row = {**FULL, **change}
        (warning,) = deployed.decide(row).warnings
        assert (warning.kind, warning.column) == (kind, column)
        assert repr(column) in warning.message
        with pytest.raises(daband.InvalidInput, match=kind):
            deployed.decide(row, strict=True)
        with pytest.raises(daband.InvalidInput, match=f"row 1: .*{kind}"):
            deployed.decide([FULL, row], strict=True)
        assert [len(odd) for odd in deployed.decide([FULL, row]).warnings] == [0, 1]

    def test_a_value_that_training_missed_too_is_not_odd(self, on_tables):
        deployed, *_ = on_tables
        assert deployed.decide({**FULL, "income": None}, strict=True).warnings == ()

    def test_a_small_image_is_enlarged(self, on_images):
        resized, _ = on_images
        (warning,) = resized.decide(image_bytes(12, 30)[0]).warnings
        assert (warning.kind, warning.column) == ("small_image", "image")
        assert "12 x 30" in warning.message


class TestWrong:
    """Errors that say which column, which value, and what to do."""

    @pytest.mark.parametrize(
        ("row", "told"),
        [
            ({"age": 41, "city": "Oslo", "member": True}, "no 'income'.*None"),
            (
                {**{k: v for k, v in FULL.items() if k != "income"}, "incone": 3.0},
                "no 'income' .*'incone'",
            ),
            (
                {**{k: v for k, v in FULL.items() if k != "income"}, "Income": 3.0},
                "no 'income' .*'Income'",
            ),
            ({}, "no 'age'"),
            ({**FULL, "age": "old"}, r"'age' .*'old' \(str\)"),
            ({**FULL, "age": "1e999"}, "'age' .*finite .*'1e999'"),
            ({**FULL, "age": [41]}, "'age' .*list"),
            ({**FULL, "age": float("inf")}, "'age' .*finite .*inf"),
            ({**FULL, "age": 10**400}, "'age' .*finite .*1000"),
            ({**FULL, "age": 1e300}, r"'age' .*1e\+100"),
            ({**FULL, "city": ["Oslo"]}, "'city' .*list"),
            ({**FULL, "city": {"name": "Oslo"}}, "'city'"),
        ],
        ids=range(12),
    )
    def test_columns(self, row, told, on_tables):
        deployed, *_ = on_tables
        with pytest.raises(daband.InvalidInput, match=told):
            deployed.decide(row)
        with pytest.raises(daband.InvalidInput, match=rf"row 1: .*{told}"):
            deployed.decide([FULL, row])

    @pytest.mark.parametrize(
        ("row", "told"),
        [
            (np.zeros(3), r"shape \(8,\)"),
            (np.zeros((2, 3)), r"shape \(8,\)"),
            (np.zeros((0, 8)), "no rows"),
            (np.full(8, np.nan), "finite"),
            (np.full(8, 1e300), "norm"),
            ("age=41", "text"),
            (None, "numbers"),
            ([], "no rows"),
            (b"png", "not images"),
            ([FULL, 3], "row 1"),
            (pl.Series([1.0]), "polars"),
            (pd.DataFrame([FULL])[:0], "no rows"),
            (np.array(["a"] * 8), "numbers"),
        ],
        ids=range(13),
    )
    def test_other_things(self, row, told, on_tables):
        deployed, *_ = on_tables
        with pytest.raises(daband.InvalidInput, match=told):
            deployed.decide(row)

    def test_a_row_of_columns_for_a_policy_on_arrays(self, on_images):
        with pytest.raises(daband.InvalidInput, match=r"table; .*pair=pair"):
            on_images[0].decide(FULL)

    def test_images(self, on_images):
        resized, same = on_images
        content, _ = image_bytes(18, 16)
        with pytest.raises(daband.InvalidInput, match=r"18 x 16 pixels.*\(3, 16, 16\)"):
            same.decide(content)
        for damaged in (content[:60], b"", b"no image"):
            with pytest.raises(daband.InvalidInput, match="damaged"):
                resized.decide(damaged)
        with pytest.raises(daband.InvalidInput, match=r"row 1: .*damaged"):
            resized.decide([content, b"GIF"])
        with pytest.raises(
            daband.InvalidInput, match=r"shape \(3, 16, 16\), or \(n, 3, 16, 16\) for a batch"
        ):
            resized.decide(np.zeros((3, 18, 16), np.uint8))
        with pytest.raises(daband.InvalidInput, match="transpose"):
            resized.decide(np.zeros((16, 16, 3), np.uint8))

    def test_an_image_by_the_text_of_its_path(self, on_images, tmp_path):
        _, same = on_images
        content, _ = image_bytes(16, 16)
        (tmp_path / "a.png").write_bytes(content)
        expected = same.decide(content)
        assert same.decide(str(tmp_path / "a.png")).mean.tolist() == expected.mean.tolist()
        assert len(same.decide([str(tmp_path / "a.png")] * 2).arm) == 2
        with pytest.raises(daband.InvalidInput, match=r"nothing\.png "):
            same.decide("nothing.png")
        with (
            Image.open(tmp_path / "a.png") as opened,
            pytest.raises(daband.InvalidInput, match=r"Pillow .*bytes"),
        ):
            same.decide(opened)

    def test_floating_point_pixels_of_bytes_are_warned_of(self, on_images):
        _, same = on_images
        pixels = np.random.default_rng(0).integers(0, 256, (3, 16, 16)).astype(np.float64)
        (warning,) = same.decide(pixels).warnings
        assert (warning.kind, warning.column) == ("far_outside", "image")
        with pytest.raises(daband.InvalidInput, match=r"strict=True .*255"):
            same.decide(pixels, strict=True)
        assert same.decide(pixels / 255).warnings == ()

    def test_round_numbers(self, on_tables):
        deployed, *_ = on_tables
        for number in (-1, 1.5, "a"):
            with pytest.raises(daband.InvalidInput, match="round_number"):
                deployed.decide(FULL, round_number=number)
