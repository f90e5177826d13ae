"""The folder of an audit: its plan, its questions as CSV, and every answer from the moment it arrives.

``plan.json`` is written once, ``questions.csv`` is for people, ``answers.jsonl`` gets a line an answer, flushed to disk
before the next question is asked, and ``audit.json`` is the result. An audit that was killed goes on from there.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from daband.errors import DataError, InvalidInput
from daband.files import checked_path, make_folder, read_json, write_text

__all__ = ["AuditFolder", "questions_csv", "read_answers"]

_PLAN, _QUESTIONS, _ANSWERS, _RESULT = "plan.json", "questions.csv", "answers.jsonl", "audit.json"


class AuditFolder:
    """Where one audit is kept; without a ``directory`` answers are in memory alone."""

    def __init__(self, directory: str | Path | None) -> None:
        self.path = None if directory is None else make_folder(directory)
        self.answers: dict[int, float] = {}

    @property
    def questions(self) -> Path | None:
        """The CSV of questions."""
        return None if self.path is None else self.path / _QUESTIONS

    def plan(self) -> dict[str, Any] | None:
        """The plan that was begun here, as it was written; None where there is none."""
        if self.path is None or not (self.path / _PLAN).exists():
            return None
        known = read_json(self.path / _PLAN)
        if not isinstance(known, dict):
            raise DataError(f"{self.path / _PLAN} is no plan of an audit")
        return known

    def begin(self, plan: Mapping[str, Any], questions: str) -> None:
        """Write the plan and the questions, as ``questions_csv`` gives them."""
        if self.path is None:
            return
        if (self.path / _ANSWERS).exists():
            raise DataError(f"{self.path} has answers but no {_PLAN}; choose another directory, or put the plan back")
        write_text(self.path / _QUESTIONS, questions)
        write_text(self.path / _PLAN, json.dumps(plan) + "\n")  # last: a folder with a plan is whole

    def restore(self, asked: Mapping[int, int], *, repair: bool) -> None:
        """Read the answers so far; ``asked`` gives the arm of every question by its id.

        With ``repair``, for those who hold the folder's lock, a line that was cut off is removed from the file.
        """
        if self.path is None or not (self.path / _ANSWERS).exists():
            return
        path = self.path / _ANSWERS
        try:
            text = path.read_bytes()
            whole = text[: text.rfind(b"\n") + 1]
            if repair and len(whole) < len(text):  # killed while it wrote: the answer was never acknowledged
                with open(path, "r+b") as file:
                    file.truncate(len(whole))
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from None
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                known = json.loads(line)
                identity, reward = int(known["id"]), float(known["reward"])
            except (ValueError, KeyError, TypeError):
                raise DataError(f"{path}, line {number}, is no answer; restore the file from a copy") from None
            if identity not in asked or not math.isfinite(reward):
                raise DataError(f"{path}, line {number}: {known} answers no question of this audit")
            self.answers[identity] = reward

    def add(self, answers: Mapping[int, float]) -> None:
        """Keep answers; when this returns they are on disk."""
        if self.path is not None and answers:
            lines = "".join(
                json.dumps({"id": identity, "reward": reward}) + "\n" for identity, reward in answers.items()
            )
            path = self.path / _ANSWERS
            try:
                with open(path, "ab") as file:
                    file.write(lines.encode())
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise DataError(
                    f"{path} cannot be written: {error.strerror}; the answer to {lines.strip()} is lost"
                ) from None
        self.answers.update(answers)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result."""
        if self.path is not None:
            write_text(self.path / _RESULT, json.dumps(result, indent=2) + "\n")


def questions_csv(
    ids: Sequence[int],
    arms: Sequence[int],
    *,
    names: Sequence[str],
    files: Sequence[str],
    contexts: Sequence[int] = (),
) -> str:
    """The questions as CSV with an empty column for rewards; ``names`` (K,) and ``files`` (n,) may be empty.

    ``contexts`` (n,) are their positions in the target, where the ids are not.
    """
    columns: dict[str, Sequence[Any]] = {"id": ids}
    if contexts:
        columns["context"] = contexts
    if files:
        columns["file"] = files
    columns["arm"] = arms
    if names:
        columns["arm_name"] = [names[arm] for arm in arms]
    columns["reward"] = [""] * len(ids)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def read_answers(path: str | Path, asked: Mapping[int, int]) -> dict[int, float]:
    """Rewards by id from a CSV with the columns ``id`` and ``reward``; rows with an empty reward are not answered yet.

    Args:
        path: the file. A column ``arm`` is compared with what was asked; other columns are ignored.
        asked: the arm of every question by its id.
    """
    path = checked_path(path, "answers")
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            names = list(reader.fieldnames or ())
            rows = [(reader.line_num, row) for row in reader]
    except FileNotFoundError:
        raise InvalidInput(f"there is no file {path}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path} is not CSV in UTF-8: {error}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    for column in ("id", "reward"):
        if column not in names:
            raise InvalidInput(f"{path} has no column {column!r} (its columns: {', '.join(names) or 'none'})")
    answers: dict[int, float] = {}
    seen: dict[int, int] = {}
    for line, row in rows:
        where = f"{path}, line {line}"
        identity = _whole(row["id"], f"{where}: id")
        if identity not in asked:
            raise InvalidInput(f"{where}: id {identity} was not asked; answer the ids of questions.csv")
        if identity in seen:
            raise InvalidInput(f"{where}: id {identity} is answered in line {seen[identity]} already; keep one of them")
        seen[identity] = line
        if row.get("arm") and _whole(row["arm"], f"{where}: arm") != asked[identity]:
            raise InvalidInput(
                f"{where}: the reward of arm {asked[identity]} was asked for id {identity}, not {row['arm']}"
            )
        if row["reward"] is None or not row["reward"].strip():
            continue
        try:
            reward = float(row["reward"])
        except ValueError:
            raise InvalidInput(f"{where}: the reward {row['reward']!r} of id {identity} is no number") from None
        if not math.isfinite(reward):
            raise InvalidInput(f"{where}: the reward of id {identity} is {row['reward']}; leave it empty where unknown")
        answers[identity] = reward
    return answers


def _whole(text: str | None, where: str) -> int:
    try:
        return int(str(text).strip())
    except ValueError:
        raise InvalidInput(f"{where} must be a whole number, got {text!r}") from None
