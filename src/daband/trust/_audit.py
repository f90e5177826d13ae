"""``audit``: measure the advantage of a policy over the incumbent with a few target rewards.

``audit`` asks for rewards, or writes questions to a CSV file. ``answer_audit`` adds the answers of
such a file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from daband.base._arguments import check_int, check_one_of, check_probability
from daband.base._arrays import ArrayLike
from daband.base._files import write_json
from daband.domains._contract import Contexts
from daband.errors import InvalidInput
from daband.policies._policy import Policy
from daband.training._work_folder import Folder
from daband.trust._answers import Ask, Survey, as_survey_settings
from daband.trust._assess import TargetContexts, check_arm_names, check_target
from daband.trust._assessment import (
    COLLECT,
    DEPLOY,
    KEEP,
    VERDICT_CONFIDENCE,
    Assessment,
    format_number,
)
from daband.trust._incumbent import as_incumbent, decide, make_constant_incumbent
from daband.trust._questions import Evidence, Questions, summarise_rewards

#: Maximum number of target contexts that questions are drawn from.
_MAX_CONTEXTS = 20_000
#: File of the result in the audit's folder.
_RESULT_FILE = "audit.json"
#: Description of the folder's contents in errors.
_FOLDER_DESCRIPTION = "an audit, whose questions are fixed before the first reward,"


@dataclass(frozen=True)
class Audit:
    """The advantage of a policy over the incumbent, estimated from target rewards, in the unit of
    the rewards.

    >>> policy = daband.LinUCB(context_shape=(1,), n_arms=2, seed=0)
    >>> audit = daband.audit(policy, target=[[0.0], [1.0]] * 10, budget=5, incumbent=1, directory="audit")
    >>> audit.finished, audit.questions.name
    (False, 'questions.csv')
    """

    #: Estimated advantage over the incumbent in the target.
    advantage: float
    #: Lower limit of the advantage.
    low: float
    #: Upper limit of the advantage.
    high: float
    #: Estimated mean reward of the policy in the target.
    value: float
    #: Lower limit of the mean reward.
    value_low: float
    #: Upper limit of the mean reward.
    value_high: float
    #: Name of the incumbent, such as "always coupon".
    incumbent: str
    #: Level of the two-sided intervals. They hold after any number of answers up to the budget.
    confidence: float
    #: Number of rewards that may be asked for; 0 if the policy and the incumbent make the same
    #: choices.
    budget: int
    #: Number of rewards so far.
    answered: int
    #: Number of target contexts that the questions were drawn from.
    contexts: int
    #: Unit of the rewards, such as "euros".
    unit: str = ""
    #: Path of the CSV of questions; None without a directory.
    questions: Path | None = None

    @property
    def finished(self) -> bool:
        """True if all questions are answered, or the interval excludes 0."""
        return self.answered >= self.budget or (self.answered > 0 and self.verdict != COLLECT)

    @property
    def verdict(self) -> str:
        """The verdict that follows from the interval: "deploy", "collect rewards" or "keep the
        incumbent".
        """
        return DEPLOY if self.low > 0.0 else KEEP if self.high < 0.0 or not self.budget else COLLECT

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        if not self.budget:
            return (
                f"No reward is needed: the policy makes the same choices as {self.incumbent} in the"
                " target."
            )
        unit = f"{self.unit} " if self.unit else ""
        limits = f"[{format_number(self.low)}, {format_number(self.high)}]"
        rewards = "1 target reward" if self.answered == 1 else f"{self.answered:,} target rewards"
        advantage = format_number(self.advantage, with_sign=True)
        result = f"{rewards}: {advantage} {limits} {unit}over {self.incumbent}: {self.verdict}."
        return result if self.answered else f"0 of {self.budget} questions are answered."

    def __str__(self) -> str:
        return self.sentence

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as a dictionary that JSON can hold. An infinite limit becomes None."""
        fields = asdict(self) | {
            "questions": None if self.questions is None else str(self.questions)
        }
        fields |= {"verdict": self.verdict}
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in fields.items()
        }


def audit(
    policy: Policy,
    *,
    target: Contexts | ArrayLike,
    budget: int,
    ask: Ask | None = None,
    incumbent: Any = None,
    directory: str | Path | None = None,
    until_clear: bool = False,
    confidence: float = 0.95,
    rule: str = "greedy",
    seed: int = 0,
    arm_names: Sequence[str] | None = None,
    unit: str = "",
) -> Audit:
    """Ask for at most ``budget`` target rewards, and estimate the policy's advantage over the
    incumbent.

    The policy does not change. The interval is for contexts of which ``target`` is a sample. It
    holds after any number of answers, and is wider before all answers have arrived. If the policy
    and the incumbent make the same choices, the advantage is 0 and nothing is asked.

    Args:
        policy: the policy.
        target: target contexts, e.g. ``pair.target``, or an array (N, *C).
        budget: number of rewards that may be asked for.
        ask: called with one context (1, *C) and one arm (1,), returns the reward (1,). The arm is
            the policy's or the incumbent's. Without ``ask`` the questions are written to
            ``directory/questions.csv``, and ``answer_audit`` reads the answers.
        incumbent: today's decisions, as in ``daband.assess``. Default: the arm with the largest
            mean prediction.
        directory: folder of questions and answers. Each answer is on disk before the next question
            is asked. After a crash, the same call asks only the questions without an answer.
        until_clear: True to stop as soon as the interval excludes 0.
        confidence: level of the two-sided interval.
        rule: "greedy", or "ucb" to keep the exploration bonus.
        seed: determines the questions.
        arm_names: a name per arm, e.g. ``pair.class_names``; by default the policy's.
        unit: unit of the rewards for the sentence, e.g. "euros".

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> policy = daband.LinUCB.for_pair(pair, seed=0)
    >>> run = daband.train(policy, source=pair.source, target=pair.target, episodes=4, episode_length=32)
    >>> def ask(contexts, arms):  # the reward of the arm for the context; here arm 0 is best
    ...     return (arms == 0) * 1.0
    >>> audit = daband.audit(policy, target=pair.target, budget=20, ask=ask, incumbent=0)
    >>> audit.answered, audit.advantage <= 0
    (20, True)
    """
    _check_arguments(policy, ask, directory, confidence, rule)
    check_int("budget", budget, minimum=1)
    target_contexts = check_target(target, policy)
    n_contexts = len(target_contexts)
    if budget > n_contexts:
        raise InvalidInput(
            f"budget must be at most {n_contexts}, the number of target contexts, got {budget}"
        )
    names = check_arm_names(arm_names, policy)
    incumbent = as_incumbent(
        incumbent, n_arms=policy.n_arms, arm_names=names, target=target_contexts
    )
    sample = TargetContexts.read(
        target_contexts, _MAX_CONTEXTS, seed=check_int("seed", seed, minimum=0)
    )
    arms, predicted_rewards = decide(policy, sample.contexts, "target", rule)
    if incumbent is None:
        incumbent = make_constant_incumbent(int(predicted_rewards.mean(axis=0).argmax()), names)
    settings = {"incumbent": incumbent.name, "confidence": confidence, "rule": rule, "unit": unit}
    settings |= as_survey_settings(policy.costs)
    incumbent_arms = incumbent.choose_target_arms(sample.contexts, sample.indices)
    all_arms = np.stack([arms, incumbent_arms])
    reward_deviation, reward_skewness = summarise_rewards(policy.reward_moments)
    questions = Questions(
        all_arms,
        predicted_rewards.astype(np.float64),
        reward_deviation=reward_deviation,
        reward_skewness=reward_skewness,
        seed=seed,
    )
    if not len(questions.disputed_contexts):
        unknown_value = (math.nan, -math.inf, math.inf)
        return Audit(
            0.0, 0.0, 0.0, *unknown_value, incumbent.name, confidence, 0, 0, len(arms), unit
        )
    row_names = target_contexts.row_names
    build_survey = partial(
        Survey,
        questions,
        sample.indices,
        budget=budget,
        settings=settings,
        arm_names=names,
        row_names=row_names,
    )
    if directory is None:
        assert ask is not None
        return _run_survey(build_survey(folder=None), ask, target_contexts, until_clear)
    with Folder(directory, content=_FOLDER_DESCRIPTION) as folder:
        return _run_survey(build_survey(folder=folder.path), ask, target_contexts, until_clear)


def _run_survey(survey: Survey, ask: Ask | None, target: Contexts, until_clear: bool) -> Audit:
    """Ask the questions without an answer if ``ask`` is given, and return the audit."""
    if ask is not None:
        survey.ask(
            ask, target, (lambda: _build_audit(survey).verdict != COLLECT) if until_clear else None
        )
    return _save_result(survey)


def answer_audit(directory: str | Path, answers: str | Path, *, replace: bool = False) -> Audit:
    """Add the answers of a CSV to an audit that ``audit`` started in ``directory``, and return the
    audit.

    Answers may be added in several calls. Estimates use them in the order of ids, up to the first
    id without an answer. If a row is invalid, an error is raised and nothing is added.

    Args:
        directory: the audit's folder.
        answers: a CSV with columns ``id`` and ``reward``, such as questions.csv with its empty
            column filled in.
        replace: True to overwrite earlier answers that differ; by default they are an error.
    """
    with Folder(_check_folder(directory), content=_FOLDER_DESCRIPTION) as folder:
        survey = Survey.read(folder.path)
        survey.add_csv(answers, replace=replace)
        return _save_result(survey)


def read_audit(directory: str | Path) -> Audit:
    """Return the audit in a folder, estimated from the answers so far."""
    return _build_audit(Survey.read(_check_folder(directory)))


def add_audit_rewards(assessment: Assessment, directory: str | Path) -> Assessment:
    """Return the assessment with the target rewards of the audit in a folder."""
    survey = Survey.read(_check_folder(directory))
    evidence = survey.compute_evidence()
    advantages = evidence.compute_intervals(1, confidence=VERDICT_CONFIDENCE, budget=survey.budget)
    values = evidence.compute_intervals(None, budget=survey.budget)
    return assessment.with_rewards(advantages[0], values[0], evidence.n_answered)


def _build_audit(survey: Survey) -> Audit:
    """Return the audit that follows from the answers so far."""
    settings = survey.settings
    evidence: Evidence = survey.compute_evidence()
    confidence = settings["confidence"]
    advantage = evidence.compute_intervals(1, confidence=confidence, budget=survey.budget)[0]
    value = evidence.compute_intervals(None, confidence=confidence, budget=survey.budget)[0]
    return Audit(
        advantage=advantage.value,
        low=advantage.low,
        high=advantage.high,
        value=value.value,
        value_low=value.low,
        value_high=value.high,
        incumbent=settings["incumbent"],
        confidence=confidence,
        budget=len(survey.planned_questions),
        answered=evidence.n_answered,
        contexts=len(survey.target_indices),
        unit=settings["unit"],
        questions=survey.questions_file,
    )


def _save_result(survey: Survey) -> Audit:
    """Return the audit, and write it to the folder if there is one."""
    result = _build_audit(survey)
    if survey.folder is not None and result.answered:
        write_json(survey.folder / _RESULT_FILE, result.as_dict())
    return result


def _check_folder(directory: str | Path) -> Path:
    """Return the folder. Raise an error if it does not exist."""
    if not Path(directory).is_dir():
        raise InvalidInput(
            f"there is no folder {directory}; start an audit with daband.audit(..., directory=...)"
        )
    return Path(directory)


def _check_arguments(policy: Any, ask: Any, directory: Any, confidence: Any, rule: Any) -> None:
    """Raise an error for invalid arguments of ``audit``."""
    if not isinstance(policy, Policy):
        raise InvalidInput(
            f"policy must be a daband policy, e.g. daband.LinUCB(...), got {type(policy).__name__}"
        )
    if ask is not None and not callable(ask):
        raise InvalidInput(
            f"ask must be a function of contexts and arms that returns rewards, got {ask!r}"
        )
    if ask is None and directory is None:
        raise InvalidInput("an audit needs answers: give ask=, or a directory= for questions.csv")
    check_probability("confidence", confidence)
    check_one_of("rule", rule, ("ucb", "greedy"))
