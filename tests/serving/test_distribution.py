"""``daband-serving``: the files that its wheel takes decide on numpy and safetensors alone."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import daband
from tests.serving.kinds import trained

FOLDER = Path(__file__).parents[2] / "packaging" / "serving"
SCRIPT = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        allowed = {"numpy", "safetensors", "daband"} | sys.stdlib_module_names
        if top not in allowed and not top.startswith(("_", "cython")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Nothing())
import numpy as np
import daband
assert daband.__file__.startswith(sys.argv[1]), daband.__file__
for path in sys.argv[2:]:
    deployed = daband.load_deployed(path)
    deployed.monitor().decide(np.zeros(deployed.reader.shape))
try:
    daband.train
except ImportError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((FOLDER / "pyproject.toml").read_text())


@pytest.mark.slow
def test_its_files_decide_alone(project, tmp_path):
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    for source, place in included.items():
        assert (FOLDER / source).exists(), f"{source} is not there"
        copy = shutil.copytree if (FOLDER / source).is_dir() else shutil.copy
        (tmp_path / place).parent.mkdir(exist_ok=True, parents=True)
        copy(FOLDER / source, tmp_path / place)
    files = []
    for kind in ("constant", "linucb-standardise", "trees-shared", "daband"):
        policy, contexts, *_ = trained(kind)
        files.append(str(tmp_path / f"{kind}.daband"))
        daband.export(policy, files[-1], reference=contexts)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), *files],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "daband.train is not part of daband-serving" in done.stdout


def parts(project, name):
    return (
        project["dependencies"]
        if name == "dependencies"
        else project["optional-dependencies"][name]
    )


def test_it_has_the_version_of_daband_and_asks_for_no_more(project):
    everything = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text())
    for folder, settings in ((FOLDER, project), (FOLDER.parents[1], everything)):
        path = folder / settings["tool"]["hatch"]["version"]["path"]
        assert f'__version__ = "{daband.__version__}"' in path.read_text()
    needs = {
        need for name in ("dependencies", "serve") for need in parts(everything["project"], name)
    }
    assert set(parts(project["project"], "serve")) <= needs
    assert set(parts(everything["project"], "serve")) <= set(parts(project["project"], "serve"))
    assert set(project["project"]["dependencies"]) < set(everything["project"]["dependencies"])
    assert {need.split(">")[0] for need in project["project"]["dependencies"]} == {
        "numpy",
        "safetensors",
    }
