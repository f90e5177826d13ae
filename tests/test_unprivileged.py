"""daband as containers run it: an unprivileged user without a home, on files that nobody may write.

The child process becomes "nobody" and keeps one right of root, to read every file: an interpreter
below root's home could not be run otherwise. It may write nothing that belongs to root."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import daband

if not hasattr(os, "setuid"):
    pytest.skip("there are no user ids on this system", allow_module_level=True)

BECOME_NOBODY = """
import ctypes, os
READ_EVERYTHING, KEEP_CAPABILITIES, NOBODY = 1 << 2, 8, 65534
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(KEEP_CAPABILITIES, 1, 0, 0, 0) == 0
os.setgroups([])
os.setgid(NOBODY)
os.setuid(NOBODY)
header, rights = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(READ_EVERYTHING, READ_EVERYTHING)
assert libc.capset(header, rights) == 0
assert os.geteuid() == NOBODY
"""
UNABLE_TO_WRITE = """
import pathlib, daband
try:
    pathlib.Path(daband.__file__).with_name("written").touch()
except OSError:
    pass
else:
    raise SystemExit("this user can write beside the package")
"""


@pytest.fixture(scope="module")
def read_only_package(tmp_path_factory):
    """A folder with a copy of the package, without compiled files, that may be read alone."""
    folder = tmp_path_factory.mktemp("read-only")
    package = Path(daband.__file__).parent
    shutil.copytree(package, folder / "daband", ignore=shutil.ignore_patterns("__pycache__"))
    everything = [folder, *folder.rglob("*")]
    for path in everything:
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield folder
    for path in everything:
        path.chmod(0o755 if path.is_dir() else 0o644)


def run_unprivileged(folder, script):
    """What the script prints as a user who may read ``folder`` and write nothing."""
    prelude = BECOME_NOBODY if os.geteuid() == 0 else ""
    environment = {"PYTHONPATH": str(folder), "PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    if os.geteuid() == 0:
        able = subprocess.run(
            [sys.executable, "-c", BECOME_NOBODY], capture_output=True, text=True, check=False
        )
        if able.returncode:
            pytest.skip(
                f"this root may not become another user: {able.stderr.strip().splitlines()[-1]}"
            )
        del environment["HOME"]
    program = prelude + UNABLE_TO_WRITE + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_a_deployed_policy_decides_for_an_unprivileged_user(read_only_package, tmp_path):
    policy = daband.LinUCB(context_shape=(2,), n_arms=2, alpha=0.0, seed=0)
    policy.update([[1.0, 0.0], [0.0, 1.0]] * 8, [0, 1] * 8, [1.0, 0.5] * 8)
    path = tmp_path / "market.daband"
    daband.export(policy, path, arm_names=["letter", "call"])
    done = run_unprivileged(
        read_only_package,
        f"""
        print(daband.load_deployed({str(path)!r}).decide([1.0, 0.0]).arm_name)
        """,
    )
    assert done.stdout.strip() == "letter"
    assert done.stderr == ""
