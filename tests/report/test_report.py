import html.parser
import json

import pytest

from daband.errors import DataError
from daband.experiments import Experiment, bench
from daband.report import markdown_table, read_records, summarise, write_report


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    small = Experiment(
        pair="synthetic",
        pair_options={"tiny": True},
        episodes=3,
        episode_length=8,
        seeds=(0, 1, 2),
        components=3,
        compare=("random", "linucb", "linucb-p"),
    )
    bench(small.runs(), out)
    return out


def test_summary_is_mean_and_sample_deviation(folder):
    rows = summarise(read_records(folder))
    assert [row.method for row in rows] == ["random", "linucb", "linucb-p"]
    values = [r["target_accuracy"] for r in read_records(folder) if r["method"] == "linucb"]
    mean = sum(values) / 3
    assert rows[1].accuracy == pytest.approx(mean)
    assert rows[1].accuracy_spread == pytest.approx((sum((v - mean) ** 2 for v in values) / 2) ** 0.5)
    assert rows[1].seeds == (0, 1, 2)


def test_the_page_stands_alone(folder):
    page = write_report(folder).read_text()
    addresses = []

    class Reader(html.parser.HTMLParser):
        def handle_starttag(self, tag, attributes):
            addresses.extend(value for name, value in attributes if name in ("src", "href"))

    Reader().feed(page)
    assert addresses
    assert all(address.startswith("data:image/png;base64,") for address in addresses)
    assert "linucb-p" in page
    assert (folder / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert markdown_table(summarise(read_records(folder))) in (folder / "report.md").read_text()


def test_what_cannot_be_reported(tmp_path):
    with pytest.raises(DataError, match=r"no results\.json"):
        write_report(tmp_path)
    (tmp_path / "results.json").write_text("[")
    with pytest.raises(DataError, match="not JSON"):
        write_report(tmp_path)
    (tmp_path / "results.json").write_text(json.dumps([]))
    with pytest.raises(DataError, match="no finished run"):
        write_report(tmp_path)
