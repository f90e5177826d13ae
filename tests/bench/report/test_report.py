import html.parser
import json
import re
import shutil
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from daband.bench.report import _page
from daband.bench.report._method_summaries import summarise
from daband.bench.report._page import write_report
from daband.bench.report._run_files import read_records
from daband.errors import DataError, InvalidInput
from tests.bench.report.conftest import copied, write_results

TARGET = (
    "target_accuracy",
    "target_accuracy_macro",
    "target_value",
    "target_best_value",
    "target_constant_value",
    "target_regret",
    "per_class",
)
"""Fields of a record that need target labels."""


class Reader(html.parser.HTMLParser):
    """The addresses, headings, identifiers and tags of a page."""

    def __init__(self):
        super().__init__()
        self.addresses = []
        self.headings = []
        self.ids = []
        self.tags = []
        self._inside = None

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self._inside = tag if tag in ("h1", "h2", "h3", "summary") else None
        for name, value in attributes:
            if name in ("src", "href", "xlink:href"):
                self.addresses.append(value)
            if name == "id":
                self.ids.append(value)

    def handle_data(self, data):
        if self._inside:
            self.headings.append((self._inside, data))
            self._inside = None


def read(page):
    reader = Reader()
    reader.feed(page)
    return reader


def drawn(page):
    return set(re.findall(r'id="figure-([\w.-]+)"', page))


def table(page, name):
    return re.search(rf'id="table-{name}".*?</figure>', page, flags=re.DOTALL).group()


def headline(page):
    return re.search(r"<h1>(.*?)</h1>\s*<p>(.*?)</p>", page, flags=re.DOTALL).groups()


def first_daband(folder):
    return next(record for record in read_records(folder) if record["method"] == "daband")


@pytest.fixture(scope="module")
def page(images):
    return write_report(images).read_text()


@pytest.fixture(autouse=True)
def quick_figures(monkeypatch):
    """Figures are built but not drawn, which takes most of the time; the fixture ``page`` draws
    them before.
    """
    monkeypatch.setattr(_page, "_render_figure", lambda *_: b"<svg/>")


def test_summary_is_mean_and_sample_deviation(vectors):
    rows = summarise(read_records(vectors))
    assert [row.method for row in rows] == ["random", "linucb", "linucb-p"]
    for name in ("accuracy", "value", "regret"):
        values = [r[f"target_{name}"] for r in read_records(vectors) if r["method"] == "linucb"]
        assert getattr(rows[1], name).value == pytest.approx(np.mean(values))
        assert getattr(rows[1], name).deviation == pytest.approx(np.std(values, ddof=1))
    assert rows[1].score == rows[1].value  # rewards of this pair are real numbers


def test_the_page_needs_no_other_file(page):
    reader = read(page)
    assert reader.addresses
    assert all(address.startswith(("#", "data:")) for address in reader.addresses), set(
        reader.addresses
    )
    assert not re.search(r"""(src|href)=["']?https?:|@import|url\(["']?https?:""", page)
    assert "script" not in reader.tags
    assert len(reader.ids) == len(set(reader.ids))
    assert {address[1:] for address in reader.addresses if address.startswith("#")} <= set(
        reader.ids
    )


def test_the_page_has_its_sections_and_figures(images, page):
    headings = [text for _, text in read(page).headings]
    for wanted in ("Target accuracy", "Continued in the target", "Learning in the source"):
        assert wanted in headings
    names = drawn(page)
    assert {f"digit-{name}" for name in ("accuracy", "target-regret", "source-regret")} <= names
    assert "paper: DABand" in page
    assert "0.6002" in page
    figures = images / "report" / "figures"
    assert {path.stem for path in figures.iterdir()} == names
    for name in names:
        assert (figures / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (figures / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        ET.parse(figures / f"{name}.svg")


def test_the_same_runs_give_the_same_report(images, page, tmp_path, monkeypatch):
    monkeypatch.undo()
    copy = tmp_path / images.name
    shutil.copytree(images, copy)
    assert write_report(copy, formats=()).read_text() == page


def test_records_without_folders_and_a_single_run_give_a_report(images, tmp_path):
    shutil.copy(images / "results.json", tmp_path)
    page = write_report(tmp_path, formats=()).read_text()
    assert "folder is missing" in page
    assert "digit-accuracy" in drawn(page)
    assert "digit-source-regret" not in drawn(page)
    record = first_daband(images)
    page = write_report(images / record["folder"], formats=()).read_text()
    assert f"reaches a target accuracy of {record['target_accuracy']:.3f} on digit" in page


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        ([0.80, 0.81, 0.82], [0.50, 0.52, 0.51], ("DABand is best on digit", "95% interval")),
        ([0.80, 0.40, 0.60], [0.50, 0.52, 0.51], ("DABand leads on digit", "includes 0")),
        ([0.30, 0.31, 0.32], [0.50, 0.52, 0.51], ("NLinUCB is best on digit", "above DABand")),
        ([0.80], [0.50], ("on a single seed", "One seed gives no interval")),
    ],
)
def test_the_headline_says_how_sure_it_is(images, tmp_path, ours, theirs, said):
    records = {r["method"]: r for r in read_records(images) if r["seed"] == 0}
    new = [
        copied(images, records[method], tmp_path, accuracy=value, seed=seed)
        for method, values in (("daband", ours), ("nlinucb", theirs))
        for seed, value in enumerate(values)
    ]
    write_results(tmp_path, new)
    shutil.rmtree(tmp_path / new[0]["folder"])  # records are enough for a headline
    sentence, detail = headline(write_report(tmp_path, formats=()).read_text())
    assert said[0] in sentence
    assert said[1] in sentence + detail


def test_several_pairs_are_one_section_with_details_folded(vectors, tmp_path):
    records = []
    for number, pair in enumerate(("amazon/a-b", "amazon/b-a", "amazon/c-a")):
        for record in read_records(vectors):
            changed = 0.5 + 0.01 * number + 0.1 * (record["method"] == "linucb")
            records.append(copied(vectors, record, tmp_path, pair=pair, accuracy=changed))
    write_results(tmp_path, records)
    page = write_report(tmp_path, formats=()).read_text()
    headings = read(page).headings
    assert [text for tag, text in headings if tag == "h2"] == ["amazon", "Versions and settings"]
    folded = [text for tag, text in headings if tag == "summary"]
    assert folded == [f"amazon/{pair}: Target value" for pair in ("a-b", "b-a", "c-a")]
    assert "the mean of 3 pairs" in headline(page)[0]
    assert re.search(r"mean of pairs</th>.*?0\.6100", page)
    assert "amazon-a-b-source-regret" in drawn(page)
    assert "amazon-c-a-source-regret" in drawn(
        write_report(tmp_path, formats=(), pair="amazon/c-a").read_text()
    )
    with pytest.raises(InvalidInput, match=r"no run of the pair 'amazon/x'.*amazon/a-b"):
        write_report(tmp_path, pair="amazon/x")


def test_an_ablation_has_corrected_p_values_next_to_the_paper(images, tmp_path):
    record = first_daband(images)
    deviations = (0.0, 0.01, -0.01)
    means = {
        "none": 0.3,
        "R": 0.31,
        "P": 0.32,
        "D": 0.5,
        "RP": 0.33,
        "RD": 0.58,
        "PD": 0.6,
        "RPD": 0.6,
    }
    records = [
        copied(
            images,
            record,
            tmp_path,
            variant=f"paper:{letters}",
            seed=seed,
            accuracy=mean
            + deviations[seed] * (1 if letters == "RPD" else -1 if letters == "PD" else 0.5),
        )
        for letters, mean in means.items()
        for seed in range(3)
    ]
    write_results(tmp_path, records)
    page = write_report(tmp_path, formats=()).read_text()
    assert "Ablation of R, P and D" in page
    row = next(
        row for row in table(page, "digit-ablation-paper").split("<tr>") if "none of them" in row
    )
    cells = re.findall(r"<td[^>]*>(.*?)</td>", row)
    assert cells[1] == "-0.3000"
    assert 0 < float(cells[3].removeprefix("&lt; ")) < 0.05
    assert cells[-1].startswith("0.3816")


def test_names_are_escaped(images, tmp_path):
    names = [
        "<b>&_0",
        "100%",
        "#3",
        "a|b",
        r"$\frac$ and $",
        "*bold*",
        "`code`",
        "two\nlines",
        "[x](y)",
        "&lt;",
    ]
    changed = copied(
        images, first_daband(images), tmp_path, variant="50%_&<x>|`$a$*\n# y", class_names=names
    )
    write_results(tmp_path, [changed])
    page = write_report(tmp_path, formats=()).read_text()
    assert "<b>&_0" not in page
    for shown in ("&lt;b&gt;&amp;_0", "&amp;lt;"):
        assert shown in page


def test_every_class_has_a_row(images, tmp_path):
    names = [f"sign {number}" for number in range(43)]
    new = []
    for record in read_records(images):
        changed = copied(images, record, tmp_path, class_names=names, per_class=[0.5] * 43)
        new.append(changed)
    write_results(tmp_path, new)
    page = write_report(tmp_path, formats=()).read_text()
    assert table(page, "digit-classes").count("<tr>") == 1 + 43 + 1


def test_the_shortest_run_gives_a_report(images, tmp_path):
    new = [
        copied(images, record, tmp_path) for record in read_records(images) if record["seed"] == 0
    ]
    for record in new:
        folder = tmp_path / record["folder"]
        (folder / "episodes.jsonl").write_text(
            (folder / "episodes.jsonl").read_text().splitlines()[0]
        )
        rounds = dict(np.load(folder / "rounds.npz"))
        np.savez(folder / "rounds.npz", **{name: column[:1] for name, column in rounds.items()})
    write_results(tmp_path, new)
    page = write_report(tmp_path, formats=()).read_text()
    assert "digit-source-regret" in drawn(page)


def test_warnings_name_their_runs(images, tmp_path):
    records = [r for r in read_records(images) if r["seed"] == 0 or r["method"] == "daband"]
    new = [copied(images, record, tmp_path) for record in records]
    collapsed = next(r for r in new if r["method"] == "daband")
    lines = [
        json.dumps({"episode": n, "regret": 1.0, "reward": 0.0, "target_top_share": 1.0})
        for n in range(1, 12)
    ]
    (tmp_path / collapsed["folder"] / "episodes.jsonl").write_text("\n".join(lines))
    write_results(tmp_path, new)
    page = write_report(tmp_path, formats=()).read_text()
    for words in ("one arm for the target", "different seeds"):
        assert words in page


def test_folders_without_runs_are_errors(tmp_path):
    with pytest.raises(DataError, match="there is no folder"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"no results\.json and no finished run"):
        write_report(tmp_path)
    for text, message in (
        ("[", r"results\.json is not JSON"),
        ("[]", "no finished run"),
        ('[{"pair": "digit"}]', "not a list of results"),
    ):
        (tmp_path / "results.json").write_text(text)
        with pytest.raises(DataError, match=message):
            write_report(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rounds.npz", b"not a zip", r"rounds\.npz is damaged"),
        ("episodes.jsonl", b'{"episode": 1}\n{"epi', r"episodes\.jsonl is damaged"),
        ("episodes.jsonl", b"1\n", r"episodes\.jsonl is damaged"),
        ("environment.json", b"[]", r"environment\.json was not written by daband"),
    ],
)
def test_a_damaged_file_is_named(images, tmp_path, name, content, message):
    new = copied(images, first_daband(images), tmp_path, digests=True)
    (tmp_path / new["folder"] / name).write_bytes(content)
    write_results(tmp_path, [new])
    with pytest.raises(
        DataError, match=f"{name} is damaged: its content does not match its digest"
    ):
        write_report(tmp_path, formats=())
    # without digests the content itself is an error
    (tmp_path / new["folder"] / "done").write_text("")
    with pytest.raises(DataError, match=message):
        write_report(tmp_path, formats=())


def test_real_rewards_are_shown_in_their_unit_over_the_best_constant_arm(vectors):
    page = write_report(vectors, formats=()).read_text()
    records = [r for r in read_records(vectors) if r["method"] == "linucb"]
    assert "Target value" in [text for _, text in read(page).headings]
    assert "target value" in headline(page)[0]
    assert "synthetic-value" in drawn(page)
    shown = table(page, "synthetic-methods")
    assert f"the best arm has {records[0]['target_best_value']:.4f}" in shown
    gain = np.mean([record["target_value"] - record["target_constant_value"] for record in records])
    assert f"{gain:+.4f}" in shown
    assert "target regret" in shown
    assert "accuracy" not in shown


def test_a_target_without_labels_shows_source_results_and_chosen_arms(images, vectors, tmp_path):
    new = []
    for record in read_records(images):
        changed = copied(images, record, tmp_path, **dict.fromkeys(TARGET))
        shutil.rmtree(tmp_path / changed["folder"] / "continued", ignore_errors=True)
        new.append(changed)
    write_results(tmp_path, new)
    page = write_report(tmp_path, formats=()).read_text()
    assert "their rewards there were not measured" in headline(page)[0]
    assert "Results without target labels" in [text for _, text in read(page).headings]
    assert "digit-source-regret" in drawn(page)
    assert "digit-accuracy" not in drawn(page)
    fractions = [
        float(cell) for cell in re.findall(r"<td[^>]*>([.\d]+)</td>", table(page, "digit-arms"))
    ]
    assert len(fractions) == 30
    assert sum(fractions) == pytest.approx(3.0, abs=0.02)
    unknown = {**dict.fromkeys(TARGET), "logger_value": 0.375, "source_regret": None}
    logged = tmp_path / "logged"
    logged.mkdir()
    write_results(
        logged, [copied(vectors, record, logged, **unknown) for record in read_records(vectors)]
    )
    shown = table(write_report(logged, formats=()).read_text(), "synthetic-methods")
    assert "The mean reward of the log is 0.375 per round" in shown
    assert not re.search(r">\s*source reward\s*<", shown)


@pytest.mark.parametrize("variants", [("paper:none", "paper:RPD"), ("lambda=1", "lambda=2")])
def test_variants_without_target_labels_give_a_page(images, tmp_path, variants):
    record = first_daband(images)
    write_results(
        tmp_path,
        [copied(images, record, tmp_path, variant=v, **dict.fromkeys(TARGET)) for v in variants],
    )
    assert "not measured" in headline(write_report(tmp_path, formats=()).read_text())[0]
