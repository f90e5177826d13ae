"""Train one policy, several policies at the same time, or the candidates of ``choose``.

``train`` and ``continue_on_target`` build a ``Phase`` and play it with ``run_phase``. A
``RunGroup`` plays one phase, or several phases at the same time, episode by episode.
``run_groups`` plays several groups in turn. ``train_candidates`` trains the candidates of
``choose``.
"""

from __future__ import annotations

import copy
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from daband.base._arguments import check_int
from daband.domains._contract import Contexts, LoggedDomain, Pair
from daband.errors import InvalidInput
from daband.policies._policy import Policy
from daband.training._trainer import (
    LabelledDomain,
    Phase,
    Progress,
    Run,
    Trainer,
    TrainSettings,
    build_source_phase,
    check_domains,
)
from daband.training._work_folder import defer_stop_signals


def train(
    policy: Policy,
    *,
    source: LabelledDomain,
    target: Contexts | None = None,
    episodes: int | None = None,
    episode_length: int = 64,
    seed: int | None = None,
    directory: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    save_every: float = 30.0,
    progress: Progress | None = None,
) -> Run:
    """Train a policy on source rewards and unlabelled target contexts.

    Args:
        policy: the policy, changed in place.
        source: the domain in which rounds are played and rewarded (or a log of such rounds).
        target: unlabelled contexts of the target, or None. Target rewards cannot be passed.
        episodes: the number of episodes. The default is 300, and a source with fewer rounds is shown
            again, up to five times in total. All rounds of a log are learned once by default.
            ``Run.note`` then states the number of rounds.
        episode_length: the number of rounds per episode. The policy adapts after each episode.
            Without ``episodes``, episodes of a log with more than 300 times this number of rounds
            are longer.
        seed: determines the order of contexts; the policy's seed by default.
        directory: the run's folder. A second call with the same settings resumes an interrupted
            run, which ends with the same result, bit for bit. Ctrl-C and SIGTERM wait for the end
            of the episode and save it; a second Ctrl-C stops at once. Only one process can use a
            folder at a time.
        config: additional settings to store in the folder's ``config.json``.
        save_every: the minimum number of seconds between two saves into ``directory``; 0 saves
            every episode.
        progress: called after every episode with its record (an entry of ``Run.episodes``).

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> policy = daband.LinUCB.for_pair(pair, seed=0)
    >>> run = daband.train(policy, source=pair.source, target=pair.target, episodes=2, directory="run")
    >>> policy.rounds_learned
    128
    """
    settings = TrainSettings(
        episodes=episodes,
        episode_length=episode_length,
        seed=seed,
        directory=directory,
        config=config,
        save_every=save_every,
        progress=progress,
    )
    return run_phase(build_source_phase(policy, source, target, settings))


def continue_on_target(
    policy: Policy,
    *,
    target: LabelledDomain | None,
    rounds: int = 1920,
    episode_length: int = 64,
    seed: int | None = None,
    directory: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    save_every: float = 30.0,
    progress: Progress | None = None,
) -> Run:
    """Continue training in the target, once target rewards are available.

    A target round counts as much as a source round. Fewer than ``rounds`` rounds are played if the
    target has fewer contexts. The last episode may be shorter than ``episode_length``.

    Args:
        policy: the policy, changed in place.
        target: the target with rewards, e.g. ``pair.target_labelled``, whose contexts evaluation
            does not use; or a log of target rounds (for files of any size, use ``learn_log``).
        rounds: the maximum number of rounds.
        episode_length: the number of rounds per episode. The policy adapts after each episode.
        seed: determines the order of contexts; the policy's seed by default.
        directory: the folder of this phase, as in ``train``.
        config: additional settings to store in the folder's ``config.json``.
        save_every: the minimum number of seconds between two saves into ``directory``; 0 saves
            every episode.
        progress: called after every episode with its record (an entry of ``Run.episodes``).

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> policy = daband.LinUCB.for_pair(pair, seed=0)
    >>> run = daband.continue_on_target(policy, target=pair.target_labelled, rounds=16, episode_length=8)
    >>> run.rounds
    16
    """
    rounds = check_int("rounds", rounds, minimum=1)
    episode_length = check_int("episode_length", episode_length, minimum=1)
    if not isinstance(target, LabelledDomain):
        hint = ": this pair has no target rewards" if target is None else ""
        raise InvalidInput(
            "target must be a labelled domain, e.g. pair.target_labelled, or a log of the target,"
            f" got {type(target).__name__}{hint}"
        )
    rounds = min(rounds, target.rounds_available)
    check_domains(policy, target, None, role="target")
    n_episodes = math.ceil(rounds / episode_length)
    settings = TrainSettings(
        episodes=n_episodes,
        episode_length=episode_length,
        seed=seed,
        directory=directory,
        config=config,
        save_every=save_every,
        progress=progress,
    )
    order_seed = settings.get_order_seed(policy)
    return run_phase(
        Phase(policy, "target", target, None, n_episodes, order_seed, settings, rounds)
    )


def can_train_together(policies: Sequence[Policy]) -> bool:
    """Return True if ``train_together`` can train these policies: several neural policies on one
    device.
    """
    if len(policies) < 2 or not all(
        isinstance(policy, Policy) and policy.learns_by_gradients for policy in policies
    ):
        return False
    from daband.neural._accelerator import can_adapt_together  # imports torch

    return can_adapt_together(policies)


def train_together(phases: Sequence[Phase]) -> list[Run | Exception]:
    """Play several phases together, and return the run of each, or the exception that ended it.

    Rounds are played run by run, and a GPU computes the gradient steps of all runs at the same time.
    Each result equals the result of a separate run, on a GPU up to rounding, and each folder can be
    resumed separately. If a run fails, the others continue.
    """
    if len(phases) > 1 and not can_train_together([phase.policy for phase in phases]):
        raise InvalidInput(
            "to be trained together, policies must be different neural policies on one device; train"
            " them separately"
        )
    group = RunGroup(phases)
    run_groups([group])
    return group.get_outcomes()


def run_phase(phase: Phase) -> Run:
    """Play one phase, and return its run. Raise its exception if it fails."""
    (outcome,) = train_together([phase])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


class RunGroup:
    """One run, or several runs whose gradient steps a GPU computes at the same time.

    ``play_episode`` plays the next episode. Runs that were resumed ahead of the others wait for
    them. A run that raises an error is dropped, and the others continue.

    Args:
        phases: what each run plays.
        name: the name of the group in progress reports.
    """

    def __init__(self, phases: Sequence[Phase], *, name: str = "") -> None:
        self.name = name
        self.phases = phases
        #: The trainers of the runs that have not failed, by the index of the run.
        self._trainers: dict[int, Trainer] = {}
        #: The exceptions that ended the other runs, by the index of the run.
        self._failures: dict[int, Exception] = {}
        self._n_runs = len(phases)
        #: The duration in seconds of each episode that was played in this call.
        self.episode_seconds: list[float] = []
        has_folders = any(phase.settings.directory is not None for phase in phases)
        try:
            # the first save of a new folder must be complete
            with defer_stop_signals(enabled=has_folders):
                for index in range(self._n_runs):
                    self._try_run(index, partial(self._create_trainer, index))
        except BaseException:
            self.stop()
            raise

    def _create_trainer(self, index: int) -> None:
        """Create the trainer of a run."""
        self._trainers[index] = Trainer(self.phases[index])

    @property
    def has_folder(self) -> bool:
        """True if one of the runs has a folder."""
        return any(trainer.folder is not None for trainer in self._trainers.values())

    @property
    def is_finished(self) -> bool:
        """True if every run is finished or has failed."""
        return all(trainer.is_finished for trainer in self._trainers.values())

    @property
    def next_episode(self) -> int:
        """The index of the next episode, of the run with the fewest episodes."""
        return min((trainer.next_episode for trainer in self._trainers.values()), default=0)

    @property
    def failure(self) -> Exception | None:
        """The exception that ended the first failed run, or None."""
        return next(iter(self._failures.values()), None)

    @property
    def n_episodes(self) -> int:
        """The number of episodes of each run."""
        return self.phases[0].n_episodes

    def play_episode(self) -> None:
        """Play the next episode of every run that is not ahead of the others, and adapt their
        policies.
        """
        trainers = self._trainers
        unfinished_trainers = {
            index: trainer for index, trainer in trainers.items() if not trainer.is_finished
        }
        episode = min(trainer.next_episode for trainer in unfinished_trainers.values())
        running_indices = [
            index
            for index, trainer in unfinished_trainers.items()
            if trainer.next_episode == episode
        ]
        play = partial(
            Trainer.play_rounds, episode_start=time.perf_counter(), n_runs=len(running_indices)
        )
        running_indices = [
            index
            for index in running_indices
            if self._try_run(index, partial(play, trainers[index]))
        ]
        if self._n_runs == 1:
            for index in running_indices:
                self._try_run(index, lambda: trainers[0].record_episode(trainers[0].policy.adapt()))
            return
        from daband.neural._accelerator import adapt_together

        results = adapt_together([trainers[index].policy for index in running_indices])
        for index, metrics in zip(running_indices, results, strict=True):
            self._try_run(index, partial(trainers[index].record_episode, metrics))

    @property
    def seconds_left(self) -> float | None:
        """The estimated seconds for the remaining episodes; None before two episodes, as the first
        one takes longer.
        """
        durations = self.episode_seconds[1:]
        return (
            sum(durations) / len(durations) * (self.n_episodes - self.next_episode)
            if durations
            else None
        )

    def save(self) -> None:
        """Write every run into its folder."""
        for index in list(self._trainers):
            self._try_run(index, self._trainers[index].save)

    def stop(self) -> None:
        """Unlock the folders. A later call resumes from them."""
        for trainer in self._trainers.values():
            trainer.stop()

    def get_outcomes(self) -> list[Run | Exception]:
        """Return the result of each run, or the exception that ended it."""
        return [
            self._failures[index] if index in self._failures else self._trainers[index].build_run()
            for index in range(self._n_runs)
        ]

    def _try_run(self, index: int, action: Callable[[], None]) -> bool:
        """Call ``action`` for a run, and return True.

        If it raises an exception, drop the run and return False.
        """
        try:
            action()
        except Exception as error:
            self._failures[index] = error
            if index in self._trainers:
                self._trainers.pop(index).stop()
        return index in self._trainers


def run_groups(
    groups: Sequence[RunGroup], *, on_episode: Callable[[RunGroup], None] | None = None
) -> None:
    """Play all groups.

    First, two episodes of each group are played, to estimate its remaining time.

    Then the group with the shortest remaining time is played to its end, and so on. ``on_episode``
    is called with the group after every episode. Ctrl-C and SIGTERM wait for the end of the episode
    and save every run that has a folder.
    """

    def save() -> None:
        for group in groups:
            group.save()

    with defer_stop_signals(enabled=any(group.has_folder for group in groups)) as stop_request:
        try:
            while unfinished_groups := [group for group in groups if not group.is_finished]:
                unfinished_groups.sort(key=lambda group: group.seconds_left or 0.0)
                unmeasured_groups = [
                    group for group in unfinished_groups if group.seconds_left is None
                ]
                for group in unmeasured_groups or unfinished_groups[:1]:
                    start_time = time.perf_counter()
                    group.play_episode()
                    group.episode_seconds.append(time.perf_counter() - start_time)
                    if on_episode is not None:
                        on_episode(group)
                    stop_request.handle_signal(save)
        finally:
            for group in groups:
                group.stop()


@dataclass(frozen=True)
class CandidateProgress:
    """The progress of training all candidates of ``choose``."""

    #: The name of the candidate that played the last episode.
    candidate: str
    #: The number of episodes that this candidate has played.
    episode: int
    #: The number of episodes of this candidate in total.
    episodes: int
    #: The number of trained policies.
    policies_done: int
    #: The number of policies in total.
    policies: int
    #: The estimated seconds until all candidates are trained; None before each has played two
    #: episodes.
    seconds_left: float | None
    #: The fraction of all episodes that is done, from 0 to 1.
    fraction: float
    #: A sentence about this candidate's run (``Run.note``), or the first answer of ``choose`` once
    #: there is one.
    note: str = ""


#: The number of training rounds for vectors.
_VECTOR_ROUNDS = 4000
#: The maximum number of passes over a small source of vectors.
_MAX_VECTOR_PASSES = 5
#: The minimum number of dimensions of wide vectors, whose regressions need more rounds.
_MIN_WIDE_DIM = 512
#: The number of training rounds for wide vectors.
_WIDE_ROUNDS = 8000
#: The maximum number of passes over a small source of wide vectors.
_MAX_WIDE_PASSES = 10
#: The maximum number of episodes for vectors.
_MAX_EPISODES = 125


def choose_training_budget(
    pair: Pair, episodes: int | None, episode_length: int
) -> tuple[Pair, int | None, int]:
    """Return the pair, the number of episodes and the length of an episode with which candidates
    are trained.

    The source of the returned pair has the number of passes that is needed. A given number of
    ``episodes`` is not changed. Otherwise policies for vectors are trained for about 4,000 rounds.
    A smaller source is shown up to five times. A larger source or a log is shown once, in longer
    episodes, so that the number of gradient steps stays the same. Policies for wide vectors have
    about 8,000 rounds and up to ten passes. Images have the defaults of ``train``, because they
    take longer to learn. For a log the number of episodes is None, as ``train`` then learns all of
    it.
    """
    if episodes is not None:
        return pair, check_int("episodes", episodes, minimum=1), episode_length
    if len(pair.context_shape) > 1:
        return pair, None, episode_length
    source = copy.copy(pair.source)
    if isinstance(source, LoggedDomain):
        n_rounds = source.rounds_available
        return pair, None, max(episode_length, math.ceil(n_rounds / _MAX_EPISODES))
    is_wide = math.prod(pair.context_shape) >= _MIN_WIDE_DIM
    n_rounds, max_passes = (
        (_WIDE_ROUNDS, _MAX_WIDE_PASSES) if is_wide else (_VECTOR_ROUNDS, _MAX_VECTOR_PASSES)
    )
    source.passes = max(source.passes, min(max_passes, math.ceil(n_rounds / len(source))))
    n_rounds = max(len(source), min(source.rounds_available, n_rounds))
    new_length = min(max(episode_length, math.ceil(n_rounds / _MAX_EPISODES)), n_rounds)
    return replace(pair, source=source), max(1, n_rounds // new_length), new_length


def train_candidates(
    pair: Pair,
    candidates: Sequence[Any],
    *,
    seed: int,
    episodes: int | None = None,
    episode_length: int = 64,
    device: str = "auto",
    directory: str | Path | None = None,
    progress: Callable[[CandidateProgress], None] | None = None,
    describe_first: Callable[[str, Policy], str] | None = None,
) -> list[Policy]:
    """Train a policy of every candidate, and return the policies in the order of the candidates.

    Args:
        pair: the source and target.
        candidates: objects with a ``name`` and a method ``build(pair, seed=, device=)`` that
            returns a policy.
        seed: the seed of each policy.
        episodes: as in ``train``.
        episode_length: as in ``train``.
        device: "auto" (a GPU if available), "cpu", "cuda", ...
        directory: a folder in which every run has its own folder. A second call with the same
            settings reads finished runs and resumes interrupted ones.
        progress: called after every episode.
        describe_first: called with the name and the policy of a finished candidate, while others
            are still training, until it returns a text that is not empty. This text is then the
            ``note`` of the progress.
    """
    policies = [candidate.build(pair, seed=seed, device=device) for candidate in candidates]
    named_phases = []
    for index, (candidate, policy) in enumerate(zip(candidates, policies, strict=True)):
        folder = (
            None
            if directory is None
            else Path(directory) / name_candidate_folder(index, candidate.name, seed)
        )
        settings = TrainSettings(episodes=episodes, episode_length=episode_length, directory=folder)
        named_phases.append(
            (candidate.name, build_source_phase(policy, pair.source, pair.target, settings))
        )
    _run_candidates(named_phases, progress, describe_first)
    return policies


def _run_candidates(
    named_phases: Sequence[tuple[str, Phase]],
    progress: Callable[[CandidateProgress], None] | None,
    describe_first: Callable[[str, Policy], str] | None,
) -> None:
    """Play the phase of each candidate, given with the candidate's name, and report the
    progress.
    """
    groups: list[RunGroup] = []
    note = ""

    def report_episode(group: RunGroup) -> None:
        nonlocal note
        if group.failure is not None:
            raise group.failure
        if progress is None:
            return
        is_early = group.is_finished and not all(other.is_finished for other in groups)
        if is_early and not note and describe_first is not None:
            note = describe_first(group.name, group.phases[0].policy)
        group_progress = _compute_progress(group, groups)
        progress(replace(group_progress, note=note) if note else group_progress)

    with ExitStack() as open_groups:
        for name, phase in named_phases:
            groups.append(RunGroup([phase], name=name))
            open_groups.callback(groups[-1].stop)
            if groups[-1].failure is not None:
                raise groups[-1].failure
        run_groups(groups, on_episode=report_episode)


def _compute_progress(last_group: RunGroup, groups: Sequence[RunGroup]) -> CandidateProgress:
    """Return the progress of all groups after an episode of ``last_group``."""
    seconds_by_group = [0.0 if group.is_finished else group.seconds_left for group in groups]
    known_seconds = [seconds for seconds in seconds_by_group if seconds is not None]
    return CandidateProgress(
        candidate=last_group.name,
        episode=last_group.next_episode,
        episodes=last_group.n_episodes,
        policies_done=sum(group.next_episode >= group.n_episodes for group in groups),
        policies=len(groups),
        seconds_left=sum(known_seconds) if len(known_seconds) == len(groups) else None,
        fraction=sum(group.next_episode for group in groups)
        / sum(group.n_episodes for group in groups),
        note=last_group.phases[0].note,
    )


def name_candidate_folder(index: int, name: str, seed: int) -> str:
    """Return the name of the folder in which ``train_candidates`` trains the candidate with this
    index and name.
    """
    return f"{index}-{re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('-')}-{seed}"
