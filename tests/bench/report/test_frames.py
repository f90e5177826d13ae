import polars as pl
import pytest

from daband.bench.report._run_files import episodes, frame, read_records
from daband.errors import DataError, InvalidInput


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


def test_several_folders(images, vectors):
    assert set(frame([images, vectors])["pair"]) == {"digit", "synthetic"}


def test_what_is_not_there_is_told(tmp_path):
    with pytest.raises(DataError, match="there is no folder"):
        frame(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match="folders is empty"):
        frame([])
