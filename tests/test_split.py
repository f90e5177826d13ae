"""The split of data sets is the recorded one: it may not change after results were read."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from split import KINDS, RECORD, development, report, split


def test_the_record_is_what_the_rule_gives() -> None:
    assert json.loads(RECORD.read_text()) == split()


def test_the_halves_share_no_data_set_and_cover_all() -> None:
    for kind, names in KINDS.items():
        assert not set(development()[kind]) & set(report()[kind])
        assert sorted([*development()[kind], *report()[kind]]) == sorted(names)
        assert len(development()[kind]) - len(report()[kind]) in (0, 1)
