import os
import subprocess
import sys

import pytest

from daband._registry import Registry
from daband.bench._methods import check_method
from daband.domains._registry import pairs
from daband.errors import InvalidInput
from daband.policies._registered import policies


def test_members_are_discovered():
    assert {"linucb", "random"} <= set(policies.names())
    assert "synthetic" in pairs


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(
        InvalidInput, match=r"unknown policy 'linucbb'; did you mean 'linucb'\? \(known: .*random"
    ):
        policies.get("linucbb")


def test_a_neural_method_without_torch_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(policies, "_members", {"linucb": policies.get("linucb")})
    for call in (policies.get, check_method):
        with pytest.raises(
            InvalidInput, match=r"'nlinucb' is unknown or needs torch: pip install 'daband\[deep\]'"
        ):
            call("nlinucb")
    with pytest.raises(InvalidInput, match="unknown pair 'synthetik'; did you mean 'synthetic'"):
        pairs.get("synthetik")


def test_a_name_is_taken_once():
    registry: Registry[object] = Registry("thing", "daband.policies")
    registry.add("one", first := object())
    registry.add("one", first)
    with pytest.raises(InvalidInput, match="already registered"):
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
def test_a_named_plugin_is_imported(tmp_path):
    (tmp_path / "my_plugin.py").write_text(PLUGIN.format(name="named_pair"))
    told = daband_command(tmp_path, "--plugin", "my_plugin", "data", "list")
    assert "named_pair" in told.stdout, told.stderr
    assert "named_pair" not in daband_command(tmp_path, "data", "list").stdout
    broken = daband_command(tmp_path, "--plugin", "no_such_plugin", "data", "list")
    assert broken.returncode == 2
    assert "plugin 'no_such_plugin' cannot be imported: ModuleNotFoundError" in broken.stderr


@pytest.mark.slow
@pytest.mark.parametrize("named", ["here_plugin", "here_plugin.py", "./here_plugin.py"])
def test_a_plugin_of_the_current_folder_is_imported_by_name_or_path(tmp_path, named):
    # A script that pip installed does not search the current folder; tutorials keep their module
    # there.
    (tmp_path / "beside.py").write_text('NAME = "here_pair"\n')
    (tmp_path / "here_plugin.py").write_text(
        "from beside import NAME\n" + PLUGIN.replace('"{name}"', "NAME")
    )
    code = (
        "import sys; sys.path = [p for p in sys.path if p]; from daband.cli._main import main;"
        " main()"
    )
    command = [sys.executable, "-c", code, "--plugin", named, "data", "list"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "here_pair" in told.stdout, told.stderr


@pytest.mark.slow
def test_a_plugin_that_is_no_file_and_one_that_fails_are_named(tmp_path):
    (tmp_path / "broken.py").write_text("1 / 0\n")
    missing = daband_command(tmp_path, "--plugin", str(tmp_path / "gone.py"), "data", "list")
    assert missing.returncode == 2
    assert "this file does not exist" in missing.stderr
    failed = daband_command(tmp_path, "--plugin", str(tmp_path / "broken.py"), "data", "list")
    assert failed.returncode == 2
    assert "ZeroDivisionError" in failed.stderr
    assert "Traceback" not in failed.stderr


@pytest.mark.slow
def test_an_installed_package_is_found_by_its_entry_point(tmp_path):
    (tmp_path / "their_plugin.py").write_text(PLUGIN.format(name="installed_pair"))
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[daband.plugins]\nmine = their_plugin\n")
    assert "installed_pair" in daband_command(tmp_path, "data", "list").stdout


@pytest.mark.slow
def test_processes_that_are_started_know_named_plugins(tmp_path, monkeypatch):
    (tmp_path / "spread_plugin.py").write_text(PLUGIN.format(name="spread_pair"))
    monkeypatch.setenv("DABAND_PLUGINS", "spread_plugin")
    assert "spread_pair" in daband_command(tmp_path, "data", "list").stdout
