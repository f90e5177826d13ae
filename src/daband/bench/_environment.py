"""Describe the versions and the hardware of a run, for ``environment.json`` in its folder."""

from __future__ import annotations

import datetime
import os
import platform
from importlib import metadata
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
        "python": platform.python_version(),
        **{name: _find_version(name) for name in ("numpy", "torch", "scikit-learn")},
        "system": f"{platform.system()} {platform.machine()}",
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
