"""Check that results pages are written from their records, and that a record names the commit that
produced it.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "benchmarks" / "records"
RESULTS = ROOT / "docs" / "results"
sys.path.insert(0, str(ROOT / "benchmarks"))
NO_PAGE = {
    "split",
    "fifth",
    "fourth",
    "third",
    "fresh",
    "trust-development",
    "fresh-development",
    "paths",
}
"""Records that no page shows: which data set belongs to which set, data for the reference class of
``assess``, and the files and calls of common paths.
"""
COMMIT = re.compile(r"\b[0-9a-f]{7,40}\b")
ACCURACY = re.compile(r"(?<![\w.])[+-]?0?(\.\d{3})(?!\d)")
MAX_WORDS = 7_000


def without_commit(record):
    """Return the runs of a record that name no clean commit."""
    if isinstance(record, dict) and "commit" not in record:
        parts = [part for part in record.values() if isinstance(part, dict)]
        record = record.get("runs") or record.get("rows") or parts or [record]
    runs = record if isinstance(record, list) else [record]
    return [
        run for run in runs if not COMMIT.search(str(run.get("commit"))) or "dirty" in run["commit"]
    ]


def test_pages_are_written_from_their_records():
    command = [sys.executable, str(ROOT / "benchmarks" / "results_pages.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_record_names_its_commit_and_belongs_to_a_page():
    from results_pages import PAGE_OF

    shown = {record for _, records in PAGE_OF.values() for record in records}
    recorded = {path.stem for path in RECORDS.glob("*.json")}
    assert recorded == shown | NO_PAGE
    for name in recorded - {"split"}:
        missing = without_commit(json.loads((RECORDS / f"{name}.json").read_text()))
        assert not missing, (
            f"{len(missing)} runs of {name}.json name no clean commit: {str(missing[0])[:300]}"
        )


@pytest.mark.parametrize("commit", ["", "04bee4500850-dirty", None])
def test_a_record_without_a_clean_commit_is_found(commit):
    for record in ([{"commit": commit}], {"runs": [{"commit": commit}]}, {"commit": commit}):
        assert without_commit(record)


def test_every_page_names_a_command_that_exists():
    from results_pages import PAGE_OF

    for page in PAGE_OF:
        text = (RESULTS / f"{page}.md").read_text()
        scripts = re.findall(r"python (benchmarks/\w+\.py)", text)
        assert scripts or "\ndaband bench " in text, f"{page}.md names no command"
        assert all((ROOT / script).is_file() for script in scripts), page


def test_results_pages_are_short():
    # The rules of tables are no words.
    words = {
        page.name: len(re.findall(r"\S*\w\S*", page.read_text())) for page in RESULTS.glob("*.md")
    }
    assert sum(words.values()) <= MAX_WORDS, words


def test_every_accuracy_in_the_text_is_on_a_results_page():
    """Numbers of three digits in README and guides must come from a record."""
    shown = {
        number for page in RESULTS.glob("*.md") for number in ACCURACY.findall(page.read_text())
    }
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        if page.parent != RESULTS:
            missing = set(ACCURACY.findall(page.read_text())) - shown
            assert not missing, f"{page.name} has {sorted(missing)}, which no results page shows"


def test_a_difference_that_rounds_to_zero_has_no_sign():
    from pages.text import number

    assert [number(value, sign=True) for value in (-0.0001, 0.0, -0.001, 0.5)] == [
        "0.000",
        "0.000",
        "-0.001",
        "+0.500",
    ]


@pytest.mark.parametrize("exponent", [0.3, 0.5, 1.0, 1.4])
def test_the_exponent_of_a_power_is_found(exponent):
    from pages.images import growth_exponent

    rounds = np.arange(64, 6464, 64)
    assert growth_exponent(rounds, 3.0 * rounds**exponent) == pytest.approx(exponent)


def test_an_exponent_is_of_the_later_half_and_needs_positive_values():
    from pages.images import growth_exponent

    rounds = np.arange(1, 401)
    bent = np.where(rounds < 200, rounds.astype(float), 200.0 * (rounds / 200.0) ** 0.5)
    assert growth_exponent(rounds, bent) == pytest.approx(0.5, abs=0.01)
    assert np.isnan(growth_exponent(rounds, np.zeros(400)))
    assert f"{growth_exponent(rounds, np.full(400, 8.7)):.2f}" == "0.00"
    assert np.isnan(growth_exponent(rounds[:2], bent[:2]))
