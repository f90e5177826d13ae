"""The training loop: one run, several in step with common gradient steps, or candidates one after the other."""

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

from daband._arguments import check_int
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
    check_domains,
    source_phase,
)
from daband.training._work_folder import stop_signals_deferred


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
        policy: changed in place.
        source: the domain in which rounds are played and rewarded (or a log of such rounds).
        target: contexts of the target. Target rewards cannot be passed here.
        episodes: the number of episodes. By default 300; a source with fewer rounds is shown again, up to five times in
            all (a log once), and ``Run.note`` reports it.
        episode_length: rounds of an episode; the policy adapts after each.
        seed: fixes the order of contexts; the policy's seed by default.
        directory: the run's folder. Called again with the same settings, an interrupted run resumes and ends with the
            same result, bit for bit, as an uninterrupted one. Ctrl-C and SIGTERM wait for the end of the episode and
            save it; a second one stops at once. A folder is used by one process at a time.
        config: more settings to store in the folder's ``config.json``.
        save_every: seconds between saves into ``directory``, more if a save takes long; 0 saves every episode.
        progress: called after every episode with its record.

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
    return run_phase(source_phase(policy, source, target, settings))


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
    """Continue training in the target once its rewards are available; the head start lowers cumulative regret.

    The policy updates by its usual rule; a target round counts as much as a source round. Fewer than ``rounds`` rounds
    are played if the target has fewer contexts; the last episode may be shorter than ``episode_length``.

    Args:
        policy: changed in place.
        target: the target with its rewards, e.g. ``pair.target_labelled``, contexts that evaluation does not use; or a
            log of rounds that were played there (``learn_log`` takes files of any size).
        rounds: the maximum number of rounds.
        episode_length: rounds of an episode; the policy adapts after each.
        seed: fixes the order of contexts; the policy's seed by default.
        directory: the folder of this phase, as in ``train``.
        config: more settings to store in the folder's ``config.json``.
        save_every: seconds between saves into ``directory``, more if a save takes long; 0 saves every episode.
        progress: called after every episode with its record.

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> policy = daband.LinUCB.for_pair(pair, seed=0)
    >>> run = daband.continue_on_target(policy, target=pair.target_labelled, rounds=16, episode_length=8)
    >>> run.rounds
    16
    """
    rounds, episode_length = (
        check_int("rounds", rounds, minimum=1),
        check_int("episode_length", episode_length, minimum=1),
    )
    if not isinstance(target, LabelledDomain):
        missing = ": this pair has no rewards of the target to continue on" if target is None else ""
        raise InvalidInput(
            "target must be a labelled domain, e.g. pair.target_labelled, or a log of the target, got "
            f"{type(target).__name__}{missing}"
        )
    rounds = min(rounds, target.rounds_available)
    check_domains(policy, target, None, what="target")
    episodes = math.ceil(rounds / episode_length)
    settings = TrainSettings(
        episodes=episodes,
        episode_length=episode_length,
        seed=seed,
        directory=directory,
        config=config,
        save_every=save_every,
        progress=progress,
    )
    order = settings.order_seed(policy)
    return run_phase(Phase(policy, "target", target, None, episodes, order, settings, rounds))


def can_train_stacked(policies: Sequence[Policy]) -> bool:
    """Return True if these policies can be trained in a stack: several neural ones of one shape and recipe."""
    if len(policies) < 2 or not all(isinstance(one, Policy) and one.learns_by_gradients for one in policies):
        return False
    from daband.neural._neural_linucb import can_stack  # imports torch

    return can_stack(policies)


def train_stacked(phases: Sequence[Phase]) -> list[Run | Exception]:
    """Play phases in step: rounds are played run by run, gradient steps are taken for all at once.

    On a GPU five stacked seeds took about half the time of five separate runs. Every run's result equals that of a
    separate run, up to rounding, and its folder can be resumed separately; the time is divided among the runs. A run
    that fails has its exception in the returned list; the others continue.
    """
    if not phases:
        return []
    if len(phases) > 1 and not can_train_stacked([phase.policy for phase in phases]):
        raise InvalidInput(
            "only different neural policies of one shape and recipe can be stacked; train them one after another"
        )
    group = RunGroup(phases)
    run_groups([group])
    return group.outcomes()


def run_phase(phase: Phase) -> Run:
    """Play one phase; raise if it fails."""
    (outcome,) = train_stacked([phase])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


class RunGroup:
    """One run, or several in step. A run that raises is dropped, and the others continue.

    ``step`` plays an episode of every run that is not ahead of the others. Several runs take stacked gradient steps.
    """

    def __init__(self, phases: Sequence[Phase], *, name: str = "") -> None:
        self.name, self.phases = name, phases
        self._trainers: dict[int, Trainer] = {}
        self._failed: dict[int, Exception] = {}
        self._size = len(phases)
        #: The seconds of each episode that was played here.
        self.seconds: list[float] = []
        in_folder = any(phase.settings.directory is not None for phase in phases)
        try:
            with stop_signals_deferred(wanted=in_folder):  # the first save of a new folder must be complete
                for index in range(self._size):
                    self._attempt(index, partial(self._begin, index))
        except BaseException:
            self.stop()
            raise

    def _begin(self, index: int) -> None:
        self._trainers[index] = Trainer(self.phases[index])

    @property
    def has_folder(self) -> bool:
        """True if one of the runs has a folder."""
        return any(trainer.folder is not None for trainer in self._trainers.values())

    @property
    def over(self) -> bool:
        """True if every run is over or has failed."""
        return all(trainer.over for trainer in self._trainers.values())

    @property
    def episode(self) -> int:
        """The next episode of the run with the fewest episodes."""
        return min((trainer.episode for trainer in self._trainers.values()), default=0)

    @property
    def failure(self) -> Exception | None:
        """The exception that ended the first failed run, or None."""
        return next(iter(self._failed.values()), None)

    @property
    def episodes(self) -> int:
        """Episodes of each run."""
        return self.phases[0].episodes

    def step(self) -> None:
        """Play the next episode."""
        trainers = self._trainers
        behind = min(trainer.episode for trainer in trainers.values() if not trainer.over)
        present = [index for index, trainer in trainers.items() if trainer.episode == behind and not trainer.over]
        # Resumed runs may be ahead: they wait.
        play = partial(Trainer.play, since=time.perf_counter(), beside=len(present))
        present = [index for index in present if self._attempt(index, partial(play, trainers[index]))]
        if self._size == 1:
            for index in present:
                self._attempt(index, lambda: trainers[0].close(trainers[0].policy.adapt()))
            return
        from daband.neural._neural_linucb import adapt_stacked

        for index, measured in zip(present, adapt_stacked([trainers[i].policy for i in present]), strict=True):
            self._attempt(index, partial(trainers[index].close, measured))

    @property
    def seconds_left(self) -> float | None:
        """Seconds of the remaining episodes, by those after the first, which includes preparations; None before."""
        measured = self.seconds[1:]
        return sum(measured) / len(measured) * (self.episodes - self.episode) if measured else None

    def save(self) -> None:
        """Write every run into its folder."""
        for index in list(self._trainers):
            self._attempt(index, self._trainers[index].save)

    def stop(self) -> None:
        """Release the folders; a later call resumes from them."""
        for trainer in self._trainers.values():
            trainer.stop()

    def outcomes(self) -> list[Run | Exception]:
        """Return the result of each run, or the exception that ended it."""
        return [
            self._failed[index] if index in self._failed else self._trainers[index].result()
            for index in range(self._size)
        ]

    def _attempt(self, index: int, what: Callable[[], None]) -> bool:
        try:
            what()
        except Exception as error:
            self._failed[index] = error
            if index in self._trainers:
                self._trainers.pop(index).stop()
        return index in self._trainers


def run_groups(groups: Sequence[RunGroup], *, after: Callable[[RunGroup], None] | None = None) -> None:
    """Play two episodes of each group, to estimate the remaining time; then all groups to the end, the quickest first.

    ``after`` is called with the group after every episode. Ctrl-C and SIGTERM wait for the end of the episode and save
    every run that has a folder.
    """

    def save() -> None:
        for group in groups:
            group.save()

    with stop_signals_deferred(wanted=any(group.has_folder for group in groups)) as request:
        try:
            while running := [group for group in groups if not group.over]:
                running.sort(key=lambda group: group.seconds_left or 0.0)
                unknown = [group for group in running if group.seconds_left is None]
                for group in unknown or running[:1]:
                    started = time.perf_counter()
                    group.step()
                    group.seconds.append(time.perf_counter() - started)
                    if after is not None:
                        after(group)
                    request.obey(save)
        finally:
            for group in groups:
                group.stop()


# Candidates: one policy of each per seed.


@dataclass(frozen=True)
class CandidateProgress:
    """The progress of training all candidates."""

    #: The candidate that played last.
    candidate: str
    episode: int
    episodes: int
    policies_done: int
    policies: int
    #: Until all candidates are trained, by the measured episodes of each; None before each has played two.
    seconds_left: float | None
    #: The fraction of all episodes that is done, from 0 to 1.
    fraction: float
    #: The text of ``Run.note``, or a first answer.
    note: str = ""


#: Training rounds for vectors, and the maximum number of times that a small source is shown.
_ROUNDS, _MAX_PASSES = 4000, 5
#: The same for vectors of at least this many numbers: regressions of many numbers need more rounds.
_WIDE, _WIDE_ROUNDS, _WIDE_PASSES = 512, 8000, 10
_MAX_EPISODES = 125


def training_budget(pair: Pair, episodes: int | None, episode_length: int) -> tuple[Pair, int | None, int]:
    """Return the pair with its passes over the source, and the number and length of episodes of every candidate.

    Vectors have about 4,000 rounds: a smaller source is shown up to five times, a larger one or a log once, in longer
    episodes with as many gradient steps. Wide vectors have about 8,000 rounds and up
    to ten passes. Images take longer to learn, and have the defaults of ``train``.
    """
    if episodes is not None:
        return pair, check_int("episodes", episodes, minimum=1), episode_length
    if len(pair.context_shape) > 1:
        return pair, None, episode_length
    source = copy.copy(pair.source)
    wide = math.prod(pair.context_shape) >= _WIDE
    rounds, passes = (_WIDE_ROUNDS, _WIDE_PASSES) if wide else (_ROUNDS, _MAX_PASSES)
    if not isinstance(source, LoggedDomain):
        source.passes = max(source.passes, min(passes, math.ceil(rounds / len(source))))
    rounds = max(len(source), min(source.rounds_available, rounds))
    length = min(max(episode_length, math.ceil(rounds / _MAX_EPISODES)), rounds)
    number = max(1, rounds // length)
    if isinstance(source, LoggedDomain):  # episodes are equally long: drop as few rounds of the log as possible
        number = min(range(number, number // 2, -1), key=lambda episodes: rounds % episodes)
        length = rounds // number
    return replace(pair, source=source), number, length


def train_candidates(
    pair: Pair,
    candidates: Sequence[Any],
    *,
    seeds: Sequence[int],
    episodes: int | None = None,
    episode_length: int = 64,
    device: str = "auto",
    directory: str | Path | None = None,
    progress: Callable[[CandidateProgress], None] | None = None,
    first_answer: Callable[[str, Policy], str] | None = None,
) -> list[list[Policy]]:
    """Train a policy of every candidate for every seed, and return a list per candidate, in the order of seeds.

    Args:
        pair: the source and target.
        candidates: each has a ``name`` and ``build(pair, seed=, device=)``.
        seeds: the seeds of each candidate's policies.
        episodes: as in ``train``.
        episode_length: as in ``train``.
        device: "auto" (a GPU if available), "cpu", "cuda", ...
        directory: every run has its own folder in it. Called again with the same settings, finished runs are read, and
            interrupted runs continue.
        progress: called after every episode.
        first_answer: called with the name and the policy of each candidate that is trained while others are not, until
            it returns a text; that is the next ``note`` of the progress.
    """
    policies: list[list[Policy]] = []
    #: Policies that are trained in step, by their candidate.
    work: list[tuple[str, list[Phase]]] = []
    for number, candidate in enumerate(candidates):
        built = [candidate.build(pair, seed=seed, device=device) for seed in seeds]
        policies.append(built)
        phases = []
        for policy in built:
            folder = None if directory is None else Path(directory) / f"{number}-{_slug(candidate.name)}-{policy.seed}"
            settings = TrainSettings(episodes=episodes, episode_length=episode_length, directory=folder)
            phases.append(source_phase(policy, pair.source, pair.target, settings))
        if _on_gpu(built[0]) and can_train_stacked(built):
            work.append((candidate.name, phases))
        else:
            work += [(candidate.name, [phase]) for phase in phases]
    _run(work, progress, first_answer)
    return policies


def _run(
    work: list[tuple[str, list[Phase]]],
    progress: Callable[[CandidateProgress], None] | None,
    first_answer: Callable[[str, Policy], str] | None,
) -> None:
    groups: list[RunGroup] = []
    answer = ""

    def after(group: RunGroup) -> None:
        nonlocal answer
        if group.failure is not None:
            raise group.failure
        if progress is None:
            return
        if group.over and not answer and first_answer is not None and not all(other.over for other in groups):
            answer = first_answer(group.name, group.phases[0].policy)
        now = _progress(group, groups)
        progress(replace(now, note=answer) if answer else now)

    with ExitStack() as begun:
        for name, phases in work:
            groups.append(RunGroup(phases, name=name))
            begun.callback(groups[-1].stop)
            if groups[-1].failure is not None:
                raise groups[-1].failure
        run_groups(groups, after=after)


def _progress(now: RunGroup, groups: Sequence[RunGroup]) -> CandidateProgress:
    """Return the progress after an episode of ``now``."""
    left = [0.0 if group.over else group.seconds_left for group in groups]
    known = [seconds for seconds in left if seconds is not None]
    played, all_episodes = (sum(getattr(group, name) for group in groups) for name in ("episode", "episodes"))
    return CandidateProgress(
        candidate=now.name,
        episode=now.episode,
        episodes=now.episodes,
        policies_done=sum(len(group.phases) for group in groups if group.episode >= group.episodes),
        policies=sum(len(group.phases) for group in groups),
        seconds_left=sum(known) if len(known) == len(left) else None,
        fraction=played / all_episodes,
        note=now.phases[0].note,
    )


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-")


def _on_gpu(policy: Policy) -> bool:
    device = getattr(getattr(policy, "learner", None), "device", None)
    return getattr(device, "type", "cpu") == "cuda"
