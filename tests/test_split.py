"""The split of data sets is the recorded one: it may not change after results were read."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from fresh import read_declarations
from split import KINDS, READ_ONCE, RECORD, read_split, split_data_sets


def test_the_record_is_what_the_rule_gives() -> None:
    assert json.loads(RECORD.read_text()) == split_data_sets()


def test_the_halves_share_no_data_set_and_cover_all() -> None:
    development = read_split("development")
    report = read_split("report")
    for kind in development:
        assert not set(development[kind]) & set(report[kind])
        assert sorted([*development[kind], *report[kind]]) == sorted(KINDS[kind])
        assert len(development[kind]) - len(report[kind]) in (0, 1)
    assert {*development, *(kind for half in READ_ONCE for kind in read_split(half))} == set(KINDS)


@pytest.mark.parametrize(("half", "n"), [("third", 42), ("fourth", 51), ("fifth", 46)])
def test_a_set_that_is_read_once_is_whole_and_of_tables_that_no_other_set_has(
    half: str, n: int
) -> None:
    own = read_split(half)
    assert {kind: sorted(KINDS[kind]) for kind in own} == own
    assert sum(map(len, own.values())) == n
    tables = {
        kind: {entry.get("table") for entry in entries.values()}
        for kind, entries in read_declarations().items()
    }
    others = set().union(*(found for kind, found in tables.items() if kind not in own))
    for kind in own:
        assert not tables[kind] & others
        assert None not in tables[kind]
