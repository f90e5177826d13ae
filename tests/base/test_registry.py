import os
import subprocess
import sys

import pytest

from daband.base._registry import Registry
from daband.bench._methods import check_method
from daband.domains._registry import pairs
from daband.errors import InvalidInput
from daband.policies import policies
from tests.registries import declare_plugin


def test_members_are_discovered():
    assert {"linucb", "random"} <= set(policies.names())
    assert "synthetic" in pairs


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(InvalidInput, match=r"policy 'linucbb'; .*'linucb'\? \(known: .*random"):
        policies.get("linucbb")


def test_a_neural_method_without_torch_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(policies, "_members", {"linucb": policies.get("linucb")})
    for call in (policies.get, check_method):
        with pytest.raises(InvalidInput, match=r"'nlinucb' .*'daband\[deep\]'"):
            call("nlinucb")
    with pytest.raises(InvalidInput, match=r"pair 'synthetik'; .*'synthetic'"):
        pairs.get("synthetik")


def test_a_name_is_taken_once():
    registry: Registry[object] = Registry("thing", "daband.policies")
    registry.add("one", first := object())
    registry.add("one", first)
    with pytest.raises(InvalidInput, match="'one'"):
        registry.add("one", object())


PLUGIN = """
from daband.domains import About, from_arrays, register_pair
import numpy as np

@register_pair("{name}", about=About(summary="from another package"))
def pair(*, tiny: bool = False):
    return from_arrays(source=(np.eye(40, 3), np.arange(40) % 3), target=np.eye(40, 3))
"""


def daband_command(folder, *arguments):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-c", "from daband.cli._main import main; main()", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_an_installed_package_is_found_by_its_entry_point(tmp_path):
    declare_plugin(tmp_path, "their_plugin", PLUGIN.format(name="installed_pair"))
    assert "installed_pair" in daband_command(tmp_path, "data", "list").stdout


@pytest.mark.slow
def test_a_plugin_that_fails_is_named(tmp_path):
    declare_plugin(tmp_path, "broken_plugin", "1 / 0\n")
    failed = daband_command(tmp_path, "data", "list")
    assert failed.returncode == 2
    assert "'broken_plugin'" in failed.stderr
    assert "ZeroDivisionError" in failed.stderr
    assert "Traceback" not in failed.stderr
