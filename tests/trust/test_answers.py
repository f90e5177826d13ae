"""Answers to questions, as a spreadsheet writes them."""

import pytest

from daband.errors import InvalidInput
from daband.trust._answers import read_answers


@pytest.mark.parametrize(
    ("text", "reward"), [("3.854,17", 3854.17), ("0,5", 0.5), ("12", 12.0), ("1.200", None)]
)
def test_amounts_of_a_european_spreadsheet(text, reward, tmp_path):
    (tmp_path / "answers.csv").write_text(f"id;arm;reward\n0;1;{text}\n")
    if reward is None:  # 1.2 or 1200
        with pytest.raises(InvalidInput, match=r"line 2: .*'1\.200' .*id 0 "):
            read_answers(tmp_path / "answers.csv", [(7, 1)])
    else:
        assert read_answers(tmp_path / "answers.csv", [(7, 1)]) == {0: reward}
