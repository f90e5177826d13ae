"""The environment of `make test-lowest`: every direct dependency has a lowest version."""

import runpy
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


def test_every_dependency_is_pinned_to_its_lower_bound():
    list_lowest_versions = runpy.run_path(str(ROOT / "packaging" / "lowest_versions.py"))[
        "list_lowest_versions"
    ]
    pinned = {need.name: need for need in map(Requirement, list_lowest_versions())}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name for name in project["optional-dependencies"] if name != "peers"}
    needs = project["dependencies"] + [
        need for name in extras for need in project["optional-dependencies"][name]
    ]
    for need in map(Requirement, needs):
        if need.name in ("daband", "torch"):
            continue
        (pin,) = pinned[need.name].specifier
        assert pin.operator == "=="
        assert [(bound.operator, bound.version) for bound in need.specifier] == [
            (">=", pin.version)
        ]
    assert not {"daband", "torch"} & set(pinned)
