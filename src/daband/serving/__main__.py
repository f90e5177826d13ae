"""Decide from a shell: ``python -m daband.serving FILE < rows.jsonl``, one JSON value a line in, one a line out.

A row is a mapping from column to value, an array of numbers, or the path of an image file. Numbers may be texts, as
tools that turn CSV into JSON write them; an empty text is a missing value. A row that cannot be decided on becomes a
line with an ``error``, and the exit code is 1; the others are decided.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from daband.errors import DabandError, InvalidInput
from daband.serving._deployed_policy import DeployedPolicy, load_deployed


def main(arguments: Sequence[str] | None = None) -> int:
    """Decide on the rows of standard input, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m daband.serving",
        description="Decide on rows of JSON, one a line: a mapping from column to value, an array of numbers, or the "
        "path of an image file.",
    )
    parser.add_argument("file", help="a file that daband.export or `daband export` wrote")
    parser.add_argument("--among", help="the arms that may be chosen, by name or number, e.g. a,b")
    parser.add_argument("--strict", action="store_true", help="treat warnings on a row as errors")
    parser.add_argument("--about", action="store_true", help="print what the file holds, and exit")
    asked = parser.parse_args(arguments)
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):  # JSON is UTF-8, whatever the locale
            stream.reconfigure(encoding="utf-8")
    try:
        deployed = load_deployed(asked.file)
    except DabandError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2
    if asked.about:
        sys.stdout.write(json.dumps(about(deployed), indent=1, ensure_ascii=False) + "\n")
        return 0
    among = None if asked.among is None else [_arm(name, deployed) for name in asked.among.split(",")]
    try:
        if among is not None:
            deployed.arm_mask(None, among, 1)  # an error here is printed once, not for every line
        return _decide_lines(deployed, among, strict=asked.strict)
    except InvalidInput as error:
        sys.stderr.write(f"Error: --{error}\n")
        return 2
    except BrokenPipeError:  # the reader of the answers has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _decide_lines(deployed: DeployedPolicy, among: list[str | int] | None, *, strict: bool) -> int:
    failed = False
    for number, line in enumerate(sys.stdin, start=1):
        if not line.strip():
            continue
        try:
            row = _convert_types(json.loads(line))
            answer = deployed.decide(row, among=among, strict=strict).as_dict()
        except json.JSONDecodeError as error:
            failed = True
            answer = {"line": number, "error": f"the line is not JSON: {error.msg} at character {error.pos + 1}"}
        except (DabandError, ValueError) as error:
            failed = True
            answer = {"line": number, "error": str(error)}
        sys.stdout.write(json.dumps(answer, ensure_ascii=False) + "\n")
        sys.stdout.flush()
    return 1 if failed else 0


def about(deployed: DeployedPolicy) -> dict[str, Any]:
    """Return what a file holds, as JSON can hold it."""
    return {
        "policy": deployed.policy, "domain": deployed.domain, "columns": deployed.columns,
        "context_shape": deployed.context_shape, "arms": deployed.arm_names,
        "rounds_learned": deployed.rounds_learned, "assessment": deployed.assessment, "version": deployed.version,
        "versions": deployed.versions,
    }  # fmt: skip


def _convert_types(row: Any) -> Any:
    """Return a row with texts as what they mean: the path of an image file, or numbers of an array."""
    if isinstance(row, str):
        return Path(row)
    if isinstance(row, list) and row and all(isinstance(value, str) for value in row):
        return [_number(value) for value in row]
    return row


def _number(text: str) -> float | str | None:
    if not text.strip():
        return None
    try:
        return float(text)
    except ValueError:
        return text  # the error on it names the column


def _arm(name: str, deployed: DeployedPolicy) -> str | int:
    text = name.strip()
    return int(text) if text.isdecimal() and text not in deployed.arm_names else text


if __name__ == "__main__":
    sys.exit(main())
