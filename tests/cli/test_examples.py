"""``daband example`` writes data and prints commands, and ``daband demo`` runs on them."""

import polars as pl
import pytest

from daband.domains._examples import list_examples


def test_without_a_name_all_examples_are_listed(daband):
    assert [line.split()[0] for line in daband("example").stdout.splitlines()] == list_examples()


def test_files_are_written_once_and_never_overwritten(daband, tmp_path):
    first = daband("example", "images", "--out", "shapes")
    assert first.returncode == 0, first.stderr
    assert "cd shapes\n" in first.stdout
    assert len(list((tmp_path / "shapes" / "photos").iterdir())) == 100
    assert daband("example", "images", "--out", "shapes").returncode == 0
    (tmp_path / "shapes/photos/circle-0.png").write_bytes(b"mine")
    (tmp_path / "shapes/photos/circle-1.png").unlink()
    second = daband("example", "images", "--out", "shapes")
    assert second.returncode == 2
    assert "circle-0.png" in second.stderr
    assert not (tmp_path / "shapes/photos/circle-1.png").exists()


def test_rewards_of_a_log_are_filled_in(daband, tmp_path):
    rows = {"decision": [30_001, 30_002], "arm": ["letter", "visit"], "reward": [None, None]}
    pl.DataFrame(rows).write_csv(tmp_path / "log.csv")
    done = daband("example", "ab-test", "--fill", "log.csv")
    assert done.returncode == 0, done.stderr
    assert pl.read_csv(tmp_path / "log.csv")["reward"].null_count() == 0
    assert daband("example", "ab-test", "--fill", "log.parquet").returncode == 2


@pytest.mark.slow
def test_the_demo_without_torch_is_the_test_of_offers(daband, tmp_path, monkeypatch):
    monkeypatch.setattr("daband.cli._experiments.find_spec", lambda name: None)
    done = daband("demo", "--out", "demo")
    assert done.returncode == 0, done.stderr
    assert "Deploy: " in done.stdout
    assert "arms are chosen by context" in done.stdout
    assert "daband[deep]" in done.stdout
    assert (tmp_path / "demo/ab-test/market/report.html").is_file()
