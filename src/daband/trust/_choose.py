"""``choose``: train candidates and return the one to deploy, chosen without target rewards or with
a few.

``default_candidates`` (``policies/_default_members.py``) lists the candidates of a pair. ``choose``
trains them (``training/_candidates.py``), ``_Comparison`` compares their choices, and ``Choice`` is
the result. ``Assessment.with_verdict`` decides the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daband.base._arguments import check_int
from daband.base._arrays import AnyArray
from daband.base._files import make_folder, read_json, write_json
from daband.domains._contract import Pair
from daband.domains._data_options import DataOptions
from daband.errors import DataError, InvalidInput
from daband.linear._reward_moments import RewardMoments
from daband.logs._advantages import LogEvidence
from daband.policies._checkpoints import load_policy
from daband.policies._default_members import (
    UNEQUAL_FREQUENCIES_NAME,
    Candidate,
    default_candidates,
)
from daband.policies._log_policy import LogPolicy
from daband.policies._policy import Policy
from daband.policies._supervised import Supervised
from daband.training._candidates import (
    CandidateProgress,
    choose_training_budget,
    train_candidates,
)
from daband.trust._answers import Ask, Survey, as_survey_settings
from daband.trust._assess import (
    Choices,
    SourceRounds,
    TargetContexts,
    build_assessment,
    compute_arm_fractions,
    estimate_advantage,
    estimate_new_arm_gain,
    get_assessed_source,
    read_source_rounds,
)
from daband.trust._assessment import (
    VERDICT_CONFIDENCE,
    Assessment,
    read_assessment,
)
from daband.trust._incumbent import Incumbent, as_incumbent, decide, make_constant_incumbent
from daband.trust._questions import Evidence, Questions, summarise_rewards

#: Maximum number of contexts of each domain on which candidates are compared.
_MAX_CONTEXTS = 2000
#: Smallest number of target contexts, and of held-out source rounds.
_MIN_CONTEXTS = 2
#: Folder of the candidates' runs.
_RUNS_FOLDER = "candidates"
#: The fields of an assessment that are in the table of candidates.
_SOURCE_FIELDS = ("source_advantage", "source_error", "source_value")
#: File of the chosen policy in the folder of a choice.
POLICY_FILE = "policy.safetensors"
#: File of its assessment.
ASSESSMENT_FILE = "assessment.json"
#: File of the options of the data.
DATA_FILE = "data.json"
#: File of the other fields, which is written last.
CHOICE_FILE = "choice.json"
#: Called after every episode of the training.
Progress = Callable[[CandidateProgress], None]


@dataclass(frozen=True)
class Choice:
    """The chosen policy, its assessment in the target, and all candidates.

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> candidates = [daband.trust.Candidate("linucb", "linucb")]
    >>> choice = daband.choose(pair, candidates=candidates, episodes=4, episode_length=32)
    >>> choice.candidate, choice.assessment.rewards
    ('linucb', 0)
    """

    #: The chosen policy, trained and deployed in the target. It has learned the target rewards,
    #: unless it always chooses one arm, and not the held-out source rounds, by which it is assessed.
    policy: Policy
    #: The policy's advantage over the incumbent, estimated from the source and all target rewards.
    assessment: Assessment
    #: A record per candidate, the simplest first, for greedy choices: ``candidate``, ``method``,
    #: ``settings`` and ``components``; on held-out source rounds the ``source_advantage`` over the
    #: incumbent, its standard error ``source_error`` and the ``source_value``; from target rewards
    #: ``advantage`` and its one-sided 90% limits ``low`` and ``high``. Without target rewards, these
    #: are None, except that ``advantage`` and ``low`` of a log's policy are those of its verdict;
    #: ``target_fractions`` (how often each arm is chosen); and ``chosen``.
    table: list[dict[str, Any]]
    #: Name of the chosen candidate.
    candidate: str
    #: The reason for the choice, in a sentence.
    rule: str
    #: Number of target rewards that were used.
    rewards: int = 0
    #: The CSV of questions to fill in if the budget allows more questions and there is no ``ask``.
    questions: Path | None = None
    #: The files and columns that the pair was read from; None if it was not read from files.
    options: DataOptions | None = None

    def save(self, folder: str | Path) -> None:
        """Write the choice to a folder, which ``daband assess``, ``audit``, ``export``, ``learn``
        and ``report`` take.

        The folder gets ``policy.safetensors``, ``assessment.json``, ``choice.json`` and, if the
        pair was read from files, ``data.json``. An earlier choice in the folder is replaced.
        """
        folder = make_folder(folder, "folder")
        (folder / CHOICE_FILE).unlink(missing_ok=True)  # so that no choice is half an earlier one
        if self.options is not None:
            self.options.save(folder / DATA_FILE)
        self.policy.save(folder / POLICY_FILE)
        self.assessment.save(folder / ASSESSMENT_FILE)
        write_json(folder / CHOICE_FILE, self.as_dict())

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "cpu") -> Choice:
        """Return the choice that ``save`` wrote to a folder. ``device`` is the policy's device."""
        folder = Path(folder)
        if not (folder / CHOICE_FILE).is_file():
            raise InvalidInput(
                f"{folder} is not the folder of a choice; `daband choose --source ... --target ..."
                f" --out {folder}` makes one"
            )
        fields = read_json(folder / CHOICE_FILE)
        has_data = (folder / DATA_FILE).is_file()
        try:
            return cls(
                policy=load_policy(folder / POLICY_FILE, device=device),
                assessment=read_assessment(folder / ASSESSMENT_FILE),
                options=DataOptions.load(folder / DATA_FILE) if has_data else None,
                **{**fields, "questions": fields["questions"] and Path(fields["questions"])},
            )
        except (KeyError, TypeError):
            raise DataError(
                f"{folder / CHOICE_FILE} does not have the fields of a choice; choose again"
            ) from None

    def as_dict(self) -> dict[str, Any]:
        """Return all fields except the policy, its assessment and the options of the data, as a
        dictionary that JSON can hold.
        """
        return {
            "candidate": self.candidate,
            "rule": self.rule,
            "table": self.table,
            "rewards": self.rewards,
            "questions": None if self.questions is None else str(self.questions),
        }

    def __repr__(self) -> str:
        return f"<Choice of {self.candidate!r} among {len(self.table)}: {self.assessment.sentence}>"


def choose(
    pair: Pair,
    *,
    incumbent: Any = None,
    ask: Ask | None = None,
    budget: int = 0,
    until_clear: bool = False,
    directory: str | Path | None = None,
    seed: int = 0,
    episodes: int | None = None,
    episode_length: int = 64,
    candidates: Sequence[Candidate] | None = None,
    quick: bool = False,
    device: str = "auto",
    unit: str = "",
    progress: Progress | None = None,
) -> Choice:
    """Train candidates on source rewards and unlabelled target contexts, and choose one.

    **Without target rewards** the data cannot show which candidate's assumption holds, so the
    ``preferred`` candidate is chosen. ``assessment`` estimates its advantage over the incumbent.
    For a log the preferred candidate is ``LogPolicy``. It chooses by context if this has
    significantly higher rewards in the log, and otherwise always the best arm; ``choice.rule``
    reports the gain in the unit of the rewards.

    There is one exception, for labelled images: DABand with estimated arm frequencies is chosen if
    its target predictions are more certain, by their mean entropy.

    **With target rewards** (``budget``) every reward is used to evaluate all candidates and the
    incumbent. The candidate with the largest expected advantage is chosen. It learns from the same
    rewards, unless it always chooses one arm.

    Args:
        pair: the domains. Unless its source is a log, it needs ``source_test``, source rounds that
            training does not use.
        incumbent: today's decisions, as in ``daband.assess``. Default: the source's best arm.
        ask: called with one target context (1, *C) and one arm (1,), returns the reward (1,). The
            arm may differ from the chosen policy's. Without ``ask`` the questions are written to
            ``directory/questions.csv``. If that file is filled in, the same call reads the rewards
            from it.
        budget: number of target rewards that may be used; 0 chooses without any.
        until_clear: True to stop asking as soon as the 95% interval of the chosen policy's
            advantage over the incumbent excludes 0.
        directory: folder of runs, questions and answers. A repeated call reads them instead of
            training or asking again.
        seed: seed of the policies and of the questions.
        episodes: episodes of each training; by default about 4,000 rounds for vectors, and as in
            ``train`` for images.
        episode_length: rounds of an episode.
        candidates: candidates to choose from, the simplest first; by default
            ``daband.trust.default_candidates(pair)``.
        quick: True for fewer candidates and a smaller network (``default_candidates``): a first
            result in minutes.
        device: "auto" (a GPU if there is one), "cpu", "cuda", ...
        unit: unit of the rewards for the sentences, e.g. "euros".
        progress: called after every episode with a ``daband.training.CandidateProgress``. The
            quickest candidate is trained first.

    Raises:
        InvalidInput: an argument or the pair cannot be used, an answer is not one, or ``directory``
            has runs or questions of other settings.
        DataError: a file of the pair or of ``directory`` is missing or damaged.
        CheckpointError: a saved run in ``directory`` cannot be read.
        FolderInUse: another process uses ``directory``.
        NotFitted: ``incumbent`` is a policy that is not fitted.
        TrainingDiverged: a loss or a parameter of a network is not finite.
        DeviceOutOfMemory: a gradient step needs more memory than ``device`` has.

    Errors of ``ask`` and ``progress`` are not caught. With ``directory``, all finished runs and all
    answers so far are kept.

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> candidates = [daband.trust.Candidate("constant", "constant"), daband.trust.Candidate("linucb", "linucb")]
    >>> def ask(contexts, arms):  # the reward of the arm for the context; here always 1
    ...     return [1.0] * len(arms)
    >>> choice = daband.choose(pair, ask=ask, budget=10, candidates=candidates, episodes=4, episode_length=32)
    >>> [row["candidate"] for row in choice.table], choice.rewards
    (['constant', 'linucb'], 10)
    """
    if quick and candidates is not None:
        raise InvalidInput(
            "quick=True selects default candidates, so it cannot be combined with candidates="
        )
    if quick and isinstance(pair, Pair):
        candidates = default_candidates(pair, quick=True)
    candidates = _check_arguments(pair, ask, budget, directory, candidates, seed, episode_length)
    incumbent = as_incumbent(
        incumbent, n_arms=pair.n_arms, arm_names=pair.class_names, target=pair.target
    )
    episodes, episode_length = choose_training_budget(pair, episodes, episode_length)
    folder = None if directory is None else Path(directory)
    trained_policies = train_candidates(
        pair,
        candidates,
        seed=seed,
        episodes=episodes,
        episode_length=episode_length,
        device=device,
        directory=None if folder is None else folder / _RUNS_FOLDER,
        progress=progress,
    )
    comparison = _Comparison.compare(pair, trained_policies, candidates, incumbent, seed)
    survey = comparison.build_survey(budget, folder, seed) if budget else None
    chosen_index = comparison.preferred_index
    if survey is not None:
        if survey.questions_file is not None:
            survey.add_csv(survey.questions_file)
        if ask is not None:
            survey.ask(
                ask, pair.target, (lambda: comparison.is_clear(survey)) if until_clear else None
            )
    evidence = None if survey is None else survey.compute_evidence()
    reason = "the default" if candidates[chosen_index].preferred else "the best in the source"
    rule = f"without target rewards, {reason}"
    if evidence is not None and evidence.n_answered:
        chosen_index = comparison.find_best_index(evidence)
        rule = f"the largest expected advantage by {evidence.n_answered} target rewards"
    policy = comparison.policies[chosen_index]
    if not (evidence and evidence.n_answered):
        rule = (
            _describe_rule(policy, comparison.new_arm_evidence, pair, unit)
            or comparison.frequency_reason
            or rule
        )
    assessment = comparison.assess(chosen_index, unit)
    if survey is not None and evidence is not None and evidence.n_answered:
        advantage = evidence.compute_intervals(
            len(candidates), confidence=VERDICT_CONFIDENCE, budget=budget
        )[chosen_index]
        value = evidence.compute_intervals(None, budget=budget)[chosen_index]
        assessment = assessment.with_rewards(advantage, value, evidence.n_answered)
        # Learning could change the one arm of a constant to an arm that was not assessed.
        if not _is_constant(candidates[chosen_index]):
            _learn_answers(policy, comparison.sample.contexts, survey.net_answers)
    policy.deploy("target")
    if candidates[chosen_index].name == "constant":
        arms = policy.decide(comparison.sample.contexts[:1], rule="greedy").arm
        rule = f"{make_constant_incumbent(int(arms[0]), pair.class_names).name}; {rule}"
    has_unanswered = survey is not None and ask is None and bool(survey.unanswered_questions)
    return Choice(
        policy=policy,
        assessment=assessment,
        table=comparison.build_table(candidates, evidence, chosen_index, budget),
        candidate=candidates[chosen_index].name,
        rule=rule,
        rewards=0 if evidence is None else evidence.n_answered,
        questions=survey.questions_file if survey is not None and has_unanswered else None,
        options=pair.options,
    )


@dataclass(frozen=True)
class _Comparison:
    """Trained candidates with their choices in both domains, and the incumbent that they are
    compared with.
    """

    pair: Pair
    #: The trained policy of each candidate.
    policies: Sequence[Policy]
    #: The source rounds on which each policy is assessed.
    rounds: Sequence[SourceRounds]
    #: A sample of target contexts.
    sample: TargetContexts
    #: The choices of each policy on ``rounds`` and ``sample``.
    policy_choices: Sequence[Choices]
    incumbent: Incumbent
    #: Index of the candidate to choose without target rewards.
    preferred_index: int
    #: Estimated gain of using arm features to choose among arms without rewards; None without such
    #: arms or an estimate.
    new_arm_evidence: LogEvidence | None = None
    #: The reason to choose the candidate with estimated arm frequencies; "" if there is none.
    frequency_reason: str = ""

    @classmethod
    def compare(
        cls,
        pair: Pair,
        trained_policies: list[Policy],
        candidates: list[Candidate],
        incumbent: Incumbent | None,
        seed: int,
    ) -> _Comparison:
        """Return the comparison of trained policies, one per candidate."""
        ensembles = [policy for policy in trained_policies if isinstance(policy, Supervised)]
        for policy in ensembles:
            policy.fit(like=ensembles[0])
        rounds = [_read_rounds(pair, policy, seed) for policy in trained_policies]
        sample = TargetContexts.read(pair.target, _MAX_CONTEXTS, seed=seed)
        policy_choices = [
            Choices(*source.decide(policy), *decide(policy, sample.contexts, "target"))
            for policy, source in zip(trained_policies, rounds, strict=True)
        ]
        # the best arm by the trained constant candidate, or else on held-out rounds
        if incumbent is None:
            constant_index = next(
                (index for index, candidate in enumerate(candidates) if _is_constant(candidate)),
                None,
            )
            mean_rewards = (
                None
                if constant_index is None
                else policy_choices[constant_index].target_predictions[0]
            )
            incumbent = make_constant_incumbent(
                rounds[0].find_best_arm(pair.catalogue, mean_rewards), pair.class_names
            )
        source_values = _compute_source_values(rounds, policy_choices)
        indices = range(len(candidates))
        preferred_index = next((index for index in indices if candidates[index].preferred), None)
        if preferred_index is None:
            contextual_indices = [index for index in indices if candidates[index].uses_contexts]
            preferred_index = max(contextual_indices or indices, key=source_values.__getitem__)
        preferred_index, new_arm_evidence = _find_preferred_index(
            pair, trained_policies, preferred_index, seed
        )
        names = [candidate.name for candidate in candidates]
        frequency_reason = ""
        if UNEQUAL_FREQUENCIES_NAME in names and candidates[preferred_index].preferred:
            other_index = names.index(UNEQUAL_FREQUENCIES_NAME)
            frequency_reason = _compare_entropies(
                policy_choices[preferred_index], policy_choices[other_index]
            )
            preferred_index = other_index if frequency_reason else preferred_index
        return cls(
            pair,
            trained_policies,
            rounds,
            sample,
            policy_choices,
            incumbent,
            preferred_index,
            new_arm_evidence,
            frequency_reason,
        )

    def build_survey(self, budget: int, folder: Path | None, seed: int) -> Survey | None:
        """Return the survey that compares the candidates and the incumbent; None if all make the
        same choices.
        """
        incumbent_arms = self.incumbent.choose_target_arms(
            self.sample.contexts, self.sample.indices
        )
        moments = RewardMoments(standardise=True)
        for choices, rounds in zip(self.policy_choices, self.rounds, strict=True):
            moments.add(
                rounds.get_rewards(choices.source_arms)
                if rounds.logged is None
                else rounds.logged.rewards
            )
        reward_deviation, reward_skewness = summarise_rewards(moments)
        questions = Questions(
            np.stack([*(choices.target_arms for choices in self.policy_choices), incumbent_arms]),
            np.mean(
                [choices.target_predictions for choices in self.policy_choices],
                axis=0,
                dtype=np.float64,
            ),
            reward_deviation=reward_deviation,
            reward_skewness=reward_skewness,
            seed=seed,
        )
        if not len(questions.disputed_contexts):
            return None
        return Survey(
            questions,
            self.sample.indices,
            budget=min(budget, questions.n_questions),
            folder=folder,
            settings={"incumbent": self.incumbent.name, **as_survey_settings(self.pair.costs)},
            arm_names=self.pair.class_names,
            row_names=self.pair.target.row_names,
        )

    def find_best_index(self, evidence: Evidence) -> int:
        """Return the index of the candidate to choose with target rewards."""
        source_values = _compute_source_values(self.rounds, self.policy_choices)
        return evidence.choose_candidate(self.preferred_index, np.array(source_values))

    def is_clear(self, survey: Survey) -> bool:
        """Return True if the 95% interval of the chosen candidate's advantage over the incumbent
        excludes 0.
        """
        evidence = survey.compute_evidence()
        interval = evidence.compute_intervals(len(self.policies), budget=survey.budget)[
            self.find_best_index(evidence)
        ]
        return interval.low > 0.0 or interval.high < 0.0

    def assess(self, index: int, unit: str) -> Assessment:
        """Return the assessment of a candidate without target rewards."""
        return build_assessment(
            self.policies[index],
            self.rounds[index],
            self.sample,
            self.policy_choices[index],
            self.incumbent,
            arm_names=self.pair.class_names,
            unit=unit,
            is_gain_proven=(
                None if self.new_arm_evidence is None else self.new_arm_evidence.personalises
            ),
        )

    def build_table(
        self,
        candidates: Sequence[Candidate],
        evidence: Evidence | None,
        chosen_index: int,
        budget: int,
    ) -> list[dict[str, Any]]:
        """Return one row per candidate, with the fields of ``Choice.table``."""
        intervals = []
        if evidence is not None and evidence.n_answered > 0:
            intervals = evidence.compute_intervals(
                len(candidates), confidence=VERDICT_CONFIDENCE, budget=budget
            )
        sample = self.sample
        incumbent_arms = self.incumbent.choose_target_arms(sample.contexts, sample.indices)
        rows = []
        for index, (candidate, choices, rounds) in enumerate(
            zip(candidates, self.policy_choices, self.rounds, strict=True)
        ):
            estimate = estimate_advantage(
                self.policies[index], rounds, choices, self.incumbent, incumbent_arms
            )
            limits: tuple[float | None, ...] = (None, None, None)
            if intervals:
                limits = intervals[index].value, intervals[index].low, intervals[index].high
            elif rounds.values is not None:  # the estimate of the verdict
                limits = estimate["advantage"], estimate["low"], None
            rows.append(
                {
                    "candidate": candidate.name,
                    "method": candidate.method,
                    "settings": dict(candidate.settings),
                    "components": candidate.components,
                    **{name: estimate[name] for name in _SOURCE_FIELDS},
                    **dict(zip(("advantage", "low", "high"), limits, strict=True)),
                    "target_fractions": compute_arm_fractions(
                        choices.target_arms, self.pair.n_arms
                    ),
                    "chosen": index == chosen_index,
                }
            )
        return rows


def _read_rounds(pair: Pair, policy: Policy, seed: int) -> SourceRounds:
    """Return the source rounds on which a trained policy is assessed."""
    return read_source_rounds(policy, get_assessed_source(pair, policy), _MAX_CONTEXTS, seed=seed)


def _compute_source_values(
    rounds: Sequence[SourceRounds], policy_choices: Sequence[Choices]
) -> list[float]:
    """Return the mean source reward of each policy."""
    return [
        float(source.get_policy_rewards(choices.source_arms).mean())
        for source, choices in zip(rounds, policy_choices, strict=True)
    ]


def _find_preferred_index(
    pair: Pair, trained_policies: Sequence[Policy], preferred_index: int, seed: int
) -> tuple[int, LogEvidence | None]:
    """Return the index of the candidate to choose without target rewards, and the gain of choosing
    by arm features.

    The index is ``preferred_index``, unless that candidate is a ``LogPolicy`` and the target has
    arms without rewards, which a ``LogPolicy`` chooses only if no other arm is offered. Then it is
    the last candidate that uses arm features. Choosing by arm features must gain significantly in
    the log, unless the log has no target arm at all. The gain is None if no such arms exist or no
    candidate uses features.
    """
    log_policy = trained_policies[preferred_index]
    catalogue = pair.catalogue
    if not isinstance(log_policy, LogPolicy) or catalogue is None:
        return preferred_index, None
    rewarded_arms = catalogue.offered[1] & (log_policy.counts > 0)
    all_rewarded = (rewarded_arms == catalogue.offered[1]).all()
    rounds = None if all_rewarded else SourceRounds.read(pair.source, _MAX_CONTEXTS, seed=seed)
    for index in reversed(range(len(trained_policies))):
        log_evidence = (
            None if rounds is None else estimate_new_arm_gain(trained_policies[index], rounds)
        )
        if log_evidence is not None:
            return (
                index if log_evidence.personalises or not rewarded_arms.any() else preferred_index
            ), log_evidence
    return preferred_index, None


def compute_mean_entropy(predictions: AnyArray) -> float:
    """Return the mean entropy, in nats, of the softmax of predictions.

    Args:
        predictions: (n, K), the predicted rewards of labelled images, which are in [0, 1]. Logits
            are 10 times the predictions, as in training.
    """
    from scipy.special import entr, softmax  # importing takes a quarter of a second

    return float(entr(softmax(10.0 * predictions, axis=1)).sum(axis=1).mean())


def _compare_entropies(default: Choices, other: Choices) -> str:
    """Return the reason to choose the candidate with estimated arm frequencies; "" if there is none.

    If an assumption about frequencies is wrong, it forces the network to divide similar contexts
    between arms, and the predictions are uncertain.
    """
    entropy, other_entropy = (
        compute_mean_entropy(choices.target_predictions) for choices in (default, other)
    )
    if entropy <= other_entropy:
        return ""
    return (
        "without target rewards, the default with estimated frequencies of arms: it is more certain"
        f" in the target (mean entropy {other_entropy:.2g}, with those of the source {entropy:.2g})"
    )


def _is_constant(candidate: Candidate) -> bool:
    """Return True if the candidate always chooses one arm."""
    return not candidate.uses_contexts and candidate.method != "random"


def _describe_rule(
    policy: Policy, new_arm_evidence: LogEvidence | None, pair: Pair, unit: str
) -> str:
    """Return a sentence with the evidence of a log for the chosen policy, or "" if there is
    none.
    """
    by_context = isinstance(policy, LogPolicy) and policy.by_context
    rule = _describe_log_evidence(policy.evidence, pair.class_names, unit) if by_context else ""  # type: ignore[attr-defined]
    if new_arm_evidence is None:
        return rule
    gain = _describe_gain(new_arm_evidence, pair.class_names, unit)
    clause = (
        "; target arms without any reward are not" if rule else "target arms without any reward are"
    )
    return (
        f"{rule}{clause} chosen by their features: with a fifth of the arms left out, choosing by"
        " arm features gains"
        f" {gain}{'' if new_arm_evidence.personalises else ', which is not proven'}"
    )


def _describe_gain(log_evidence: LogEvidence, arm_names: Sequence[str], unit: str) -> str:
    """Return a gain with its standard error, in the unit of the rewards, as text."""
    digits = max(0, 1 - math.floor(math.log10(log_evidence.error))) if log_evidence.error > 0 else 0
    gain = f"{log_evidence.gain:+,.{digits}f} +- {log_evidence.error:,.{digits}f} {unit}".rstrip()
    return f"{gain} over {make_constant_incumbent(log_evidence.arm, arm_names).name}"


def _describe_log_evidence(log_evidence: LogEvidence, arm_names: Sequence[str], unit: str) -> str:
    """Return a sentence with the gain of choosing by context in a log, in the unit of the
    rewards.
    """
    best_arm_name = make_constant_incumbent(log_evidence.arm, arm_names).name
    if not math.isfinite(log_evidence.error):
        return f"the log has too few rounds to choose by context: {best_arm_name} is chosen"
    if log_evidence.error == 0.0:
        return f"choosing by context always gives the same arm: {best_arm_name} is chosen"
    gain = _describe_gain(log_evidence, arm_names, unit)
    if log_evidence.personalises:
        return f"choosing by context gains {gain}: arms are chosen by context"
    if log_evidence.gain > 0:
        return f"choosing by context gains {gain}, which is not proven: {best_arm_name} is chosen"
    return f"choosing by context does not gain ({gain}): {best_arm_name} is chosen"


def _learn_answers(
    policy: Policy, contexts: AnyArray, answers: Mapping[tuple[int, int], float]
) -> None:
    """Update the chosen policy with the target rewards.

    These are a few rounds among thousands, so their effect is small. A network takes no gradient
    steps.
    """
    context_rows = np.array([row for row, _ in answers])
    policy.update(
        contexts[context_rows],
        np.array([arm for _, arm in answers]),
        np.array(list(answers.values())),
        domain="target",
        ids=[f"choose-{row}-{arm}" for row, arm in answers],
    )


def _check_arguments(
    pair: Any,
    ask: Any,
    budget: Any,
    directory: Any,
    candidates: Any,
    seed: Any,
    episode_length: Any,
) -> list[Candidate]:
    """Raise an error for invalid arguments of ``choose``, and return the candidates as a list."""
    if not isinstance(pair, Pair):
        raise InvalidInput(f"pair must be a daband.domains.Pair, got {type(pair).__name__}")
    candidates = list(default_candidates(pair) if candidates is None else candidates)
    if not candidates or not all(isinstance(candidate, Candidate) for candidate in candidates):
        raise InvalidInput("candidates must be a list of at least one daband.trust.Candidate")
    n_held_out = 0 if pair.source_test is None else len(pair.source_test)
    if n_held_out < _MIN_CONTEXTS and not all(
        candidate.method.removesuffix("-p") == "log" for candidate in candidates
    ):
        raise InvalidInput(
            f"the source of {pair.name!r} has {len(pair.source) + n_held_out} round(s), of which"
            f" {n_held_out} is held out (source_test); a choice compares candidates on"
            f" {_MIN_CONTEXTS} or more held-out rounds: use 20 source rounds or more, and"
            " source_test=0.1 or more"
        )
    if len(pair.domains.targets) > 1:
        first_target, *_ = pair.domains.targets
        raise InvalidInput(
            f"a choice is for one target, and the pair has {', '.join(pair.domains.targets)}:"
            " choose for each, with "
            f'daband.domains.restrict_pair(pair, targets=["{first_target}"]), or --target'
            f" {first_target}"
        )
    if len(pair.target) < _MIN_CONTEXTS:  # an error before minutes of training, not after
        raise InvalidInput(
            f"target has {len(pair.target)} context(s); a choice needs {_MIN_CONTEXTS} or more"
        )
    check_int("seed", seed, minimum=0)
    check_int("episode_length", episode_length, minimum=1)
    check_int("budget", budget, minimum=0)
    if ask is not None and not callable(ask):
        raise InvalidInput(
            f"ask must be a function of contexts and arms that returns rewards, got {ask!r}"
        )
    if ask is not None and not budget:
        raise InvalidInput(
            "ask without a budget: set budget to the number of target rewards that may be used"
        )
    if budget and ask is None and directory is None:
        raise InvalidInput("a budget needs answers: give ask=, or a directory= for questions.csv")
    return candidates
