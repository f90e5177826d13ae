import pytest

from daband.bench.report._run_files import frame, read_records
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
    assert table.groupby("method")["target_accuracy"].mean().idxmax() in {
        "linucb",
        "nlinucb",
        "daband",
    }


def test_several_folders(images, vectors):
    assert set(frame([images, vectors])["pair"]) == {"digit", "synthetic"}


def test_what_is_not_there_is_told(tmp_path):
    with pytest.raises(DataError, match="there is no folder"):
        frame(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match="folders must have at least one"):
        frame([])
