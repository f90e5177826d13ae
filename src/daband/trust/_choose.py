"""``choose``: train candidates across assumptions, and hand one over: without target rewards, or decided by a few."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from daband._arguments import whole
from daband._arrays import AnyArray, FloatArray, IntArray, as_numpy
from daband._files import make_folder, write_text
from daband.domains._contract import LoggedDomain, Pair
from daband.errors import InvalidInput
from daband.evaluation._policy_scores import Scores, scores_of
from daband.policies._pair_defaults import default_transform, setting_defaults
from daband.policies._policy import Policy
from daband.policies._registered import policies
from daband.training._train_candidates import CandidateProgress, train_candidates
from daband.trust._assess import UnknownRewards, assess
from daband.trust._assessment import Assessment
from daband.trust._audit import Ask, questions_csv, read_answers
from daband.trust._candidate_selection import Proposals, Selection
from daband.trust._estimate import Estimate, estimate_target
from daband.trust._explanations import explanations_of

# What ``choose`` chooses from: a name, a method, and settings other than its defaults.


_PCA_SUFFIX = "-p"
_COMPONENTS = 64
_IMAGE_DIMENSIONS = 3


@dataclass(frozen=True)
class Candidate:
    """A policy to be trained: ``method`` as on the command line, ``settings`` as keyword arguments of its policy."""

    name: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    components: int = _COMPONENTS
    """Principal components in front of a method whose name ends in "-p"."""
    preferred: bool = False
    """Whether this one is chosen as long as no target reward says otherwise."""

    def __post_init__(self) -> None:
        policies.get(self.method.removesuffix(_PCA_SUFFIX))  # a misspelt name is an error at once

    def build(self, pair: Pair, *, seed: int, device: str = "auto") -> Policy:
        """The policy for a pair."""
        kind = policies.get(self.method.removesuffix(_PCA_SUFFIX))
        settings: dict[str, Any] = {"device": device, **self.settings}
        if self.method.endswith(_PCA_SUFFIX):
            settings["transform"] = default_transform(
                kind, pair, components=self.components, shift=self.settings.get("shift")
            )
        return kind.for_pair(pair, seed=seed, **settings)

    @property
    def uses_contexts(self) -> bool:
        """Whether choices depend on contexts."""
        return self.method not in ("constant", "random")


def default_candidates(pair: Pair, *, recipe: str = "default") -> Sequence[Candidate]:
    """The candidates unless the caller has others, the simplest first: methods times what the new domain may mean.

    A constant arm; LinUCB, gradient-boosted trees and DABand as the pair's ``shift`` says. Where the user did not state
    it, DABand also with each domain's own statistics and with alignment, and LinUCB with own statistics: only rewards
    of the target tell which of them is right.
    """
    image = len(pair.context_shape) == _IMAGE_DIMENSIONS
    candidates = [Candidate("constant", "constant")]
    if image:
        candidates += [
            Candidate("linucb-p", "linucb-p"),
            Candidate("nlinucb", "nlinucb", {"recipe": recipe}),
            Candidate("daband", "daband", {"recipe": recipe}, preferred=True),
        ]
        return candidates
    candidates.append(Candidate("linucb", "linucb"))
    if "trees" in policies.names():
        candidates.append(Candidate("trees", "trees"))
    candidates.append(Candidate("daband", "daband", {"recipe": recipe}, preferred=True))
    if not pair.shift.stated and "shift" in setting_defaults(policies.get("daband")):
        candidates += [
            Candidate("linucb, other units", "linucb", {"shift": "units"}),
            Candidate("daband, other units", "daband", {"recipe": recipe, "shift": "units"}),
            Candidate("daband, other style", "daband", {"recipe": recipe, "shift": "style"}),
        ]
    return candidates


_CONTEXTS = 2000
_ROUNDS, _MOST_PASSES, _MOST_EPISODES = 4000, 5, 125
_FEWEST_CONTEXTS = 2
_AT_A_TIME = 25
"""So many questions are written to a file before their answers are looked at: the next ones depend on them."""
QUESTIONS = "questions.csv"
_GREEDY = (
    "This is of its greedy choices: no held-out source round has an arm that its exploration bonus would choose, so "
    "nothing is known of those. Export it with epsilon=0.1, which drops the bonus."
)
_ANSWERS = "answers.csv"
Progress = Callable[[CandidateProgress], None]


@dataclass(frozen=True)
class Choice:
    """The policy that was chosen, what is known of it in the target, and all candidates.

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> candidates = [daband.trust.Candidate("linucb", "linucb")]
    >>> choice = daband.choose(pair, candidates=candidates, episodes=4, episode_length=32)
    >>> choice.candidate, choice.assessment.verdict in ("hand over", "ask", "do not")
    ('linucb', True)
    """

    policy: Policy
    """The chosen policy, trained, deployed in the target."""
    assessment: Assessment
    """What ``daband.assess`` says of it without target rewards, all candidates being explanations of the target."""
    table: list[dict[str, Any]]
    """A record per candidate, the simplest first: ``candidate``, ``method``, ``settings``, ``source_value`` (the mean
    reward on held-out source rounds), ``estimated_value`` in the target without rewards, ``value`` with them (None
    without), all in the user's units, ``target_shares`` (how often it chooses each arm) and ``chosen``. They are of
    greedy choices; ``assessment`` is of the policy as it is deployed, with its exploration bonus unless it explores
    greedily, or no held-out round of a log has an arm that it would explore."""
    candidate: str
    """The name of the chosen candidate."""
    rule: str
    """How it was chosen, in a sentence."""
    rewards: int = 0
    """How many target rewards were spent."""
    value: float | None = None
    """With target rewards: the chosen policy's value in the target before it learned from them, and limits that hold
    for all candidates at once, so also for the one that was chosen; in the user's units."""
    low: float | None = None
    high: float | None = None
    questions: Path | None = None
    """The CSV of questions to fill in, where the budget allows for more, they matter, and there is nobody to ask."""

    def as_dict(self) -> dict[str, Any]:
        """Everything but the policy and its assessment, as JSON can hold it."""
        return {
            "candidate": self.candidate, "rule": self.rule, "table": self.table, "rewards": self.rewards,
            "value": self.value, "low": self.low, "high": self.high,
            "questions": None if self.questions is None else str(self.questions),
        }  # fmt: skip

    def __repr__(self) -> str:
        spent = f", with {self.rewards} target rewards" if self.rewards else ""
        return f"<Choice of {self.candidate!r} among {len(self.table)}{spent}: {self.assessment.verdict}>"


def choose(
    pair: Pair,
    *,
    ask: Ask | None = None,
    budget: int = 0,
    directory: str | Path | None = None,
    explore: str | None = None,
    epsilon: float | None = None,
    seed: int = 0,
    episodes: int | None = None,
    episode_length: int = 64,
    candidates: Sequence[Candidate] | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> Choice:
    """Train candidates on source rewards and unlabelled target contexts, and choose one.

    **Without target rewards** nothing can tell which candidate is right, so the choice is the ``preferred`` one: DABand
    with the pair's ``shift``. Whether it is worth more than a constant arm is what ``assessment`` says. **With 20 or
    more** (``budget``) these decide: contexts are asked for where the best candidates disagree, candidates that lost
    are left out, and the asking stops when the answer is known. The chosen policy then learns from the same rewards.

    Args:
        pair: what to learn; it needs ``source_test``, source rounds that training does not use.
        ask: called with one target context (1, *C) and one arm (1,), returns the reward (1,). It need not be asked for
            the policy's own arm alone. Without it questions are written to ``directory/questions.csv``, 25 at a
            time; called again with that file filled in, rewards are read from it, and the next questions added.
        budget: how many target rewards may be spent; 0 chooses without any.
        directory: keep the runs, the questions and their answers there; called again, what is finished is not trained
            anew, and what was answered not asked again.
        explore: the exploration of all candidates that explore: "ucb", "greedy" or "thompson".
        epsilon: with which probability they draw an arm evenly.
        seed: that of the policies, and of the questions.
        episodes: episodes of each training; by default some 4,000 rounds for vectors (``training_budget``), and for
            images as ``train`` has it.
        episode_length: rounds of an episode.
        candidates: what to choose from, the simplest first; by default ``daband.trust.default_candidates(pair)``.
        device: "auto" (a GPU where there is one), "cpu", "cuda", ...
        progress: called after every episode with a ``daband.training.CandidateProgress``: which candidate, how much
            is done, and the seconds left.

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> candidates = [daband.trust.Candidate("constant", "constant"), daband.trust.Candidate("linucb", "linucb")]
    >>> def ask(contexts, arms):  # what the arm pays for the context; here everything pays
    ...     return [1.0] * len(arms)
    >>> choice = daband.choose(pair, ask=ask, budget=10, candidates=candidates, episodes=4, episode_length=32)
    >>> [row["candidate"] for row in choice.table], choice.rewards <= 10
    (['constant', 'linucb'], True)
    """
    options = _checked(pair, ask, budget, directory, candidates, seed, episode_length)
    options = [_with_exploration(option, explore, epsilon) for option in options]
    shown, episodes, episode_length = training_budget(pair, episodes, episode_length)
    members = train_candidates(
        shown,
        options,
        seeds=[seed],
        episodes=episodes,
        episode_length=episode_length,
        device=device,
        directory=None if directory is None else Path(directory) / "candidates",
        progress=progress,
    )
    trained = [policies[0] for policies in members]
    assert pair.source_test is not None
    scores, source_contexts, target_contexts = scores_of(
        trained, source=pair.source_test, target=pair.target, contexts=_CONTEXTS, seed=seed, rule="greedy"
    )
    reward_range = trained[0].reward_moments.observed
    explanations = explanations_of(
        trained,
        source_contexts,
        target_contexts,
        shift=pair.shift,
        rule="greedy",
        reward_range=reward_range,
        origin=scores.origin,
    )
    estimates = [estimate_target(scores, explanations, member=index) for index in range(len(trained))]
    place, rule = _without_rewards(options, estimates)
    selection, questions = None, None
    answers: dict[tuple[int, int], float] = {}
    if budget:
        folder = None if directory is None else make_folder(directory)
        selection = _selection(scores, pair, seed)
        positions = pair.target.order(0, len(target_contexts), seed=seed)
        answers, questions = _ask(selection, positions, pair, reward_range, ask, budget, folder)
        if selection.asked:
            few = selection.choice(place) != selection.leader
            place = selection.choice(place)
            rule = f"{selection.asked} target rewards are too few: {rule}" if few else _rule_of(selection, options)
    policy = trained[place]
    others = [index for index, option in enumerate(options) if index != place and option.uses_contexts]
    assessed = _different(trained, [place, *others], target_contexts)
    assess_by = partial(
        assess,
        [trained[index] for index in assessed],
        source=pair.source_test,
        target=pair.target,
        shift=pair.shift,
        arm_names=pair.class_names,
        policy_names=[options[index].name for index in assessed],
    )
    try:
        assessment = assess_by(rule="greedy" if getattr(policy, "explore", "ucb") == "greedy" else "ucb")
    except UnknownRewards:  # of a few logged rounds none has an arm that it would explore
        assessment = assess_by(rule="greedy")
        assessment = replace(assessment, reasons=[*assessment.reasons, _GREEDY])
    value = low = high = None
    if selection is not None and selection.asked:
        limits = selection.interval(place)
        value, low, high = (
            reward_range[0] + (reward_range[1] - reward_range[0]) * share
            for share in (limits.value, limits.low, limits.high)
        )
    _learn(policy, target_contexts, answers)
    policy.deploy("target")
    return Choice(
        policy=policy,
        assessment=assessment,
        table=_table(options, scores, estimates, selection, place, reward_range),
        candidate=options[place].name,
        rule=rule,
        rewards=len(answers),
        value=value,
        low=low,
        high=high,
        questions=questions,
    )


def training_budget(pair: Pair, episodes: int | None, episode_length: int) -> tuple[Pair, int | None, int]:
    """The pair with its passes over the source, episodes and their length for every candidate.

    Vectors: some 4,000 rounds, a smaller source being shown up to five times and a larger one, or a log, once, in
    longer episodes: as many gradient steps are enough. Images take longer to learn: as ``train`` has it.
    """
    if episodes is not None:
        return pair, whole("episodes", episodes, least=1), episode_length
    if len(pair.context_shape) > 1:
        return pair, None, episode_length
    source = copy.copy(pair.source)
    if not isinstance(source, LoggedDomain):
        source.passes = max(source.passes, min(_MOST_PASSES, math.ceil(_ROUNDS / len(source))))
    rounds = max(len(source), min(source.rounds_available, _ROUNDS))
    length = min(max(episode_length, math.ceil(rounds / _MOST_EPISODES)), rounds)
    return replace(pair, source=source), max(1, rounds // length), length


def _checked(
    pair: Any, ask: Any, budget: Any, directory: Any, candidates: Any, seed: Any, episode_length: Any
) -> list[Candidate]:
    if not isinstance(pair, Pair):
        raise InvalidInput(f"pair must be a daband.domains.Pair, got {type(pair).__name__}")
    if pair.source_test is None:
        raise InvalidInput(
            f"the pair {pair.name!r} has no source_test: candidates are judged on source rounds that training does not "
            "use; build the pair with source_test=.1, say"
        )
    if len(pair.domains.targets) > 1:
        first, *_ = pair.domains.targets
        raise InvalidInput(
            f"a choice is for one target, and the pair has {', '.join(pair.domains.targets)}: choose for each, with "
            f'daband.domains.restrict_pair(pair, targets=["{first}"]), or --target {first}'
        )
    for name, domain in (("target", pair.target), ("source_test", pair.source_test)):
        if len(domain) < _FEWEST_CONTEXTS:  # said before minutes of training, not after
            raise InvalidInput(f"{name} has {len(domain)} context(s); a choice needs {_FEWEST_CONTEXTS} or more")
    whole("seed", seed, least=0)
    whole("episode_length", episode_length, least=1)
    whole("budget", budget, least=0)
    if ask is not None and not callable(ask):
        raise InvalidInput(f"ask must be a function of contexts and arms that returns rewards, got {ask!r}")
    if ask is not None and not budget:
        raise InvalidInput("ask without a budget: say how many target rewards may be spent, budget=100 say")
    if budget and ask is None and directory is None:
        raise InvalidInput("a budget needs somebody to answer: ask=, or a directory= for questions.csv")
    options = list(default_candidates(pair) if candidates is None else candidates)
    if not options or not all(isinstance(one, Candidate) for one in options):
        raise InvalidInput("candidates must be daband.trust.Candidate objects, at least one")
    return options


def _with_exploration(candidate: Candidate, explore: str | None, epsilon: float | None) -> Candidate:
    """The candidate with this exploration, where its policy explores."""
    settable = setting_defaults(policies.get(candidate.method.removesuffix("-p")))
    given = {"explore": explore, "epsilon": epsilon}
    settings = {name: value for name, value in given.items() if value is not None and name in settable}
    return replace(candidate, settings={**settings, **candidate.settings}) if settings else candidate


def _without_rewards(options: Sequence[Candidate], estimates: Sequence[Estimate]) -> tuple[int, str]:
    """The candidate to take as long as nothing is known of the target's rewards, and why."""
    uses = [index for index, option in enumerate(options) if option.uses_contexts]
    for index in uses:
        if options[index].preferred:
            return (
                index,
                f"without target rewards nothing tells the candidates apart: the default, {options[index].name}",
            )
    best = max(uses or range(len(options)), key=lambda index: estimates[index].value)
    return best, "the largest estimated value without target rewards"


def _selection(scores: Scores, pair: Pair, seed: int) -> Selection:
    return Selection(Proposals(scores.target_arm, scores.target_mean), one_hot=pair.feedback == "one_hot", seed=seed)


def _ask(
    selection: Selection,
    positions: IntArray,
    pair: Pair,
    reward_range: tuple[float, float],
    ask: Ask | None,
    budget: int,
    folder: Path | None,
) -> tuple[dict[tuple[int, int], float], Path | None]:
    """Spend the budget: rewards by context and arm, in the user's units, and the file that still lacks answers."""
    low, high = reward_range
    path = None if folder is None else folder / (QUESTIONS if ask is None else _ANSWERS)
    answers: dict[tuple[int, int], float] = {}
    while len(answers) < budget and not selection.finished:
        questions = selection.draw(1 if ask is not None else min(_AT_A_TIME, budget - len(answers)))
        if not questions:
            break
        rewards = dict(answers) if path is None else _filled_in(path, questions, positions, pair, answers)
        for question in questions:
            if question not in rewards and ask is not None:
                context, arm = question
                paid = as_numpy(ask(pair.target.as_given(positions[[context]]), np.array([arm])), "what ask returned")
                if paid.size != 1:
                    raise InvalidInput(f"ask must return one reward for one context, got shape {paid.shape}")
                rewards[question] = float(paid.reshape(()))
            if question not in rewards:
                return answers, path
            reward = answers[question] = rewards[question]
            _check_reward(reward)
            selection.answer(float(np.clip((reward - low) / (high - low if high > low else 1.0), 0.0, 1.0)))
    if path is not None and answers:
        _filled_in(path, (), positions, pair, answers)
    return answers, None


def _check_reward(reward: float) -> None:
    if not np.isfinite(reward):
        raise InvalidInput(f"a target reward is {reward}, which is not a finite number")


def _filled_in(
    path: Path,
    asked: Sequence[tuple[int, int]],
    positions: IntArray,
    pair: Pair,
    answers: Mapping[tuple[int, int], float],
) -> dict[tuple[int, int], float]:
    """Rewards from the file of questions, which gets questions and answers that it lacks; what was filled in stays."""
    questions = list(dict.fromkeys([*answers, *asked]))
    arms = dict(enumerate(arm for _, arm in questions))
    contexts = [int(positions[context]) for context, _ in questions]
    rewards: dict[int, float] = {}
    n_written = 0
    if path.exists():
        rewards = read_answers(path, arms, contexts=contexts)
        n_written = path.read_text(encoding="utf-8-sig").strip().count("\n")
    rewarded = {i: answers[question] for i, question in enumerate(questions) if question in answers}
    if n_written < len(questions) or rewarded.keys() - rewards.keys():
        rewards = rewarded | rewards
        rows = {column: [names[place] for place in contexts] for column, names in pair.target.row_names.items()}
        text = questions_csv(
            list(arms), list(arms.values()), names=pair.class_names, rows=rows, contexts=contexts, rewards=rewards
        )
        write_text(path, text)
    return {questions[i]: reward for i, reward in rewards.items()}


def _rule_of(selection: Selection, options: Sequence[Candidate]) -> str:
    left_out = int((~selection.remaining).sum())
    text = f"the largest value by target rewards; {left_out} of {len(options)} candidates were proven worse"
    return text + (", and no other is likely to be better by more than .01 of the range" if selection.finished else "")


def _different(trained: Sequence[Policy], places: Sequence[int], contexts: AnyArray) -> list[int]:
    """The places of policies that do not predict the same as one before."""
    means: dict[int, FloatArray] = {}
    for place in places:
        mean = trained[place].decide(contexts[:256], "target", rule="greedy", round_offset=0).mean
        if not any(np.array_equal(mean, other) for other in means.values()):
            means[place] = mean
    return list(means)


def _learn(policy: Policy, contexts: AnyArray, answers: Mapping[tuple[int, int], float]) -> None:
    """Let the chosen policy learn from the rewards that chose it."""
    if not answers:
        return
    rows = np.array([context for context, _ in answers])
    policy.update(
        contexts[rows],
        np.array([arm for _, arm in answers]),
        np.array(list(answers.values())),
        domain="target",
        ids=[f"choose-{context}-{arm}" for context, arm in answers],
    )
    if policy.learns_by_gradients:
        policy.adapt()


def _table(
    options: Sequence[Candidate],
    scores: Scores,
    estimates: Sequence[Estimate],
    selection: Selection | None,
    place: int,
    reward_range: tuple[float, float],
) -> list[dict[str, Any]]:
    low, high = reward_range
    values: FloatArray | None = selection.values() if selection is not None and selection.asked else None

    def in_units(value: float) -> float:
        return low + (high - low) * float(value)

    return [
        {
            "candidate": candidate.name,
            "method": candidate.method,
            "settings": dict(candidate.settings),
            "source_value": in_units(scores.source_value()[i]),
            "estimated_value": in_units(estimates[i].value),
            "value": None if values is None else in_units(values[i]),
            "target_shares": (
                np.bincount(scores.target_arm[i], minlength=scores.n_arms) / scores.target_arm.shape[1]
            ).tolist(),
            "chosen": i == place,
        }
        for i, candidate in enumerate(options)
    ]
