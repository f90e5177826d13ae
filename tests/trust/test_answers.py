"""Answers to questions, as a spreadsheet writes them."""

import pytest

from daband.trust._answers import read_answers


@pytest.mark.parametrize(("text", "reward"), [("3.854,17", 3854.17), ("0,5", 0.5), ("12", 12.0)])
def test_amounts_of_a_european_spreadsheet(text, reward, tmp_path):
    (tmp_path / "answers.csv").write_text(f"id;arm;reward\n0;1;{text}\n")
    assert read_answers(tmp_path / "answers.csv", [(7, 1)]) == {0: reward}
