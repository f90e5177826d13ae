"""The file of a deployed policy: what its header says, and the version of that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from daband.arrays import AnyArray
from daband.tensor_files import FileFormat, read_tensor_file, write_tensor_file

__all__ = ["FORMAT", "FORMAT_VERSION", "read_deployed_file", "write_deployed_file"]

FORMAT_VERSION = 2
"""2: a linear part beside the network, whose predictions are averaged with the network's."""
FORMAT = FileFormat(
    name="daband-deployed",
    what="a policy exported by daband (daband.export writes one; daband.load reads what policy.save wrote)",
    version=FORMAT_VERSION,
    oldest=1,
    remedy="export it anew",
    required=(
        "arms",
        "assessment",
        "context",
        "domain",
        "exploration",
        "images",
        "network",
        "policy",
        "reference",
        "reward_range",
        "table",
        "transform",
        "versions",
    ),
)


def write_deployed_file(path: str | Path, header: dict[str, Any], arrays: dict[str, AnyArray]) -> None:
    """Write a whole file or nothing."""
    write_tensor_file(path, FORMAT, header, arrays)


def read_deployed_file(path: str | Path) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    """Header and arrays; a file that is damaged, foreign or of a newer format is a ``CheckpointError``."""
    return read_tensor_file(path, FORMAT)
