"""Pages of results are what their records say, and every record says which code made it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "benchmarks" / "records"
sys.path.insert(0, str(ROOT / "benchmarks"))
SPLIT = {RECORDS / "split.json"}  # which data sets may be looked at; no run made it
SECOND_READING = "paper ablation, P on the policy's own choice"
COMMIT = re.compile(r"\b[0-9a-f]{7,40}\b")


def read(name):
    return json.loads((RECORDS / f"{name}.json").read_text())


def without_commit(record):
    """The runs of a record file that do not say which commit made them; one that is not clean counts as none."""
    if isinstance(record, dict) and "commit" not in record:
        record = record.get("runs") or [record]
    runs = record if isinstance(record, list) else [record]
    return [run for run in runs if not COMMIT.search(str(run.get("commit"))) or "dirty" in run["commit"]]


def test_pages_are_what_their_records_say():
    command = [sys.executable, str(ROOT / "benchmarks" / "results_pages.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", sorted(set(RECORDS.glob("*.json")) - SPLIT), ids=lambda path: path.stem)
def test_a_record_names_its_commit_and_belongs_to_a_page(path):
    from results_pages import PAGE_OF

    missing = without_commit(json.loads(path.read_text()))
    assert not missing, f"{len(missing)} runs of {path.name} name no clean commit, as {str(missing[0])[:300]}"
    pages = [page.read_text() for page in (ROOT / "docs" / "results").glob("*.md") if page.stem in PAGE_OF]
    pages.append((ROOT / "docs" / "_ext" / "record_numbers.py").read_text())
    assert any(f"{path.stem}" in text.partition("-->")[0] for text in pages), f"no page is written from {path.name}"


def test_a_page_says_which_script_repeats_its_records():
    from results_pages import PAGE_OF

    for page in PAGE_OF:
        text = (ROOT / "docs" / "results" / f"{page}.md").read_text()
        scripts = re.findall(r"python (benchmarks/\w+\.py)", text)
        assert scripts, f"{page}.md names no command"
        for script in scripts:
            assert (ROOT / script).is_file(), f"{page}.md names {script}, which is not there"


@pytest.mark.parametrize(
    "record",
    [
        [{"commit": ""}],
        [{"seed": 0}],
        [{"commit": "04bee4500850-dirty"}],
        {"runs": [{"machine": "x"}]},
        {"machine": "x"},
    ],
)
def test_a_record_without_a_clean_commit_is_found(record):
    assert without_commit(record)


@pytest.mark.parametrize(
    "record", [[{"commit": "04bee45"}], {"runs": [{"commit": "04bee45"}], "rounds": 3}, {"commit": "209d456, 119c986"}]
)
def test_a_record_with_a_commit_passes(record):
    assert not without_commit(record)


def test_a_difference_that_rounds_to_nothing_has_no_minus():
    from pages.text import number

    assert [number(value, sign=True) for value in (-0.0001, 0.0, -0.001)] == [".000", ".000", "-.001"]


def test_what_the_readme_says_of_digit_is_what_the_records_say():
    from pages.text import shown_in_front

    readme = " ".join((ROOT / "README.md").read_text().split())
    runs = shown_in_front(*map(read, ("attribution", "linear-readings", "paper-digit")))
    shown = {name: _mean(own) for name, own in runs.items()}
    second = [run for run in [*read("paper-digit"), *read("attribution")] if run["study"] == SECOND_READING]
    second = [run for run in second if run["variant"] == "RPD" and run["commit"] == second[-1]["commit"]]
    for words in (
        f"default recipe {shown['daband']}, Neural-LinUCB {shown['nlinucb']}; DABand",
        f"as the paper prints it {shown['paper']}]",
        f'`recipe="paper"`: {shown["paper"]} ±',
        f"second reading, with which it reaches {_mean(second)}",
        f"is what you get: {shown['daband']} ±",
        f"normalisation statistics: {shown['nlinucb']}.",
    ):
        assert words in readme, words


def test_the_readme_shows_the_gain_on_every_data_set():
    """A best case alone would mislead: the others stand beside it, each as its record has it."""
    sys.path.insert(0, str(ROOT / "docs" / "_ext"))
    from record_numbers import numbers

    readme = (ROOT / "README.md").read_text()
    lines = readme.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("| gain | digit |"))
    names, gains = ([cell.strip() for cell in lines[head + row].split("|")[2:-1]] for row in (0, 2))
    found = numbers()
    kinds = [{"digit": "images"}.get(name, name.replace(" ", "_")) for name in names]
    assert dict(zip(kinds, gains, strict=True)) == {k: gain for k, gain in found["shared"].items() if k != "all"}
    assert f"three seeds, commit {read('shared')['commit']} (digit" in readme
    assert f"found {found['unseen_tables']['mean']} against the best simple method" in readme
    fifth = {kind.removeprefix("fifth_"): gain for kind, gain in found["fifth"].items()}
    kinds = ["tables", "patients", "texts", "features", "images"]
    assert ", ".join(f"{fifth[kind]} on {kind}" for kind in kinds) in " ".join(readme.split())


def test_every_accuracy_of_readme_and_docs_is_in_a_record():
    sys.path.insert(0, str(ROOT / "docs" / "_ext"))
    from record_numbers import untraced

    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        if page.parent.name != "results":  # these are written from records
            assert not untraced(page.read_text()), page
    assert untraced("a made-up .1234 and .123") == [".123"]


def test_what_calls_itself_todays_has_the_hash_of_todays_recipe(monkeypatch):
    """A changed default makes the pages say that their runs are of an older one, and the README must follow."""
    from pages import text
    from pages.attribution import attribution, default_runs
    from pages.text import recipe_hash

    records = read("attribution")
    same = default_runs(records).frame["recipe_hash"][0] == recipe_hash()
    assert ("is what you get" in (ROOT / "README.md").read_text()) == same, "the README's accuracy is of another recipe"
    assert ("Today's default" in attribution(records)) == same
    made = text.resolve_recipe
    more = {"weights": {"adversarial": 1.0}}
    monkeypatch.setattr(text, "resolve_recipe", lambda *a, **k: made(*a, **k).changed(more))
    changed = attribution(records)
    assert "An **older** default" in changed
    assert "Today's default" not in changed


def test_a_page_says_whether_its_networks_had_recipes_of_today():
    from pages.text import recipe_hash, recipes_of

    run = {"commit": "04bee45", "recipe_hash": recipe_hash()}
    assert "today's recipes" in recipes_of("made", [run])
    assert "today's recipes" in recipes_of("made", {"commit": "04bee45", "runs": [{"recipe_hash": recipe_hash()}]})
    assert "an **older** recipe (hash `0123456789ab`" in recipes_of("made", [run | {"recipe_hash": "0123456789ab"}])
    assert "keeps no hash" in recipes_of("made", {"commit": "04bee45", "values": {}})


def test_a_page_that_calls_itself_todays_without_the_hash_is_refused(monkeypatch):
    import results_pages

    monkeypatch.setitem(results_pages.PAGE_OF, "made", (lambda record: "Today's default\n", ("baselines",)))
    with pytest.raises(SystemExit, match=r"made\.md calls something today's"):
        results_pages.page_of("made")


def test_linear_settings_are_chosen_by_source_regret():
    """The reading with the lowest source regret is taken, though another has a higher target accuracy."""
    from pages.text import lowest_source_regret

    def run(alpha, seed, regret, accuracy):
        settings = {"pixels": "unit", "ridge": 1.0, "components": 0, "alpha": alpha, "seed": seed}
        return {**settings, "source_regret": regret, "target_accuracy": accuracy}

    low = [run(0.1, 0, 10.0, 0.2), run(0.1, 1, 30.0, 0.3)]
    high = [run(0.5, 0, 25.0, 0.9), run(0.5, 1, 25.0, 0.9)]
    assert lowest_source_regret([*high, *low]) == low


def test_the_table_of_methods_pairs_runs_and_has_the_baselines():
    from pages.methods import methods, of_method

    def record(pair, seed, daband):
        return {
            "pair": pair,
            "seed": seed,
            "target_accuracy": {"constant": 0.5, "linucb": 0.6, "nlinucb": 0.7, "daband": daband},
            "baselines": {"random": 0.25},
            "source_regret": {"nlinucb": 10.0, "daband": 12.0},
            "rounds": 128,
            "device": {"daband": "cpu"},
            "commit": "04bee45",
            "data": pair,
        }

    runs = [("made/a-b", 0, 0.8), ("made/a-b", 1, 0.9), ("made/b-a", 0, 0.7), ("made/b-a", 1, 0.8)]
    records = [record(*run) for run in runs]
    assert of_method(records, "random") == [0.25] * 4
    assert of_method(records, "nlinucb-p") == []
    text = methods(records)
    assert "| made | 2 | .800 | .250 | .500 | .600 | .700 |" in text
    assert "| made | 4 | +.100 (-.030 to +.230) | +.100 (-.535 to +.735) |" in text  # four runs, two pairs
    assert "| 1.20 |" in text


def _mean(records):
    return f"{np.mean([record['target_accuracy'] for record in records]):.3f}".lstrip("0")
