"""The page of Algorithm 1 shows the code that it speaks of."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "concepts" / "algorithm.md"
TEXT = PAGE.read_text()
INCLUDES = re.findall(r"```\{literalinclude\} (\S+)\n:pyobject: (\S+)\n```", TEXT)
PAPER = "src/daband/neural/daband.py"


def find(path, name):
    """Return the function or class of this dotted name in a file."""
    node = ast.parse(path.read_text())
    for part in name.split("."):
        (node,) = [
            child
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.FunctionDef | ast.ClassDef) and child.name == part
        ]
    return node


@pytest.mark.parametrize(("path", "name"), INCLUDES, ids=[name for _, name in INCLUDES])
def test_what_the_page_includes_is_there(path, name):
    assert find((PAGE.parent / path).resolve(), name).body


def test_every_block_of_code_is_included_and_none_is_copied():
    assert TEXT.count("```{") == len(INCLUDES)
    assert TEXT.count("```") == 2 * len(INCLUDES)


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("eq:loss_rs", "source_regret"),
        ("eq:tr_err", "regression_error"),
        ("eq:r_pred", "predicted_reward"),
        ("eq:div", "data_divergence"),
        ("eq:final_obj", "build_paper_recipe"),
    ],
)
def test_an_equation_stands_beside_the_function_that_names_it(label, name):
    path = f"../../{PAPER}"
    assert (path, name) in INCLUDES
    assert label in ast.get_docstring(find(ROOT / PAPER, name))
    include = TEXT.index(f":pyobject: {name}\n")
    section = TEXT[:include].rindex("::::{grid}")
    assert f"`{label}`" in TEXT[section:include]


def test_every_line_of_the_algorithm_leads_to_its_section():
    headings = {
        re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", TEXT, flags=re.MULTILINE)
    }
    links = re.findall(r"\]\(#([^)]+)\)", TEXT)
    assert set(links) <= headings, set(links) - headings
    lines = re.findall(r"^\| ([\d, ]+) \|", TEXT, flags=re.MULTILINE)
    numbers = {int(number) for line in lines for number in line.split(",")}
    assert numbers == set(range(3, 14))
