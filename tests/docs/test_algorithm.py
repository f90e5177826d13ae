"""The page of Algorithm 1 shows the code that it speaks of."""

import ast
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import daband

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


def test_the_listed_settings_are_those_of_the_algorithm():
    """The head follows lines 3, 6, 8 and 9, and a step uses the latest 64 rounds."""
    rng = np.random.default_rng(0)
    contexts, rewards = rng.normal(size=(64, 3, 5)), rng.random((64, 3))
    pair = daband.domains.from_arrays(
        source=(contexts, rewards), target=contexts, arms="shared", feedback="bandit"
    )
    policy = daband.DABand.for_pair(
        pair, recipe="paper", standardise_rewards=False, ridge=2.0, transform=None, device="cpu"
    )
    assert (policy.feedback, policy.arms, pair.source.full_feedback) == ("bandit", "shared", False)
    ridge = policy._head.statistics
    gram, b = 2.0 * np.eye(64), np.zeros(64)
    np.testing.assert_allclose(np.linalg.inv(ridge.A_inv[0]), gram)
    assert not ridge.theta.any()
    played = policy.play(contexts[:20], rewards[:20])
    z = policy.encode(contexts[:20], "source")
    np.testing.assert_allclose(np.linalg.norm(z, axis=2), 1.0)
    for row in range(20):
        bonuses = np.sqrt(np.einsum("kd,de,ke->k", z[row], np.linalg.inv(gram), z[row]))
        scores = z[row] @ np.linalg.solve(gram, b) + 0.05 * bonuses
        arm = played.arm[row]
        assert scores[arm] == pytest.approx(scores.max())
        gram += np.outer(z[row, arm], z[row, arm])
        b += rewards[row, arm] * z[row, arm]
    np.testing.assert_allclose(ridge.compute_coefficients()[0], np.linalg.solve(gram, b))
    learning, replay = policy.recipe.learning, policy.recipe.replay
    assert (learning.steps, learning.batch, learning.learning_rate) == (64, 64, 1e-5)
    assert (replay.sampling, replay.unit_theta, policy.alpha) == ("last", True, 0.05)
    assert inspect.signature(daband.train).parameters["episode_length"].default == 64
