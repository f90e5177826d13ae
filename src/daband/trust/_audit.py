"""The value of a policy in the target from a few rewards: which contexts to ask for, and an interval that holds.

Predicted rewards decide which contexts are asked for, in the way of active and prediction-powered inference (Zrnic and
Candes, 2024; Angelopoulos et al., 2023); the interval rests on the random draw alone, so it holds whatever the
predictions are worth.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daband._arguments import between_0_and_1, finite, one_of, whole
from daband._arrays import AnyArray, ArrayLike, FloatArray, IntArray, as_numpy
from daband._files import checked_path, read_json, write_json, write_text
from daband.domains._contract import Contexts, EvaluationDomain
from daband.errors import DataError, InvalidInput
from daband.policies._policy import Policy
from daband.training._work_folder import Folder
from daband.trust._audit_plan import Plan, plan_draws, plan_strata
from daband.trust._estimate import shift_to_mean

# The folder of an audit: its plan, its questions as CSV, and every answer from the moment it arrives.
#
# ``plan.json`` is written once, ``questions.csv`` is for people, ``answers.jsonl`` gets a line an answer, flushed to
# disk before the next question is asked, and ``audit.json`` is the result. An audit that was killed goes on from
# there.


_PLAN, _QUESTIONS, _ANSWERS, _RESULT = "plan.json", "questions.csv", "answers.jsonl", "audit.json"
_WHAT = "an audit, whose plan is fixed before the first reward,"


def questions_csv(
    ids: Sequence[int],
    arms: Sequence[int],
    *,
    names: Sequence[str],
    rows: Mapping[str, Sequence[Any]],
    contexts: Sequence[int] = (),
    rewards: Mapping[int, float] | None = None,
) -> str:
    """The questions as CSV with a column for rewards to fill in; ``names`` (K,) may be empty.

    ``rows`` are columns (n,) by which people know the contexts: a customer's number, a file. ``contexts`` (n,) are
    their positions in the target, where the ids are not. ``rewards`` by id are known already.
    """
    columns: dict[str, Sequence[Any]] = {"id": ids}
    if contexts:
        columns["context"] = contexts
    for name, values in rows.items():
        columns[f"target {name}" if name in ("id", "context", "arm", "arm_name", "reward") else name] = values
    columns["arm"] = arms
    if names:
        columns["arm_name"] = [names[arm] for arm in arms]
    columns["reward"] = [(rewards or {}).get(identity, "") for identity in ids]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def read_answers(
    path: str | Path, asked: Mapping[int, int], *, contexts: Sequence[int] | None = None
) -> dict[int, float]:
    """Rewards by id from a CSV with the columns ``id`` and ``reward``; rows with an empty reward are not answered yet.

    Args:
        path: the file. A column ``arm`` is compared with what was asked; other columns are ignored.
        asked: the arm of every question by its id.
        contexts: the context of every question, where the file has more questions than are asked so far.
    """
    path = checked_path(path, "answers")
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            european = file.readline().count(";") > 1  # as spreadsheets save it in much of Europe, with decimal commas
            file.seek(0)
            reader = csv.DictReader(file, delimiter=";" if european else ",")
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
        if contexts is not None and identity >= len(contexts):
            continue
        if identity not in asked:
            raise InvalidInput(f"{where}: id {identity} was not asked; answer the ids of questions.csv")
        if contexts is not None and _whole(row.get("context"), f"{where}: context") != contexts[identity]:
            raise InvalidInput(
                f"{where}: id {identity} is not about context {contexts[identity]}: these are the questions of other "
                "candidates; give another directory"
            )
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
            reward = _european_number(row["reward"]) if european else float(row["reward"])
        except ValueError:
            raise InvalidInput(f"{where}: the reward {row['reward']!r} of id {identity} is no number") from None
        if not math.isfinite(reward):
            raise InvalidInput(f"{where}: the reward of id {identity} is {row['reward']}; leave it empty where unknown")
        answers[identity] = reward
    return answers


def _european_number(text: str) -> float:
    """3.854,17 as a number; 1.200 may be a decimal or a thousand, and is a ``ValueError``."""
    if re.fullmatch(r"[+-]?[1-9]\d{0,2}(\.\d{3})+", text.strip()):
        raise ValueError(text)
    return float(text.replace(".", "").replace(",", ".") if "," in text else text)


def _whole(text: str | None, where: str) -> int:
    try:
        return int(str(text).strip())
    except ValueError:
        raise InvalidInput(f"{where} must be a whole number, got {text!r}") from None


# What is predicted before an audit: the arm of each target context and how much it seems to pay.


_BATCH = 1024


class ContextReader:
    """Contexts of any kind of target by position."""

    def __init__(self, target: Any) -> None:
        if not isinstance(target, Contexts | EvaluationDomain):
            target = as_numpy(target, "target")
            if target.ndim < 2:
                raise InvalidInput(f"target must be contexts (N, *C) or e.g. pair.target, got shape {target.shape}")
        self._target = target

    def __len__(self) -> int:
        return len(self._target)

    def row_names(self, indices: IntArray) -> dict[str, list[Any]]:
        """By which columns people know these contexts: ids of a table, files of images; may be empty."""
        names_of = self._target.row_names if isinstance(self._target, Contexts) else {}
        return {column: [names[index] for index in indices.tolist()] for column, names in names_of.items()}

    def as_given(self, indices: IntArray) -> Any:
        """The contexts at these positions as their owner knows them: rows of a table, or as ``read`` gives them."""
        return self._target.as_given(indices) if isinstance(self._target, Contexts) else self.read(indices)

    def read(self, indices: IntArray) -> AnyArray:
        """The contexts at these positions; of an evaluation domain they must be consecutive."""
        if isinstance(self._target, EvaluationDomain):
            return self._target.read(int(indices[0]), int(indices[-1]) + 1)
        return self._target.read(indices) if isinstance(self._target, Contexts) else self._target[indices]


def decisions(policy: Policy, contexts: ContextReader, rule: str) -> tuple[IntArray, FloatArray]:
    """The arm of each context, (N,), and its ``certainty`` (N,)."""
    low, high = policy.reward_moments.observed
    arms, means = [], []
    for start in range(0, len(contexts), _BATCH):
        batch = contexts.read(np.arange(start, min(start + _BATCH, len(contexts))))
        decision = policy.decide(batch, "target", rule=rule, round_offset=start)
        arms.append(decision.arm)
        means.append((decision.mean - low) / (high - low))
    arm = np.concatenate(arms)
    return arm, certainty(np.concatenate(means), arm)


def certainty(mean: FloatArray, arm: IntArray) -> FloatArray:
    """The predicted reward of each chosen arm, (N,) in [0, 1], by the predicted rewards of all arms (N, K).

    The predicted rewards of the chosen arms are given to contexts in the order of another number: the predicted reward
    plus the lead over the next best arm. The first tells contexts that pay little from those that pay much; the lead,
    where one arm pays and the others do not, tells right choices from wrong ones better.
    """
    rows = np.arange(len(mean))
    chosen = np.clip(mean[rows, arm], 0.0, 1.0)
    others = mean.copy()
    others[rows, arm] = -np.inf
    lead = mean[rows, arm] - others.max(axis=1) if mean.shape[1] > 1 else np.zeros(len(mean))
    ordered: FloatArray = np.empty(len(mean))
    ordered[np.argsort(chosen + np.clip(lead, -1.0, 1.0), kind="stable")] = np.sort(chosen)
    return ordered


def predictions(predicted: FloatArray, assessment: Any, n: int, low: float, high: float) -> FloatArray:
    """Predicted rewards (N,) in [0, 1]: the policy's ``predicted``, or what the assessment says."""
    if assessment is None:
        return predicted
    given = getattr(assessment, "predicted", None)
    if given is None and not hasattr(assessment, "value"):
        given = assessment
    if given is None:
        return shift_to_mean(predicted, (finite("assessment.value", assessment.value) - low) / (high - low))
    predicted = as_numpy(given, "assessment").astype(np.float64)
    if predicted.shape != (n,) or not np.isfinite(predicted).all():
        raise InvalidInput(
            f"assessment must give a finite predicted reward for each of {n} contexts, got shape {predicted.shape}"
        )
    return np.clip((predicted - low) / (high - low), 0.0, 1.0)


Ask = Callable[[AnyArray, IntArray], ArrayLike]
"""``ask(contexts, arms) -> rewards``: what these arms pay for these contexts, (B, *C) and (B,) to (B,).

Of a pair that was made of tables, the contexts are rows: a polars frame with the columns that its owner gave."""
_FORMAT = 1


@dataclass(frozen=True)
class Audit:
    """What an audit found, in the user's unit.

    ``value``, ``low`` and ``high`` are NaN until the interval may be read: with a fixed budget, until every question is
    answered.

    >>> policy = daband.LinUCB(context_shape=(1,), n_arms=2, seed=0)
    >>> audit = daband.audit(policy, target=[[0.0], [1.0]] * 10, budget=5, directory="audit")
    >>> audit.finished, audit.questions.name
    (False, 'questions.csv')
    """

    value: float
    """The estimated mean reward of the policy's choices in the target."""
    low: float
    high: float
    confidence: float
    budget: int
    answered: int
    contexts: int
    """How many target contexts the questions were drawn from."""
    predicted: float
    """The mean of the predictions that chose the questions; the interval does not rest on it."""
    anytime: bool
    """Whether the interval holds after any number of answers, so that one may stop when one likes."""
    questions: Path | None = None
    """The CSV of questions, where the audit has a directory."""

    @property
    def finished(self) -> bool:
        """Whether there is an interval that may be read."""
        return not math.isnan(self.value)

    def as_dict(self) -> dict[str, Any]:
        """All fields, as JSON can hold them: None where there is no number yet."""
        fields = asdict(self)
        fields["questions"] = None if self.questions is None else str(self.questions)
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value for name, value in fields.items()
        }


def audit(
    policy: Policy,
    *,
    target: Contexts | EvaluationDomain | ArrayLike,
    budget: int,
    ask: Ask | None = None,
    assessment: Any = None,
    directory: str | Path | None = None,
    anytime: bool = False,
    stop: Callable[[Audit], bool] | None = None,
    confidence: float = 0.95,
    rule: str = "ucb",
    seed: int = 0,
    arm_names: Sequence[str] = (),
) -> Audit:
    """Ask for the rewards of ``budget`` target contexts, and say what the policy is worth there.

    The policy is the same afterwards. The interval is for the mean reward over all of ``target``; with a
    fixed budget also for the domain that these contexts were drawn from.

    Args:
        policy: the policy.
        target: contexts, e.g. ``pair.target``, or an array (N, *C). Rewards it may have are not looked at.
        budget: how many rewards, fixed beforehand; at most N.
        ask: pays: called with one context (1, *C) and the policy's arm (1,) at a time, returns the reward (1,). Without
            it the questions are written to ``directory/questions.csv``, and ``answer_audit`` takes the answers.
        assessment: what to predict rewards by: an array (N,) of predicted rewards, something with such an array as
            ``predicted``, or with a ``value`` (as ``daband.assess`` returns) to which the policy's predictions are
            moved. By default the policy's own predictions as they are.
        directory: keep plan and answers there. Each answer is on disk before the next question is asked; called again,
            an audit that was killed asks only what is open.
        anytime: plan for an interval that holds after any number of answers (a confidence sequence), so that one may
            look and stop early. It is wider than that of a fixed budget, and for the contexts of ``target`` alone.
        stop: look at the audit after each answer, and end it by returning True; takes ``anytime``.
        confidence: of the two-sided interval.
        rule: "ucb" or "greedy", as in ``evaluate``.
        seed: fixes which contexts are drawn.
        arm_names: a name per arm for questions.csv, e.g. ``pair.class_names``.

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> policy = daband.LinUCB.for_pair(pair, seed=0)
    >>> run = daband.train(policy, source=pair.source, target=pair.target, episodes=4, episode_length=32)
    >>> def ask(contexts, arms):  # what the arm pays for the context; here everything pays
    ...     return [1.0] * len(arms)
    >>> audit = daband.audit(policy, target=pair.target, budget=20, ask=ask)
    >>> audit.answered, audit.high
    (20, 1.0)
    """
    _check(policy, ask, directory, confidence, rule)
    _check_stop(anytime, stop)
    contexts = ContextReader(target)
    budget, seed = whole("budget", budget, least=1), whole("seed", seed, least=0)
    if budget > len(contexts):
        raise InvalidInput(f"budget is {budget}, but the target has {len(contexts)} contexts; ask for at most these")
    if len(arm_names) not in (0, policy.n_arms):
        raise InvalidInput(f"arm_names has {len(arm_names)} names for {policy.n_arms} arms")
    arms, by_policy = decisions(policy, contexts, rule)
    low, high = policy.reward_moments.observed
    predicted = predictions(by_policy, assessment, len(contexts), low, high)
    plan = (plan_draws if anytime else plan_strata)(predicted, budget=budget, seed=seed)
    settings = {
        "format": _FORMAT, "budget": budget, "confidence": confidence, "rule": rule, "seed": seed,
        "anytime": plan.anytime, "contexts": len(contexts), "estimated_range": [low, high],
        "reward_range": "auto" if policy.standardise_rewards else [low, high],
    }  # fmt: skip
    settings["predicted"] = low + (high - low) * float(predicted.mean())
    with nullcontext() if directory is None else Folder(directory, what=_WHAT) as folder:
        state = _begun(folder, plan, settings, arms, names=arm_names, rows=contexts.row_names(plan.ids))
        if ask is not None:
            state.ask_open_questions(ask, contexts, stop)
        return state.conclude()


def answer_audit(directory: str | Path, answers: str | Path, *, replace: bool = False) -> Audit:
    """Take the answers of a CSV into an audit that ``audit`` began in ``directory``, and say what it found.

    A wrong row is an error, and then nothing is taken. An answer that was given before may be given again. Where
    rewards are missing, those given are kept, and the error says which are open.

    Args:
        directory: the audit's folder.
        answers: a CSV with columns ``id`` and ``reward``; questions.csv with its empty column filled in will do.
        replace: an answer that differs from the one given before takes its place: a mistake in a CSV can be mended.
    """
    with Folder(_existing(directory), what=_WHAT) as folder:
        state = _read_state(folder.path)
        given = read_answers(answers, state.asked)
        for identity, reward in given.items():
            before = state.answers.get(identity, reward)
            if before != reward and not replace:
                raise InvalidInput(
                    f"{answers}: id {identity} was answered with {before:g} before, and now with {reward:g}; where the "
                    "first was a mistake, replace=True (--replace) takes the second"
                )
        new = {identity: reward for identity, reward in given.items() if state.answers.get(identity) != reward}
        for identity, reward in new.items():
            state.check(reward, f"{answers}: id {identity}")
        state.add(new)
        result = state.conclude()
        if not result.finished:
            still = [identity for identity in state.asked if identity not in state.answers]
            raise InvalidInput(
                f"{answers}: {len(still)} of {len(state.asked)} questions have no reward yet, id {still[0]} first. "
                f"The {len(state.answers)} others are kept; the interval comes with the last one"
            )
        return result


def read_audit(directory: str | Path) -> Audit:
    """The state of the audit in a folder; another process may be at work there."""
    return _read_state(_existing(directory), repair=False).result()


class _State:
    """One audit under way: its plan, the arm of each question, and the answers; without a ``path`` all in memory."""

    def __init__(self, path: Path | None, plan: Plan, arms: IntArray, settings: dict[str, Any]) -> None:
        self.path, self.plan, self.settings = path, plan, settings
        self.asked = dict(zip(plan.ids.tolist(), arms.tolist(), strict=True))
        self.answers: dict[int, float] = {}

    def restore(self, path: Path, *, repair: bool) -> None:
        """Read the answers so far. With ``repair``, for who holds the lock, a line that was cut off is removed."""
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
                answer = json.loads(line)
                identity, reward = int(answer["id"]), float(answer["reward"])
            except (ValueError, KeyError, TypeError):
                raise DataError(f"{path}, line {number}, is no answer; restore the file from a copy") from None
            if identity not in self.asked or not math.isfinite(reward):
                raise DataError(f"{path}, line {number}: {answer} answers no question of this audit")
            self.answers[identity] = reward

    def add(self, answers: Mapping[int, float]) -> None:
        """Keep answers; when this returns they are on disk."""
        if self.path is not None and answers:
            lines = "".join(json.dumps({"id": one, "reward": reward}) + "\n" for one, reward in answers.items())
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

    def ask_open_questions(self, ask: Ask, contexts: ContextReader, stop: Callable[[Audit], bool] | None) -> None:
        for identity, arm in self.asked.items():
            if identity in self.answers:
                continue
            if stop is not None and self.answers and stop(self.result()):
                return
            paid = as_numpy(ask(contexts.as_given(np.array([identity])), np.array([arm])), "what ask returned")
            if paid.size != 1:
                raise InvalidInput(f"ask must return one reward for one context, got an array of shape {paid.shape}")
            reward = float(paid.reshape(()))
            self.check(reward, "ask")
            self.add({identity: reward})

    def check(self, reward: float, where: str) -> None:
        """Raise where a reward is not finite or outside a range that was given; warn where it is far from any seen."""
        limits = self.settings["reward_range"]
        kept = "" if self.path is None else f"; the {len(self.answers)} answers before are kept"
        if not math.isfinite(reward):
            raise InvalidInput(f"{where}: the reward is {reward}, which is no number{kept}")
        if limits != "auto":
            if not limits[0] <= reward <= limits[1]:
                raise InvalidInput(f"{where}: reward {reward:g} is outside the policy's reward_range {limits}{kept}")
            return
        low, high = self.settings["estimated_range"]
        if not 2 * low - high <= reward <= 2 * high - low:
            warnings.warn(
                f"{where}: reward {reward:g} is far outside the range {low:g} to {high:g} that the policy saw, and "
                "widens the interval; where it is a mistake, answer_audit(..., replace=True) (--replace) takes another",
                stacklevel=4,
            )

    def result(self) -> Audit:
        answers, settings = self.answers, self.settings
        given: list[float] = []
        for identity in self.asked:  # of a sequence, the answers up to the first open question
            if identity not in answers:
                break
            given.append(answers[identity])
        low, high = settings["estimated_range"]
        if settings["reward_range"] == "auto":  # nobody knows the range: at least what was seen
            low, high = min([low, *given]), max([high, *given])
        value = lower = upper = math.nan
        if self.plan.anytime or len(given) == len(self.asked):
            unit = (np.array(given, np.float64) - low) / (high - low)
            interval = self.plan.interval(unit, confidence=settings["confidence"])
            value, lower, upper = (
                low + (high - low) * share for share in (interval.value, interval.low, interval.high)
            )
        return Audit(
            value=value,
            low=lower,
            high=upper,
            confidence=settings["confidence"],
            budget=settings["budget"],
            answered=len(answers),
            contexts=settings["contexts"],
            predicted=settings["predicted"],
            anytime=self.plan.anytime,
            questions=None if self.path is None else self.path / _QUESTIONS,
        )

    def conclude(self) -> Audit:
        result = self.result()
        if result.finished and self.path is not None:
            write_json(self.path / _RESULT, result.as_dict())
        return result


def _begun(
    folder: Folder | None,
    plan: Plan,
    settings: dict[str, Any],
    arms: IntArray,
    *,
    names: Sequence[str],
    rows: Mapping[str, Sequence[Any]],
) -> _State:
    """The audit as it was begun in the folder, or a new one."""
    asked = arms[plan.ids]
    if folder is None:
        return _State(None, plan, asked, settings)
    path = folder.path
    if _read_plan(path) is None:
        if (path / _ANSWERS).exists():
            raise DataError(f"{path} has answers but no {_PLAN}; choose another directory, or put the plan back")
        content = {**settings, "arms": asked.tolist(), "plan": plan.as_dict()}
        write_text(path / _QUESTIONS, questions_csv(plan.ids.tolist(), asked.tolist(), names=names, rows=rows))
        write_text(path / _PLAN, json.dumps(content) + "\n")  # last: a folder with a plan is whole
        return _State(path, plan, asked, settings)
    state = _read_state(path)
    fixed = [name for name in settings if name not in ("estimated_range", "predicted")]
    folder.compare({name: state.settings.get(name) for name in fixed}, {name: settings[name] for name in fixed})
    for identity, arm in state.asked.items():
        if arms[identity] != arm:
            raise InvalidInput(
                f"the audit in {path} is of another policy or target: for context {identity} it asks for arm "
                f"{arm}, and this policy chooses {arms[identity]}. Choose another directory"
            )
    return state


def _read_plan(path: Path) -> dict[str, Any] | None:
    """The plan that was begun in a folder, as it was written; None where there is none."""
    if not (path / _PLAN).exists():
        return None
    plan = read_json(path / _PLAN)
    if not isinstance(plan, dict):
        raise DataError(f"{path / _PLAN} is no plan of an audit")
    return plan


def _read_state(path: Path, *, repair: bool = True) -> _State:
    settings = _read_plan(path)
    if settings is None:
        raise InvalidInput(f"{path} holds no audit; begin one with daband.audit(..., directory=...)")
    try:
        plan = Plan.from_dict(settings.pop("plan"))
        arms = np.array(settings.pop("arms"), np.int64)
        if settings["format"] != _FORMAT:
            raise DataError(f"{path} holds an audit of format {settings['format']}; this version reads {_FORMAT}")
        state = _State(path, plan, arms, settings)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"the plan in {path} is damaged: {error}") from None
    if (path / _ANSWERS).exists():
        state.restore(path / _ANSWERS, repair=repair)
    return state


def _existing(directory: str | Path) -> Path:
    if not Path(directory).is_dir():
        raise InvalidInput(f"there is no folder {directory}; begin an audit with daband.audit(..., directory=...)")
    return Path(directory)


def _check(policy: Any, ask: Any, directory: Any, confidence: Any, rule: Any) -> None:
    if not isinstance(policy, Policy):
        raise InvalidInput(f"policy must be a daband policy, e.g. daband.LinUCB(...), got {type(policy).__name__}")
    if ask is not None and not callable(ask):
        raise InvalidInput(f"ask must be a function of contexts and arms that returns rewards, got {ask!r}")
    if ask is None and directory is None:
        raise InvalidInput("audit needs somebody to answer: ask=, or a directory= for questions.csv")
    between_0_and_1("confidence", confidence)
    one_of("rule", rule, ("ucb", "greedy"))


def _check_stop(anytime: Any, stop: Any) -> None:
    if not isinstance(anytime, bool):
        raise InvalidInput(f"anytime must be True or False, got {anytime!r}")
    if stop is not None and not callable(stop):
        raise InvalidInput(f"stop must be a function of the audit so far that returns True or False, got {stop!r}")
    if stop is not None and not anytime:
        raise InvalidInput(
            "stop needs anytime=True: the interval of a fixed budget does not hold for those who look and then stop"
        )
