import shutil

import numpy as np
import polars as pl
import pytest

import daband.bench.report
from daband._files import finish_folder
from daband.bench.report._data_frames import compare, episodes, frame
from daband.bench.report._run_files import read_records
from daband.errors import DataError, InvalidInput
from tests.bench.report.conftest import copied, write_results


def test_a_frame_has_a_row_per_run(images):
    table = frame(images)
    records = read_records(images)
    assert table.height == len(records) == 6
    assert table["target_accuracy"].to_list() == [r["target_accuracy"] for r in records]
    assert table["per_class"].to_list()[0] == records[0]["per_class"]
    assert (images / records[0]["folder"]).samefile(table["run_folder"][0])


def test_frames_become_pandas(images):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    table = frame(images).to_pandas()
    assert isinstance(table, pandas.DataFrame)
    assert table.groupby("method")["target_accuracy"].mean().idxmax() in {"linucb", "nlinucb", "daband"}


def test_episodes_hold_what_training_measured(images):
    table = episodes(images)
    assert table.height == 6 * 4
    mine = table.filter((pl.col("method") == "daband") & (pl.col("seed") == 0))
    assert mine["episode"].to_list() == [1, 2, 3, 4]
    assert mine["source_rounds"].to_list() == [8, 16, 24, 32]
    record = next(r for r in read_records(images) if r["method"] == "daband" and r["seed"] == 0)
    assert mine["regret"].to_list()[-1] == pytest.approx(record["source_regret"])
    linear = table.filter(pl.col("method") == "linucb")
    assert linear["discriminator_accuracy"].null_count() == linear.height


def test_compare_is_tidy_and_paired(images, tmp_path):
    records = {r["method"]: r for r in read_records(images) if r["seed"] == 0}
    ours, theirs = [0.7, 0.8, 0.75], [0.5, 0.55, 0.56]
    new = [copied(images, records["daband"], tmp_path, seed=s, accuracy=a) for s, a in enumerate(ours)]
    new += [copied(images, records["nlinucb"], tmp_path, seed=s, accuracy=a) for s, a in enumerate(theirs)]
    write_results(tmp_path, new)
    table = compare(tmp_path)
    assert table["method"].to_list() == ["daband", "nlinucb"]  # the best first
    best = table.row(0, named=True)
    difference = np.array(ours) - np.array(theirs)
    assert best["accuracy"] == pytest.approx(0.75)
    assert best["difference"] == pytest.approx(difference.mean())
    reach = 4.302652729911275 * difference.std(ddof=1) / 3**0.5  # Student's t, 2 degrees of freedom
    assert best["low"] == pytest.approx(difference.mean() - reach)
    assert best["high"] == pytest.approx(difference.mean() + reach)
    assert best["paired_seeds"] == 3
    assert table.row(1, named=True)["difference"] is None
    other = compare(tmp_path, baseline="daband")
    assert other.row(1, named=True)["difference"] == pytest.approx(-difference.mean())


def test_several_folders_count_each_run_once(images, vectors, tmp_path):
    both = compare([images, vectors])
    assert set(both["pair"]) == {"digit", "synthetic"}
    single = images / read_records(images)[0]["folder"]
    assert compare([images, single]).equals(compare(images))
    other = tmp_path / "other"
    shutil.copytree(single, other)
    text = (other / "result.json").read_text()
    (other / "result.json").write_text(text.replace('"config_hash": "', '"config_hash": "x'))
    finish_folder(other, ())
    with pytest.raises(InvalidInput, match="two runs of other settings"):
        compare([images, other])


def test_a_single_seed_has_a_difference_but_no_interval(images):
    single = [images / r["folder"] for r in read_records(images) if r["seed"] == 0]
    row = compare(single).filter(pl.col("method") == "daband").row(0, named=True)
    assert row["difference"] is not None
    assert row["low"] is None
    assert row["p_value"] is None


def test_what_is_not_there_is_told(tmp_path):
    with pytest.raises(DataError, match="there is no folder"):
        frame(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match="folders is empty"):
        compare([])


def test_the_names_are_public():
    assert {"compare", "frame", "episodes", "write_report", "paper_accuracy"} <= set(daband.bench.report.__all__)
