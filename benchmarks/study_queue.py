"""Work shared by several processes through a folder: each takes the next unit that nobody has begun."""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

import daband

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


def study_parser(description: str | None) -> argparse.ArgumentParser:
    """The options of every study that is worked through so."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a folder with a JSON file per unit")
    parser.add_argument("--pair", default="digit")
    parser.add_argument("--episodes", type=int, default=0, help="by default 300, or as many as the pair has")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no unit after so many")
    parser.add_argument("--commit", default="")
    parser.add_argument("--record", type=Path, help="gather what is finished in --out into this file; train nothing")
    parser.add_argument("--tiny", action="store_true", help="the tiny twin of the pair, to try the script")
    return parser


def load_study(given: argparse.Namespace, *, episode_length: int) -> tuple[daband.domains.Pair, int]:
    """The pair that is asked for, and how many episodes."""
    options = {"passes": 5, "target_passes": 10} if given.pair == "signs" and not given.tiny else {}
    pair = daband.domains.load(given.pair, tiny=given.tiny, **options)
    available = min(pair.source.rounds_available, pair.target.rounds_available) // episode_length
    return pair, given.episodes or min(300, available)
