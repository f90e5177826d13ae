"""Read ``catalogue.toml``: licences and citations of the data sets, and the files they need."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from daband.base._arrays import AnyArray, IntArray
from daband.domains._contract import About
from daband.domains._registry import Resource
from daband.errors import DataError


def describe_data(name: str) -> dict[str, Any]:
    """Return the arguments ``about`` and ``resources`` of ``register_pair`` for a data set."""
    text = Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8")
    entry = tomllib.loads(text)[name]
    resources = [
        Resource(**{**fields, "paths": tuple(fields["paths"])}) for fields in entry.pop("resources")
    ]
    return {"about": About(**entry), "resources": resources}


def load_splits(path: Path) -> list[tuple[AnyArray, IntArray]]:
    """Return the training part and the test part of an ``npz`` file, each contexts and labels (n,)."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            return [
                (arrays[f"x_{part}"], arrays[f"y_{part}"].astype(np.int64))
                for part in ("train", "test")
            ]
    except Exception as error:
        raise DataError(
            f"{path} is damaged, or lacks one of the arrays x_train, y_train, x_test, y_test"
            f" ({error}); replace it by a good copy"
        ) from None
