"""``audit``: measure with a few target rewards how much better than the incumbent a policy is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daband._arguments import between_0_and_1, check_int, one_of
from daband._arrays import ArrayLike
from daband._files import write_json
from daband.domains._contract import Contexts
from daband.errors import InvalidInput
from daband.policies._policy import Policy
from daband.training._work_folder import Folder
from daband.trust._answers import Ask, Survey
from daband.trust._assess import TargetContexts, checked_arm_names, checked_target
from daband.trust._assessment import COLLECT, DEPLOY, KEEP, short
from daband.trust._incumbent import as_incumbent, constant_arm, decide
from daband.trust._questions import Evidence, Interval, Questions

#: Target contexts that questions are drawn from, at most.
_MAX_CONTEXTS = 20_000
_RESULT = "audit.json"
_WHAT = "an audit, whose questions are fixed before the first reward,"


@dataclass(frozen=True)
class Audit:
    """The measured advantage of a policy over the incumbent, in the unit of the rewards.

    >>> policy = daband.LinUCB(context_shape=(1,), n_arms=2, seed=0)
    >>> audit = daband.audit(policy, target=[[0.0], [1.0]] * 10, budget=5, incumbent=1, directory="audit")
    >>> audit.finished, audit.questions.name
    (False, 'questions.csv')
    """

    #: Estimated advantage over the incumbent in the target.
    advantage: float
    #: Limits of the advantage.
    low: float
    high: float
    #: Estimated mean reward of the policy in the target.
    value: float
    #: Limits of the mean reward.
    value_low: float
    value_high: float
    #: Name of the incumbent, such as "always coupon".
    incumbent: str
    #: Level of the two-sided interval, which holds after any number of answers of the budget.
    confidence: float
    budget: int
    answered: int
    #: Number of target contexts that the questions were drawn from.
    contexts: int
    unit: str = ""
    #: The CSV of questions if the audit has a directory.
    questions: Path | None = None

    @property
    def finished(self) -> bool:
        """True if all questions are answered, or the advantage is clear."""
        return self.answered >= self.budget or (self.answered > 0 and self.verdict != COLLECT)

    @property
    def verdict(self) -> str:
        """The verdict by the interval only: "deploy", "collect rewards" or "keep the incumbent"."""
        return DEPLOY if self.low > 0.0 else KEEP if self.high < 0.0 else COLLECT

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        unit = f"{self.unit} " if self.unit else ""
        limits = f"[{short(self.low)}, {short(self.high)}]"
        rewards = "1 target reward" if self.answered == 1 else f"{self.answered:,} target rewards"
        text = f"{rewards}: {short(self.advantage, sign=True)} {limits} {unit}over {self.incumbent}: {self.verdict}."
        return text if self.answered else f"0 of {self.budget} questions are answered."

    @property
    def interval(self) -> Interval:
        """The advantage with its limits."""
        return Interval(self.advantage, self.low, self.high)

    @property
    def value_interval(self) -> Interval:
        """The mean reward with its limits."""
        return Interval(self.value, self.value_low, self.value_high)

    def __str__(self) -> str:
        return self.sentence

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as JSON can hold them; an infinite limit becomes None."""
        fields = asdict(self) | {"questions": None if self.questions is None else str(self.questions)}
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
    """Ask for at most ``budget`` target rewards, and estimate the policy's advantage over the incumbent.

    The policy does not change. The interval is for the mean over the contexts in ``target``. It holds after any number
    of answers; early intervals are wider.

    Args:
        policy: the policy.
        target: contexts, e.g. ``pair.target``, or an array (N, *C).
        budget: number of rewards that may be asked for.
        ask: called with one context (1, *C) and one arm (1,), returns the reward (1,). The arm is the policy's or the
            incumbent's. Without ``ask`` the questions are written to ``directory/questions.csv``, and
            ``answer_audit`` reads the answers.
        incumbent: today's decisions, as in ``daband.assess``. Default: the arm with the largest mean prediction.
        directory: keeps questions and answers. Each answer is on disk before the next question is asked. If an audit
            was killed, the same call asks only the open questions.
        until_clear: True to stop as soon as the interval excludes 0.
        confidence: level of the two-sided interval.
        rule: "greedy", or "ucb" to keep the exploration bonus.
        seed: fixes the questions.
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
    _check(policy, ask, directory, confidence, rule)
    check_int("budget", budget, minimum=1)
    contexts = checked_target(target, policy)
    if budget > len(contexts):
        raise InvalidInput(f"budget is {budget}, but the target has {len(contexts)} contexts; ask for at most these")
    names = checked_arm_names(arm_names, policy)
    today = as_incumbent(incumbent, n_arms=policy.n_arms, arm_names=names, target=contexts)
    shown = TargetContexts.read(contexts, _MAX_CONTEXTS, seed=check_int("seed", seed, minimum=0))
    arms, means = decide(policy, shown.contexts, "target", rule)
    today = constant_arm(int(means.mean(axis=0).argmax()), names) if today is None else today
    settings = {"incumbent": today.name, "confidence": confidence, "rule": rule, "unit": unit}
    questions = Questions(
        np.stack([arms, today.target_arms(shown.contexts, shown.indices)]),
        np.asarray(means, np.float64),
        scale=_reward_deviation(policy),
        seed=seed,
    )

    def survey(folder: Path | None) -> Survey:
        return Survey(
            questions,
            shown.indices,
            budget=budget,
            folder=folder,
            settings=settings,
            arm_names=names,
            row_names=contexts.row_names,
        )

    if directory is None:
        assert ask is not None
        return _asked(survey(None), ask, contexts, until_clear)
    with Folder(directory, what=_WHAT) as folder:
        return _asked(survey(folder.path), ask, contexts, until_clear)


def _asked(survey: Survey, ask: Ask | None, target: Contexts, until_clear: bool) -> Audit:
    if ask is not None:
        survey.ask(ask, target, (lambda: _result(survey).verdict != COLLECT) if until_clear else None)
    return _conclude(survey)


def answer_audit(directory: str | Path, answers: str | Path, *, replace: bool = False) -> Audit:
    """Add the answers of a CSV to an audit that ``audit`` started in ``directory``, and return the audit.

    A wrong row is an error, and then nothing is added. Rewards may be added in several steps, in the order of ids.

    Args:
        directory: the audit's folder.
        answers: a CSV with columns ``id`` and ``reward``, such as questions.csv with its empty column filled in.
        replace: True to let an answer replace an earlier one that differs.
    """
    with Folder(_existing(directory), what=_WHAT) as folder:
        survey = Survey.read(folder.path)
        survey.add_csv(answers, replace=replace)
        return _conclude(survey)


def read_audit(directory: str | Path) -> Audit:
    """Return the state of the audit in a folder."""
    return _result(Survey.read(_existing(directory)))


def _result(survey: Survey) -> Audit:
    settings = survey.settings
    evidence: Evidence = survey.evidence()
    confidence = settings["confidence"]
    advantage = evidence.intervals(1, confidence=confidence, budget=survey.budget)[0]
    value = evidence.intervals(None, confidence=confidence, budget=survey.budget)[0]
    return Audit(
        advantage=advantage.value,
        low=advantage.low,
        high=advantage.high,
        value=value.value,
        value_low=value.low,
        value_high=value.high,
        incumbent=settings["incumbent"],
        confidence=confidence,
        budget=len(survey.asked),
        answered=evidence.answered,
        contexts=len(survey.indices),
        unit=settings["unit"],
        questions=survey.questions_file,
    )


def _conclude(survey: Survey) -> Audit:
    result = _result(survey)
    if survey.folder is not None and result.answered:
        write_json(survey.folder / _RESULT, result.as_dict())
    return result


def _existing(directory: str | Path) -> Path:
    if not Path(directory).is_dir():
        raise InvalidInput(f"there is no folder {directory}; start an audit with daband.audit(..., directory=...)")
    return Path(directory)


def _reward_deviation(policy: Policy) -> float:
    """Return the standard deviation of the rewards that the policy learned; 1 if it is not known."""
    count, _, squares, *_ = policy.reward_moments.state()
    return math.sqrt(squares / count) if count > 0 and squares > 0 else 1.0


def _check(policy: Any, ask: Any, directory: Any, confidence: Any, rule: Any) -> None:
    if not isinstance(policy, Policy):
        raise InvalidInput(f"policy must be a daband policy, e.g. daband.LinUCB(...), got {type(policy).__name__}")
    if ask is not None and not callable(ask):
        raise InvalidInput(f"ask must be a function of contexts and arms that returns rewards, got {ask!r}")
    if ask is None and directory is None:
        raise InvalidInput("an audit needs answers: give ask=, or a directory= for questions.csv")
    between_0_and_1("confidence", confidence)
    one_of("rule", rule, ("ucb", "greedy"))
