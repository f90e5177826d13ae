"""Describe the versions and the hardware of a run, for ``environment.json`` in its folder."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import subprocess
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import daband
from daband.policies._policy import Policy


def describe_environment(policy: Policy) -> dict[str, Any]:
    """Return versions and hardware as a dictionary of JSON types, without names of machines or
    people.
    """
    device_name = policy.settings().get("device")
    device = "cpu"
    accelerator = None  # of a linear policy, for which torch is not imported
    if device_name is not None:
        from daband.neural._torch_settings import find_device, find_gpu_name

        device = str(find_device(device_name))
        accelerator = find_gpu_name(device_name)
    return {
        "daband": daband.__version__,
        "commit": _find_commit(),
        "python": platform.python_version(),
        **{name: _find_version(name) for name in ("numpy", "torch", "scikit-learn")},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _find_processor(),
        "cpus": os.cpu_count(),
        "device": device,
        "accelerator": accelerator,
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _find_version(package: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@lru_cache(maxsize=1)
def _find_commit() -> str | None:
    """Return the commit of the source tree that daband is imported from, with "-dirty" if files
    have changed.

    For an installed package or a copy of the tree, return the environment variable
    ``DABAND_COMMIT``, or None if it is not set.
    """
    source_tree = Path(__file__).resolve().parents[3]
    if not ((source_tree / ".git").exists() and (source_tree / "pyproject.toml").exists()):
        # The installed package may be inside another repository, whose commit Git would report.
        return os.environ.get("DABAND_COMMIT") or None
    try:
        process = subprocess.run(  # noqa: S603
            [  # noqa: S607
                "git",
                "-C",
                str(source_tree),
                "describe",
                "--exclude=*",
                "--always",
                "--abbrev=12",
                "--dirty",
            ],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip() or None


@lru_cache(maxsize=1)
def _find_processor() -> str:
    """Return the name of the processor."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
