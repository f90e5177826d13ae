import contextlib
import html.parser
import itertools
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from daband.bench.report._data_frames import compare
from daband.bench.report._method_summaries import summarise
from daband.bench.report._page import markdown_table, write_report
from daband.bench.report._rendering import markdown_text
from daband.bench.report._run_files import read_records
from daband.errors import DataError, InvalidInput
from tests.bench.report.conftest import copied, write_results


class Reader(html.parser.HTMLParser):
    """What a page refers to, its headings, and its identifiers."""

    def __init__(self):
        super().__init__()
        self.addresses, self.headings, self.ids, self.tags = [], [], [], []
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


def test_summary_is_mean_and_sample_deviation(vectors):
    rows = summarise(read_records(vectors))
    assert [row.method for row in rows] == ["random", "linucb", "linucb-p"]
    for name in ("accuracy", "value", "regret"):
        values = [r[f"target_{name}"] for r in read_records(vectors) if r["method"] == "linucb"]
        mean = sum(values) / 3
        assert getattr(rows[1], name).value == pytest.approx(mean)
        assert getattr(rows[1], name).deviation == pytest.approx((sum((v - mean) ** 2 for v in values) / 2) ** 0.5)
    assert rows[1].score == rows[1].value  # the pair pays real numbers
    assert rows[1].seeds == (0, 1, 2)


@pytest.fixture(scope="module")
def page(images):
    return write_report(images).read_text()


def test_the_page_stands_alone(page):
    reader = read(page)
    assert reader.addresses
    assert all(address.startswith(("#", "data:")) for address in reader.addresses), set(reader.addresses)
    assert not re.search(r"""(src|href)=["']?https?:|@import|url\(["']?https?:""", page)
    assert "script" not in reader.tags


def test_every_reference_within_the_page_has_its_place(page):
    reader = read(page)
    assert len(reader.ids) == len(set(reader.ids))
    inner = {address[1:] for address in reader.addresses if address.startswith("#")}
    inner |= set(re.findall(r"url\(#([^)]+)\)", page))
    assert inner <= set(reader.ids)


def test_the_page_shows_what_it_promises(page):
    headings = [text for _, text in read(page).headings]
    for wanted in (
        "Accuracy in the target",
        "In the target, with its rewards",
        "Learning in the source",
        "What the policy sees",
        "What ran",
        "Versions and hardware",
    ):
        assert wanted in headings
    drawn = set(re.findall(r'id="figure-digit-([\w-]+)"', page))
    assert {
        "accuracy",
        "gain",
        "target-regret",
        "source-regret",
        "bound",
        "discriminator",
        "confusion",
        "wrong",
    } <= drawn
    assert {"map-DABand", "map-NLinUCB"} & drawn
    assert "paper: DABand" in page
    assert "0.6002" in page


def test_figures_are_files_too(images, page):
    figures = images / "report" / "figures"
    names = {path.stem for path in figures.iterdir()}
    assert names == {name.removeprefix("figure-") for name in re.findall(r'id="(figure-[\w-]+)"', page)}
    for name in names:
        assert (figures / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (figures / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        ET.parse(figures / f"{name}.svg")


def test_colours_follow_the_page(page):
    drawn = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert drawn
    for svg in drawn:
        bare = re.sub(r"var\(--\w+,#[0-9a-f]{6}\)", "", svg)
        left = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", bare))
        assert left <= {"#ffffff"}, left  # a colour of the light page alone would be lost on the dark one


def test_markdown_and_latex_say_the_same(images, page):
    text = (images / "report.md").read_text()
    for _, heading in [(t, h) for t, h in read(page).headings if t in ("h2", "h3")]:
        assert f"# {heading}\n" in text
    for address in re.findall(r"\]\((report/[^)]+)\)", text):
        assert (images / address).is_file()
    tables = (images / "report" / "tables.tex").read_text()
    assert tables.count("\\begin{table}") == tables.count("\\end{table}") == page.count('<figure class="table"')
    assert tables.count("\\toprule") == tables.count("\\bottomrule") == tables.count("\\begin{table}")
    for path in (images / "report" / "tables").iterdir():
        assert path.read_text() in tables


def test_the_comparison_is_offered_as_markdown(vectors):
    lines = markdown_table(summarise(read_records(vectors))).splitlines()
    assert lines[0].startswith("| method | target value | target regret | source regret |")
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| Random", "| LinUCB", "| LinUCB-P"]


def test_the_same_runs_give_the_same_report(images, page, tmp_path):
    copy = tmp_path / images.name
    shutil.copytree(images, copy)
    assert write_report(copy, formats=()).read_text() == page


def test_runs_of_older_versions_still_give_a_report(images, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(images, old)
    for name in ("artifacts.npz", "environment.json"):
        for path in old.glob(f"*/{name}"):
            path.unlink()
    page = write_report(old, formats=()).read_text()
    assert "kept no artifacts" in page
    assert "figure-digit-source-regret" in page


def test_records_alone_give_a_report(images, tmp_path):
    shutil.copy(images / "results.json", tmp_path)
    page = write_report(tmp_path, formats=()).read_text()
    assert "folder is not here" in page
    assert "figure-digit-accuracy" in page
    assert "figure-digit-source-regret" not in page


def test_a_single_run_gives_a_report(images):
    record = next(r for r in read_records(images) if r["method"] == "daband")
    page = write_report(images / record["folder"], formats=()).read_text()
    assert f"reaches a target accuracy of {record['target_accuracy']:.3f} on digit" in page


def headline(page):
    return re.search(r"<h1>(.*?)</h1>\s*<p>(.*?)</p>", page, flags=re.DOTALL).groups()


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        ([0.80, 0.81, 0.82], [0.50, 0.52, 0.51], ("DABand is best on digit", "95% interval")),
        ([0.80, 0.40, 0.60], [0.50, 0.52, 0.51], ("DABand leads on digit", "includes no difference")),
        ([0.30, 0.31, 0.32], [0.50, 0.52, 0.51], ("NLinUCB is best on digit", "above DABand")),
        ([0.80], [0.50], ("on a single seed", "One seed says nothing")),
    ],
)
def test_the_headline_is_no_surer_than_the_runs(images, tmp_path, ours, theirs, said):
    records = {r["method"]: r for r in read_records(images) if r["seed"] == 0}
    new = []
    for method, values in (("daband", ours), ("nlinucb", theirs)):
        for seed, value in enumerate(values):
            new.append(copied(images, records[method], tmp_path, accuracy=value, seed=seed))
    write_results(tmp_path, new)
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
    assert [text for tag, text in headings if tag == "h2"] == ["amazon", "What ran"]
    assert [text for tag, text in headings if tag == "summary"][:3] == ["amazon/a-b", "amazon/b-a", "amazon/c-a"]
    assert "the mean of 3 pairs" in headline(page)[0]
    assert "mean of pairs" in page
    assert re.search(r"mean of pairs</strong></th>.*?0\.6100", page)
    assert 'id="figure-amazon-a-b-source-regret"' in page
    other = write_report(tmp_path, formats=(), pair="amazon/c-a").read_text()
    assert 'id="figure-amazon-c-a-source-regret"' in other
    assert 'id="figure-amazon-a-b-source-regret"' not in other
    with pytest.raises(InvalidInput, match=r"no run of the pair 'amazon/x'.*amazon/a-b"):
        write_report(tmp_path, pair="amazon/x")


def test_an_ablation_has_corrected_p_values_beside_the_paper(images, tmp_path):
    record = next(r for r in read_records(images) if r["method"] == "daband")
    spread = (0.0, 0.01, -0.01)
    means = {"none": 0.3, "R": 0.31, "P": 0.32, "D": 0.5, "RP": 0.33, "RD": 0.58, "PD": 0.6, "RPD": 0.6}
    records = [
        copied(
            images, record, tmp_path, variant=f"paper:{letters}", seed=seed,
            accuracy=mean + spread[seed] * (1 if letters == "RPD" else -1 if letters == "PD" else 0.5),
        )
        for letters, mean in means.items()
        for seed in range(3)
    ]  # fmt: skip
    write_results(tmp_path, records)
    page = write_report(tmp_path, formats=("png",)).read_text()
    assert "What R, P and D are worth" in page
    assert "Recipe paper with R, P and D: 6 of 7 reduced forms differ" in headline(page)[1]
    rows = (tmp_path / "report.md").read_text()
    cells = next(line for line in rows.splitlines() if line.startswith("| none of them")).split(" | ")
    assert cells[2] == "-0.3000"
    assert cells[-1].startswith("0.3816")
    p, corrected = (float(cell.removeprefix("< ")) for cell in cells[4:6])
    assert corrected >= p


def test_a_sweep_is_a_table_with_what_each_rule_picks(images, tmp_path):
    record = next(r for r in read_records(images) if r["method"] == "daband")
    records = []
    for weight, accuracy in ((1, 0.4), (5, 0.6), (10, 0.5)):
        rule = "target-entropy" if weight == 10 else "none"
        records.append(copied(images, record, tmp_path, variant=f"lambda={weight}", accuracy=accuracy, selection=rule))
    write_results(tmp_path, records)
    choice = {"pair": "digit", "rule": "target-entropy", "variant": "lambda=10", "score": 0.5, "below_best": 0.1}
    (tmp_path / "sweep.json").write_text(json.dumps({"choices": [{**choice, "rank_correlation": 0.5}]}))
    page = write_report(tmp_path, formats=()).read_text()
    assert "lambda=5 is best" in headline(page)[0]
    assert 'id="figure-digit-sweep"' in page
    assert 'id="table-digit-selection"' in page
    assert "+0.50" in page
    assert "chosen by: target-entropy" in page


def test_names_are_escaped(images, tmp_path):
    record = next(r for r in read_records(images) if r["method"] == "daband")
    names = ["<b>&_0", "100%", "#3", "a|b", r"$\frac$ and $", "*bold*", "`code`", "two\nlines", "[x](y)", "&lt;"]
    changed = copied(images, record, tmp_path, variant="50%_&<x>|`$a$*\n# y", class_names=names)
    write_results(tmp_path, [changed])
    page = write_report(tmp_path, formats=("png",)).read_text()
    assert "<b>&_0" not in page
    assert "&lt;b&gt;&amp;_0" in page
    assert "&amp;lt;" in page
    assert "<code>" not in page
    tables = (tmp_path / "report" / "tables.tex").read_text()
    assert r"100\%" in tables
    assert r"\#3" in tables
    assert not re.search(r"(?<!\\)[#]", tables)
    assert not re.search(r"^[*\[]", tables, re.MULTILINE)  # after a line's end these would be arguments of it
    markdown = (tmp_path / "report.md").read_text()
    for name in (r"a\|b", r"\<b>&\_0", r"\*bold\*", r"\`code\`", "two lines", r"\[x\](y)", r"\&lt;", r"\$a\$\* # y"):
        assert name in markdown
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    for heading, sides in itertools.pairwise(rows):
        if set(sides) <= set("|-: "):  # every row of a table has its columns
            assert len(re.findall(r"(?<!\\)\|", heading)) == sides.count("|")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("# no heading", r"\# no heading"),
        ("- no list", r"\- no list"),
        ("1. no list", r"1\. no list"),
        ("> no quote", r"\> no quote"),
        ("--- ", r"\---"),
        ("-0.25", "-0.25"),
        ("0.25", "0.25"),
        ("< 0.0001", "< 0.0001"),
        ("a\r\n\x00b", "a b"),
    ],
)
def test_markdown_at_the_start_of_a_line(given, shown):
    assert markdown_text(given) == shown


def test_latex_compiles(images, page, tmp_path):
    if shutil.which("pdflatex") is None:
        pytest.skip("no pdflatex here")
    record = next(r for r in read_records(images) if r["method"] == "daband")
    names = ["<b>&_0", "100%", "#3", r"a|b\c", "{x}~^$", "[1]", "*", "`", "a\nb", *record["class_names"][9:]]
    write_results(tmp_path, [copied(images, record, tmp_path, variant="50%_&<x>", class_names=names)])
    write_report(tmp_path, formats=())
    for folder in (images, tmp_path):
        text = (folder / "report" / "tables.tex").read_text()
        document = tmp_path / "document.tex"
        document.write_text(
            "\\documentclass{article}\\usepackage{booktabs,graphicx}\\begin{document}" + text + "\\end{document}"
        )
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-draftmode", document.name]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=3600, check=False)
        assert done.returncode == 0, done.stdout[-2000:]


def test_many_classes_are_folded_with_a_row_each(images, tmp_path):
    names = [f"sign {number}" for number in range(43)]
    new = []
    for record in read_records(images):
        changed = copied(images, record, tmp_path, class_names=names, per_class=[0.5] * 43)
        (tmp_path / changed["folder"] / "artifacts.npz").unlink()
        new.append(changed)
    write_results(tmp_path, new)
    page = write_report(tmp_path, formats=()).read_text()
    assert ("summary", "Every class (43)") in read(page).headings
    table = re.search(r'id="table-digit-classes".*?</figure>', page, flags=re.DOTALL).group()
    assert table.count("<tr>") == 1 + 43 + 1
    assert '<th scope="row" class="t">sign 42</th>' in table


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_shortest_runs_give_a_report(images, tmp_path, n):
    new = [copied(images, record, tmp_path) for record in read_records(images) if record["seed"] == 0]
    for record in new:
        folder = tmp_path / record["folder"]
        lines = (folder / "episodes.jsonl").read_text().splitlines()[:n]
        (folder / "episodes.jsonl").write_text("\n".join(lines))
        rounds = dict(np.load(folder / "rounds.npz"))
        np.savez(folder / "rounds.npz", **{name: column[:n] for name, column in rounds.items()})
    write_results(tmp_path, new)
    page = write_report(tmp_path, formats=()).read_text()
    assert {"bound", "discriminator", "source-regret"} <= set(re.findall(r'id="figure-digit-([\w-]+)"', page))


def test_what_went_wrong_is_told(images, tmp_path):
    records = [r for r in read_records(images) if r["seed"] == 0 or r["method"] == "daband"]
    new = [copied(images, record, tmp_path) for record in records]
    collapsed = next(r for r in new if r["method"] == "daband")
    lines = [json.dumps({"episode": n, "regret": 1.0, "reward": 0.0, "target_top_share": 1.0}) for n in range(1, 12)]
    (tmp_path / collapsed["folder"] / "episodes.jsonl").write_text("\n".join(lines))
    (tmp_path / collapsed["folder"] / "environment.json").write_text(json.dumps({"artifacts_error": "RuntimeError: x"}))
    write_results(tmp_path, new)
    page = write_report(tmp_path, formats=()).read_text()
    assert "one arm for the target" in page
    assert "could not be kept: RuntimeError: x" in page
    assert "different seeds" in page


def test_what_cannot_be_reported(images, tmp_path):
    with pytest.raises(DataError, match="there is no folder"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"no results\.json and no finished run"):
        write_report(tmp_path)
    (tmp_path / "results.json").write_text("[")
    with pytest.raises(DataError, match=r"results\.json is not JSON"):
        write_report(tmp_path)
    (tmp_path / "results.json").write_text(json.dumps([]))
    with pytest.raises(DataError, match="no finished run"):
        write_report(tmp_path)
    (tmp_path / "results.json").write_text(json.dumps([{"pair": "digit"}]))
    with pytest.raises(DataError, match="not a list of results"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rounds.npz", b"not a zip", r"rounds\.npz is damaged"),
        ("artifacts.npz", b"PK\x03\x04 cut", r"artifacts\.npz is damaged"),
        ("episodes.jsonl", b'{"episode": 1}\n{"epi', r"episodes\.jsonl is damaged"),
        ("episodes.jsonl", b"1\n", r"episodes\.jsonl is damaged"),
        ("episodes.jsonl", b"\xff\n", r"episodes\.jsonl is damaged"),
        ("config.json", b"{", r"config\.json is not JSON"),
        ("environment.json", b"[]", r"environment\.json is not what daband writes"),
    ],
)
def test_a_damaged_file_is_named(images, tmp_path, name, content, message):
    record = next(r for r in read_records(images) if r["method"] == "daband")
    new = copied(images, record, tmp_path, digests=True)
    (tmp_path / new["folder"] / name).write_bytes(content)
    write_results(tmp_path, [new])
    with pytest.raises(DataError, match=f"{name} is damaged: its content does not match its digest"):
        write_report(tmp_path)
    (tmp_path / new["folder"] / "done").write_text("")  # as an older version wrote it: what is wrong shows later
    with pytest.raises(DataError, match=message):
        write_report(tmp_path)


@pytest.mark.parametrize(
    "name", ["rounds.npz", "artifacts.npz", "episodes.jsonl", "result.json", "config.json", "done"]
)
def test_one_changed_bit_is_an_error_and_never_another_number(images, tmp_path, name):
    record = next(r for r in read_records(images) if r["method"] == "daband")
    new = copied(images, record, tmp_path, digests=True)
    write_results(tmp_path, [new])
    path = tmp_path / new["folder"] / name
    whole = path.read_bytes()
    for place in np.linspace(0, len(whole) - 1, 7).astype(int):
        changed = bytearray(whole)
        changed[place] ^= 1 << int(place % 8)
        path.write_bytes(changed)
        if name == "done":  # the name of a file may have changed: its digest is not compared, and its numbers stand
            with contextlib.suppress(DataError):
                write_report(tmp_path, formats=())
            continue
        with pytest.raises(DataError, match=r"damaged|not JSON"):
            write_report(tmp_path, formats=())


def test_results_that_differ_from_a_run_are_refused(images, tmp_path):
    record = next(r for r in read_records(images) if r["method"] == "daband")
    new = copied(images, record, tmp_path, digests=True)
    write_results(tmp_path, [{**new, "target_accuracy": 0.999}])
    with pytest.raises(DataError, match=r"results\.json is damaged: it differs from"):
        write_report(tmp_path, formats=())


def test_an_unknown_divergence_is_missing_and_there_is_no_sum(images, page):
    table = re.search(r'id="table-digit-bound".*?</figure>', page, flags=re.DOTALL).group()
    rows = {row[0]: row[1:] for row in (re.findall(r">([^<]*)</t[hd]>", line) for line in table.split("<tr>")) if row}
    nlinucb, daband = ([heading.startswith(name) for heading in rows["term"]].index(True) for name in ("NLin", "DAB"))
    for name in ("divergence", "sum, without psi"):
        assert rows[name][nlinucb] == "unknown"
        assert float(rows[name][daband]) >= 0
    assert float(rows["regression error"][nlinucb]) > 0


def test_real_rewards_are_shown_in_their_unit(vectors):
    page = write_report(vectors, formats=()).read_text()
    record = next(r for r in read_records(vectors) if r["method"] == "linucb")
    assert "Value in the target" in [text for _, text in read(page).headings]
    assert "target value" in headline(page)[0]
    assert 'id="figure-synthetic-value"' in page
    assert f"the best arm has {record['target_best_value']:.4f}" in page
    assert f"the best constant arm has {record['target_constant_value']:.4f}" in page
    table = re.search(r'id="table-synthetic-methods".*?</figure>', page, flags=re.DOTALL).group()
    assert "target regret" in table
    assert "1 - regret / N" not in table


def test_a_report_says_what_a_policy_is_worth_and_what_was_there_without_it(vectors, tmp_path):
    """Value in its unit, above the best constant arm and above the logger, with intervals; no accuracy."""
    records = [copied(vectors, record, tmp_path, logger_value=0.25) for record in read_records(vectors)]
    write_results(tmp_path, records)
    page = write_report(tmp_path, formats=()).read_text()
    table = re.search(r'id="table-synthetic-decision".*?</figure>', page, flags=re.DOTALL).group()
    mine = [record for record in records if record["method"] == "linucb"]
    gains = [record["target_value"] - record["target_constant_value"] for record in mine]
    over_logger = [record["target_value"] - 0.25 for record in mine]
    for values in (gains, over_logger):
        assert f"{np.mean(values):+.4f}" in table
    assert "The mean reward of the log itself, in the source, is 0.2500" in table
    assert "accuracy" not in table
    assert page.index("What it is worth") < page.index("Value in the target")
    assert page.count('id="figure-synthetic-value"') == 1


def test_a_log_without_target_labels_shows_its_loggers_reward_once(vectors, tmp_path):
    unknown = {**dict.fromkeys(TARGET), "logger_value": 0.375, "source_regret": None}
    write_results(tmp_path, [copied(vectors, record, tmp_path, **unknown) for record in read_records(vectors)])
    page = write_report(tmp_path, formats=()).read_text()
    table = re.search(r'id="table-synthetic-methods".*?</figure>', page, flags=re.DOTALL).group()
    assert not re.search(r">\s*source reward\s*<", table)  # no column of it; the caption speaks of source rewards
    assert "The mean reward of the log itself is 0.375 a round" in table


TARGET = (
    "target_accuracy", "target_accuracy_macro", "target_value", "target_best_value", "target_constant_value",
    "target_regret", "per_class",
)  # fmt: skip


def test_a_target_without_labels_gives_a_page_of_what_is_known(images, tmp_path):
    new = []
    for record in read_records(images):
        changed = copied(images, record, tmp_path, **dict.fromkeys(TARGET))
        kept = dict(np.load(tmp_path / changed["folder"] / "artifacts.npz"))
        kept = {name: column for name, column in kept.items() if name.startswith("latent")}
        np.savez(tmp_path / changed["folder"] / "artifacts.npz", **kept)
        shutil.rmtree(tmp_path / changed["folder"] / "continued", ignore_errors=True)
        new.append(changed)
    write_results(tmp_path, new)
    page = write_report(tmp_path, formats=()).read_text()
    assert "how good they are in the target is not known" in headline(page)[0]
    headings = [text for _, text in read(page).headings]
    assert "What is known without target labels" in headings
    assert "Learning in the source" in headings
    drawn = set(re.findall(r'id="figure-digit-([\w-]+)"', page))
    assert {"source-regret", "bound", "map-DABand"} <= drawn
    assert not {"accuracy", "gain", "confusion", "wrong"} & drawn
    arms = re.search(r'id="table-digit-arms".*?</figure>', page, flags=re.DOTALL).group()
    shares = [float(cell) for cell in re.findall(r"<td[^>]*>([.\d]+)</td>", arms)]
    assert len(shares) == 30
    assert sum(shares) == pytest.approx(3.0, abs=0.02)
    assert compare(tmp_path)["accuracy"].null_count() == 3


@pytest.mark.parametrize("variants", [("paper:none", "paper:RPD"), ("lambda=1", "lambda=2")])
def test_variants_without_target_labels_give_a_page(images, tmp_path, variants):
    record = next(r for r in read_records(images) if r["method"] == "daband")
    write_results(tmp_path, [copied(images, record, tmp_path, variant=v, **dict.fromkeys(TARGET)) for v in variants])
    assert "not known" in headline(write_report(tmp_path, formats=()).read_text())[0]
