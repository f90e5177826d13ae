"""The names other people's code relies on, and what importing them costs."""

import ast
import importlib
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import daband

ROOMS = [f"daband.{found.name}" for found in pkgutil.iter_modules(daband.__path__) if found.ispkg]
SURFACE = """
Audit
Assessment
CheckpointError
Choice
Constant
DABand
DabandError
DataError
Decision
Evaluation
InvalidInput
LinUCB
LogPolicy
Mixture
LogCheck
LogEstimate
NeuralLinUCB
NotFitted
PCA
Policy
Random
Recipe
RulePolicy
Rules
Run
Shift
Standardise
Supervised
TrainingDiverged
Trees
audit
assess
budget_curve
check_log
choose
continue_on_target
domains
evaluate
evaluate_log
fit_log
learn_log
export
load
load_deployed
open_market
plan_pilot
recipe_for
rules
train
"""
"""A name a line, so that two changes that add one merge without a conflict."""


def test_the_surface_is_what_the_docs_promise():
    assert set(daband.__all__) == set(SURFACE.split())


def test_the_version_is_written_once_in_effect():
    settings = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    assert settings["project"]["dynamic"] == ["version"]
    root = Path(__file__).parents[1] / settings["tool"]["hatch"]["version"]["path"]
    assert f'__version__ = "{daband.__version__}"' in root.read_text()


def test_every_room_is_found():
    assert {"daband.linear", "daband.policies", "daband.domains", "daband.cli"} <= set(ROOMS)


@pytest.mark.parametrize("name", ["daband", *ROOMS])
def test_every_room_says_what_it_offers(name):
    room = importlib.import_module(name)
    assert room.__doc__
    assert "__all__" in vars(room), f"{name} does not say what it offers"
    assert len(room.__all__) == len(set(room.__all__))
    for offered in room.__all__:
        assert not offered.startswith("_")
        assert hasattr(room, offered), offered


def test_every_public_thing_is_documented():
    for name in daband.__all__:
        assert getattr(daband, name).__doc__, name


@pytest.mark.slow
def test_the_lower_rooms_run_on_a_bare_machine():
    """A GPU machine has numpy, torch and safetensors only. There a run must work from end
    to end.
    """
    script = """
import sys
allowed = {"numpy", "torch", "safetensors"}
class Nothing:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        hidden = "scipy sklearn typer rich pydantic matplotlib PIL polars pandas skimage pyarrow"
        if top in hidden.split():
            raise ModuleNotFoundError(f"No module named {top!r}", name=top)
sys.meta_path.insert(0, Nothing())
import daband
pair = daband.domains.load("synthetic", tiny=True)
policy = daband.LinUCB(context_shape=pair.context_shape, n_arms=pair.n_arms, transform=daband.PCA(3))
daband.train(policy, source=pair.source, target=pair.target, episodes=2, episode_length=8)
print(daband.evaluate(policy, pair.target_test).contexts)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


@pytest.mark.slow
def test_linear_policies_do_not_import_torch():
    """Importing torch takes seconds; a linear policy has no need of it."""
    script = (
        "import sys, daband; daband.LinUCB(context_shape=(2,), n_arms=2); print('torch' in"
        " sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_typing_and_running_know_the_same_names():
    """Checkers read the imports below TYPE_CHECKING, programs the table of rooms."""
    tree = ast.parse(Path(daband.__file__).read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        (
            ".".join(statement.module.split(".")[:2]),
            name.asname or name.name,
        )
        for statement in checked.body
        if isinstance(statement, ast.ImportFrom)
        for name in statement.names
    }
    assert typed == {
        ("daband", "domains"),
        *((f"daband.{package}", name) for name, package in daband._PACKAGE_BY_NAME.items()),
    }
    assert {name for _, name in typed} == set(daband.__all__)
    assert set(daband.__all__) <= set(dir(daband))
    with pytest.raises(AttributeError, match="'sing'"):
        _ = daband.sing


@pytest.mark.slow
def test_serving_loads_numpy_and_safetensors_alone(tmp_path):
    """A serving image has nothing else."""
    policy = daband.LinUCB(context_shape=(2,), n_arms=3, epsilon=0.1)
    daband.export(policy, tmp_path / "p.daband")
    script = f"""
import sys
import numpy, safetensors.numpy
before = set(sys.modules)
import daband
deployed = daband.load_deployed({str(tmp_path / "p.daband")!r})
deployed.decide([0.0, 1.0])
allowed = {{"daband", "numpy", "safetensors", "cython_runtime"}} | set(sys.stdlib_module_names)
new = {{name.partition(".")[0] for name in set(sys.modules) - before}} - allowed
tops = {{name for name in new if not name.startswith("_cython")}}  # of numpy's random numbers
rooms = {{name.split(".")[1] for name in sys.modules if name.startswith("daband.")}}
print(sorted(tops), sorted(rooms))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    told = done.stdout.strip()
    assert told.startswith("[] "), told
    assert "policies" not in told
    assert "domains" not in told
