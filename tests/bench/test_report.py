import html.parser
import shutil
from urllib.parse import unquote

import numpy as np
import pytest

from daband.bench import read_results, write_report
from daband.errors import DataError
from tests.bench.conftest import copied, write_results


class Reader(html.parser.HTMLParser):
    """The addresses, tags and texts of a page."""

    def __init__(self):
        super().__init__()
        self.addresses = []
        self.tags = []
        self.texts = []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href")]

    def handle_data(self, data):
        self.texts.append(data)


def read(page):
    reader = Reader()
    reader.feed(page)
    return reader


@pytest.fixture(scope="module")
def page(images):
    return write_report(images).read_text()


def test_the_page_has_tables_settings_and_links_to_files_that_exist(images, page):
    reader = read(page)
    files = [address for address in reader.addresses if not address.startswith("data:")]
    assert len(files) == 5 * 6
    assert all((images / unquote(name)).is_file() for name in files)
    assert "script" not in reader.tags
    accuracies = [
        record["target_accuracy"] for record in read_results(images) if record["method"] == "daband"
    ]
    cell = f"{np.mean(accuracies):.4f} ± {np.std(accuracies, ddof=1):.4f}"
    for text in (cell, "target accuracy"):
        assert text in reader.texts
    assert any('"episode_length": 8' in text for text in reader.texts)
    assert any('"python": "3.' in text and "numpy" in text for text in reader.texts)


def test_the_same_runs_give_the_same_report(images, page, tmp_path):
    shutil.copytree(images, tmp_path / "copy")
    assert write_report(tmp_path / "copy").read_text() == page


def test_each_method_that_plays_has_a_learning_curve(vectors):
    page = write_report(vectors).read_text()
    assert page.count("<svg") == 3
    for method in ("random", "linucb", "linucb-p"):
        assert f"synthetic, {method} default: mean source reward" in page


def test_runs_that_are_no_longer_listed_are_left_out(vectors, tmp_path):
    new = [copied(vectors, one, tmp_path) for one in read_results(vectors)[:2]]
    write_results(tmp_path, new[:1])
    page = write_report(tmp_path).read_text()
    assert new[0]["folder"] in page
    assert new[1]["folder"] not in page


def test_names_are_escaped(vectors, tmp_path):
    record = copied(vectors, read_results(vectors)[0], tmp_path, method="<b>&")
    write_results(tmp_path, [record])
    page = write_report(tmp_path).read_text()
    assert "<b>" not in page
    assert "&lt;b&gt;&amp;" in page


def test_folders_without_runs_are_errors(tmp_path):
    for folder in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(DataError):
            write_report(folder)
    for text in ("[", "[]", "{}"):
        (tmp_path / "results.json").write_text(text)
        with pytest.raises(DataError):
            write_report(tmp_path)


@pytest.mark.parametrize("name", ["environment.json", "config.json", "result.json"])
def test_a_damaged_file_is_named(vectors, tmp_path, name):
    record = copied(vectors, read_results(vectors)[0], tmp_path)
    write_results(tmp_path, [record])
    write_report(tmp_path)
    (tmp_path / record["folder"] / name).write_text("{")
    with pytest.raises(DataError, match=name):
        write_report(tmp_path)
