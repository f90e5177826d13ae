"""Work shared by several processes through a folder: each takes the next unit that nobody has begun."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

__all__ = ["finished", "work_through"]

Unit = tuple[str, Callable[[], list[dict[str, Any]]]]


def work_through(units: Iterable[Unit], *, out: Path, commit: str, seconds: float = float("inf")) -> None:
    """Do every unit that has no file in ``out``, and write its records there; begin none after ``seconds``.

    A unit is a name and a function that returns records. One that fails prints why, and the others go on.
    """
    out.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    for name, work in units:
        if time.perf_counter() - started > seconds:
            return
        path = out / (name.replace(" ", "_").replace(",", "").replace("/", "-") + ".json")
        try:
            claim = path.open("x")
        except FileExistsError:
            continue
        with claim:
            try:
                records = work()
            except Exception:
                traceback.print_exc()
                path.unlink()
                continue
            machine = {
                "commit": commit,
                "torch": torch.__version__,
                "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            }
            claim.write(json.dumps([{**record, **machine} for record in records], indent=1) + "\n")
        accuracies = [record["target_accuracy"] for record in records]
        mean, now = sum(accuracies) / len(accuracies), time.perf_counter() - started
        print(f"{now:4.0f}s {name:<60} {mean:.4f}  {[round(one, 4) for one in accuracies]}", flush=True)


def finished(out: Path) -> list[dict[str, Any]]:
    """The records of every unit in ``out`` that is finished."""
    texts = [path.read_text() for path in sorted(out.glob("*.json"))]
    return [record for text in texts if text.strip() for record in json.loads(text)]
