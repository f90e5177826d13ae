"""Ask people or programs for target rewards, and store the answers in memory or in a folder.

In a folder, ``plan.npz`` has the data that the questions were drawn from, and ``plan.json`` the
settings. ``questions.csv`` is for the people who answer. ``answers.jsonl`` gets a line per answer,
flushed to disk before the next question is asked. A choice or an audit that was killed continues
from there.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from daband.base._arrays import AnyArray, ArrayLike, IntArray, as_numpy
from daband.base._files import (
    check_path,
    make_folder,
    read_json,
    read_npz,
    write_json,
    write_npz,
    write_text,
)
from daband.base._lazy_polars import pl
from daband.domains._contract import Contexts
from daband.domains.readers._reading import read_table
from daband.errors import DataError, InvalidInput
from daband.features._costs import ArmCosts
from daband.features._table_transform import read_numbers, row_number
from daband.training._work_folder import as_json, describe_difference
from daband.trust._questions import Evidence, Questions

#: A function ``ask(contexts, arms)`` that returns the rewards (B,) of arms (B,) for contexts (B,
#: *C).
#:
#: If the pair was built from tables, the contexts are a polars frame with the columns of the table.
Ask = Callable[[AnyArray, IntArray], ArrayLike]

#: CSV file of the questions, with a column of rewards to fill in.
QUESTIONS_FILE = "questions.csv"
#: File of the answers so far, one JSON object per line.
_ANSWERS_FILE = "answers.jsonl"
#: JSON file of the settings of a survey.
_PLAN_FILE = "plan.json"
#: File of the arms, predictions and context indices that the questions were drawn from.
_ARRAYS_FILE = "plan.npz"


def as_survey_settings(costs: ArmCosts | None) -> dict[str, Any]:
    """Return the setting of a survey with which the costs of arms are subtracted from answers."""
    return {} if costs is None else {"costs": list(costs.means)}


class Survey:
    """Questions about target contexts, and the answers so far.

    Args:
        questions: the questions.
        target_indices: index in the target domain of each context that the questions are about,
            (L,).
        budget: number of answers to ask for.
        folder: folder of questions and answers; None keeps them in memory.
        settings: settings that JSON can hold. An error is raised if the folder was started with
            other settings.
        arm_names: names of arms for the CSV, (K,) or empty.
        row_names: columns such as ids, by which people recognise contexts. Each has a value per
            context of the target domain.
    """

    def __init__(
        self,
        questions: Questions,
        target_indices: IntArray,
        *,
        budget: int,
        folder: Path | None = None,
        settings: Mapping[str, Any] | None = None,
        arm_names: Sequence[str] = (),
        row_names: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        self.questions = questions
        self.target_indices = target_indices
        self.budget = budget
        self.folder = None if folder is None else make_folder(folder)
        #: Questions in the order of asking, as (row of ``target_indices``, arm).
        self.planned_questions = questions.draw_first(budget)
        #: Reward by question.
        self.answers: dict[tuple[int, int], float] = {}
        #: The settings that the survey was started with.
        self.settings = dict(settings or {})
        self._arm_names = arm_names
        self._row_names = row_names or {}
        if self.folder is not None:
            self._open_folder(self.folder)

    @classmethod
    def read(cls, folder: Path) -> Survey:
        """Read a survey from its folder."""
        if not (folder / _PLAN_FILE).is_file():
            raise InvalidInput(
                f"{folder} holds no questions; start with daband.audit(..., directory=...)"
            )
        plan = read_json(folder / _PLAN_FILE)
        arrays = read_npz(folder / _ARRAYS_FILE)
        try:
            arms = arrays["arms"]
            predictions = arrays["predicted"]
            questions = Questions(
                arms,
                predictions,
                reward_deviation=plan["deviation"],
                reward_skewness=plan["skewness"],
                seed=plan["seed"],
            )
            return cls(
                questions,
                arrays["indices"],
                budget=plan["budget"],
                folder=folder,
                settings=plan["settings"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{folder / _PLAN_FILE} is damaged: {error}") from None

    @property
    def unanswered_questions(self) -> list[tuple[int, int]]:
        """Questions without an answer."""
        return [question for question in self.planned_questions if question not in self.answers]

    @property
    def questions_file(self) -> Path | None:
        """Path of the CSV of questions; None without a folder."""
        return None if self.folder is None else self.folder / QUESTIONS_FILE

    def compute_evidence(self) -> Evidence:
        """Return the evidence from the answers so far."""
        return self.questions.compute_evidence(self.net_answers)

    @property
    def net_answers(self) -> dict[tuple[int, int], float]:
        """Reward by question, without the costs of arms in the setting "costs"."""
        costs = self.settings.get("costs", ())
        return {
            (row, arm): reward - (costs[arm] if arm < len(costs) else 0.0)
            for (row, arm), reward in self.answers.items()
        }

    def ask(
        self, ask_function: Ask, target: Contexts, should_stop: Callable[[], bool] | None = None
    ) -> None:
        """Ask the unanswered questions about ``target`` one by one, until ``should_stop`` returns
        True.
        """
        for row, arm in self.unanswered_questions:
            if should_stop is not None and self.answers and should_stop():
                return
            contexts = target.read_raw(self.target_indices[[row]])
            reward = as_numpy(ask_function(contexts, np.array([arm])), "the result of ask")
            if reward.size != 1:
                raise InvalidInput(
                    "ask must return one reward for one context, got an array of shape"
                    f" {reward.shape}"
                )
            self.add_answers({(row, arm): float(reward.reshape(()))})

    def add_answers(self, answers: Mapping[tuple[int, int], float]) -> None:
        """Store rewards by question. With a folder, they are on disk when this returns."""
        for reward in answers.values():
            if not math.isfinite(reward):
                remark = (
                    ""
                    if self.folder is None
                    else f"; the {len(self.answers)} answers before are kept"
                )
                raise InvalidInput(
                    f"a target reward is {reward}, which is not a finite number{remark}"
                )
        if self.folder is not None and answers:
            lines = "".join(
                json.dumps({"context": int(self.target_indices[row]), "arm": arm, "reward": reward})
                + "\n"
                for (row, arm), reward in answers.items()
            )
            path = self.folder / _ANSWERS_FILE
            try:
                with open(path, "ab") as file:
                    file.write(lines.encode())
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise DataError(
                    f"{path} cannot be written: {error.strerror}; an answer is lost: {lines}"
                ) from None
        self.answers.update(answers)

    def add_csv(self, path: str | Path, *, replace: bool = False) -> None:
        """Store the answers of a CSV file. If a row is invalid, raise an error and store nothing.

        ``replace`` allows answers that differ from stored ones; otherwise they are an error.
        """
        rewards = read_answers(
            path, [(int(self.target_indices[row]), arm) for row, arm in self.planned_questions]
        )
        new_answers = {}
        for question_id, reward in rewards.items():
            question = self.planned_questions[question_id]
            earlier_reward = self.answers.get(question)
            if earlier_reward is not None and earlier_reward != reward and not replace:
                raise InvalidInput(
                    f"{path}: id {question_id} was answered with {earlier_reward:g} before, and now"
                    f" with {reward:g}; set replace=True (--replace) to use the new answer"
                )
            if earlier_reward != reward:
                new_answers[question] = reward
        self.add_answers(new_answers)

    def _open_folder(self, folder: Path) -> None:
        """Read the answers in the folder if it has this survey, else write its questions there."""
        settings = as_json(self.settings)
        questions = self.questions
        plan = {
            "settings": settings,
            "deviation": questions.reward_deviation,
            "skewness": questions.reward_skewness,
            "seed": questions.seed,
            "budget": self.budget,
        }
        arrays = {
            "arms": questions.candidate_arms,
            "predicted": questions.predicted_rewards,
            "indices": self.target_indices,
        }
        stored_plan = read_json(folder / _PLAN_FILE) if (folder / _PLAN_FILE).is_file() else {}
        if stored_plan:
            if difference := describe_difference(stored_plan.get("settings"), settings):
                raise InvalidInput(
                    f"{folder} was started with other settings ({difference}); choose another"
                    " directory"
                )
            stored = read_npz(folder / _ARRAYS_FILE)
            if not all(np.array_equal(arrays[name], stored[name]) for name in ("arms", "indices")):
                raise InvalidInput(
                    f"{folder} holds questions about another policy, other candidates or another"
                    " target; choose another directory"
                )
        self._restore_answers(folder / _ANSWERS_FILE)
        if stored_plan.get("budget") == self.budget:
            return
        write_npz(folder / _ARRAYS_FILE, arrays, compressed=True)
        self._write_csv(folder / QUESTIONS_FILE)
        write_json(folder / _PLAN_FILE, plan)  # last: a folder with a plan is complete

    def _restore_answers(self, path: Path) -> None:
        """Read the answers that were stored before, and remove an incomplete last line."""
        if not path.exists():
            return
        try:
            content = path.read_bytes()
            complete_lines = content[: content.rfind(b"\n") + 1]
            # the process was killed while it wrote an answer
            if len(complete_lines) < len(content):
                with open(path, "r+b") as file:
                    file.truncate(len(complete_lines))
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from None
        row_by_index = {int(index): row for row, index in enumerate(self.target_indices)}
        for line_number, line in enumerate(complete_lines.splitlines(), 1):
            try:
                answer = json.loads(line)
                reward = float(answer["reward"])
                self.answers[row_by_index[answer["context"]], int(answer["arm"])] = reward
            except (ValueError, KeyError, TypeError):
                raise DataError(
                    f"{path}, line {line_number}, is not an answer; restore the file from a copy"
                ) from None

    def _write_csv(self, path: Path) -> None:
        """Write the questions with a column of rewards to fill in.

        Rewards that are already filled in are kept.
        """
        if path.exists():
            self.add_csv(path)
        indices = [int(self.target_indices[row]) for row, _ in self.planned_questions]
        columns: dict[str, Sequence[Any]] = {
            "id": range(len(self.planned_questions)),
            "context": indices,
        }
        for name, cells in self._row_names.items():
            is_reserved = name in ("id", "context", "arm", "arm_name", "reward")
            columns[f"target {name}" if is_reserved else name] = [cells[index] for index in indices]
        columns["arm"] = [arm for _, arm in self.planned_questions]
        if self._arm_names:
            columns["arm_name"] = [self._arm_names[arm] for _, arm in self.planned_questions]
        columns["reward"] = [self.answers.get(question) for question in self.planned_questions]
        write_text(path, pl.DataFrame(columns, strict=False).write_csv())


def read_answers(path: str | Path, index_arm_pairs: Sequence[tuple[int, int]]) -> dict[int, float]:
    """Return rewards by question id from a table with the columns ``id`` and ``reward``.

    Empty rewards are skipped.

    Args:
        path: the file. Columns ``arm`` and ``context``, if there are any, must agree with the
            questions.
        index_arm_pairs: the index in the target domain and the arm of each question. The question
            id is the position in this list.
    """
    frame = read_table(check_path(path, "answers"))
    try:
        numbers = {
            name: read_numbers(frame, name, is_context=False).tolist()
            for name in ("id", "reward", "context", "arm")
            if name in frame.columns or name in ("id", "reward")
        }
    except (InvalidInput, DataError) as error:
        raise InvalidInput(f"{path}: {error}") from None
    answers: dict[int, float] = {}
    row_by_id: dict[float, int] = {}
    rows = zip(numbers["id"], numbers["reward"], strict=True)
    for row, (question_id, reward) in enumerate(rows):
        place = f"{path}, row {row_number(frame, row)}: id {question_id:g}"
        if question_id not in range(len(index_arm_pairs)):
            raise InvalidInput(f"{place} was not asked; answer the ids of {QUESTIONS_FILE}")
        if row_by_id.setdefault(question_id, row) != row:
            first_row = row_number(frame, row_by_id[question_id])
            raise InvalidInput(f"{place} is answered in row {first_row} already")
        expected_values = index_arm_pairs[int(question_id)]
        for column, expected in zip(("context", "arm"), expected_values, strict=True):
            value = numbers[column][row] if column in numbers else math.nan
            if value != expected and not math.isnan(value):
                raise InvalidInput(
                    f"{place} is a question about {column} {expected}, not {value:g}"
                )
        if not math.isnan(reward):
            answers[int(question_id)] = reward
    return answers
