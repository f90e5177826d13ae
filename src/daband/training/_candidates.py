"""Train the candidates of ``choose``, the quickest first."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daband.base._arguments import check_int
from daband.domains._contract import LoggedDomain, Pair
from daband.policies._policy import Policy
from daband.training._phase import build_source_phase
from daband.training._trainer import Trainer


@dataclass(frozen=True)
class CandidateProgress:
    """The progress of training all candidates of ``choose``."""

    #: The name of the candidate that played the last episode.
    candidate: str
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
    #: A sentence about this candidate's run (``Run.note``).
    note: str


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
) -> tuple[int | None, int]:
    """Return the number of episodes and the length of an episode with which candidates are trained.

    A given number of ``episodes`` is not changed. Otherwise policies for vectors are trained for
    about 4,000 rounds. A smaller source is shown up to five times. A larger source or a log is
    shown once, in longer episodes, so that the number of gradient steps stays the same. Policies
    for wide vectors have about 8,000 rounds and up to ten passes. Images have the defaults of
    ``train``, because they take longer to learn. For a log the number of episodes is None, as
    ``train`` then learns all of it.
    """
    if episodes is not None:
        return check_int("episodes", episodes, minimum=1), episode_length
    if len(pair.context_shape) > 1:
        return None, episode_length
    n_contexts = len(pair.source)
    if isinstance(pair.source, LoggedDomain):
        return None, max(episode_length, math.ceil(n_contexts / _MAX_EPISODES))
    is_wide = math.prod(pair.context_shape) >= _MIN_WIDE_DIM
    n_rounds, max_passes = (
        (_WIDE_ROUNDS, _MAX_WIDE_PASSES) if is_wide else (_VECTOR_ROUNDS, _MAX_VECTOR_PASSES)
    )
    n_rounds = max(n_contexts, min(max_passes * n_contexts, n_rounds))
    new_length = min(max(episode_length, math.ceil(n_rounds / _MAX_EPISODES)), n_rounds)
    return max(1, n_rounds // new_length), new_length


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
) -> list[Policy]:
    """Train a policy of every candidate, and return the policies in the order of the candidates.

    First, two episodes of each are played, to estimate its remaining time. Then the candidate with
    the shortest remaining time is trained to its end, and so on. Ctrl-C waits for the end of the
    episode and saves every run that has a folder.

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
    """
    policies = [candidate.build(pair, seed=seed, device=device) for candidate in candidates]
    runs: list[_CandidateRun] = []
    with ExitStack() as stack:
        for index, (candidate, policy) in enumerate(zip(candidates, policies, strict=True)):
            phase = build_source_phase(
                policy,
                pair.source,
                pair.target,
                episodes=episodes,
                episode_length=episode_length,
                directory=directory and Path(directory) / _name_folder(index, candidate.name, seed),
            )
            runs.append(_CandidateRun(candidate.name, stack.enter_context(Trainer(phase))))
        while waiting_runs := [run for run in runs if not run.trainer.is_finished]:
            run = min(
                waiting_runs, key=lambda run: (run.seconds_left or 0.0, len(run.episode_seconds))
            )
            run.play_episode()
            if progress is not None:
                progress(_compute_progress(run, runs))
    return policies


@dataclass
class _CandidateRun:
    """The training of one candidate."""

    #: The candidate's name.
    name: str
    trainer: Trainer
    #: The duration in seconds of each episode that was played in this call.
    episode_seconds: list[float] = field(default_factory=list)

    def play_episode(self) -> None:
        """Play the next episode, and measure its duration."""
        start_time = time.perf_counter()
        self.trainer.play_episode()
        self.episode_seconds.append(time.perf_counter() - start_time)

    @property
    def seconds_left(self) -> float | None:
        """The estimated seconds for the remaining episodes; None before two episodes, as the first
        one takes longer.
        """
        if self.trainer.is_finished:
            return 0.0
        durations = self.episode_seconds[1:]
        n_left = self.trainer.phase.n_episodes - self.trainer.next_episode
        return sum(durations) / len(durations) * n_left if durations else None


def _compute_progress(last_run: _CandidateRun, runs: Sequence[_CandidateRun]) -> CandidateProgress:
    """Return the progress of all runs after an episode of ``last_run``."""
    known_seconds = [run.seconds_left for run in runs if run.seconds_left is not None]
    trainers = [run.trainer for run in runs]
    n_episodes = sum(trainer.phase.n_episodes for trainer in trainers)
    return CandidateProgress(
        candidate=last_run.name,
        episodes=last_run.trainer.phase.n_episodes,
        policies_done=sum(trainer.is_finished for trainer in trainers),
        policies=len(runs),
        seconds_left=sum(known_seconds) if len(known_seconds) == len(runs) else None,
        fraction=sum(trainer.next_episode for trainer in trainers) / n_episodes,
        note=last_run.trainer.phase.note,
    )


def _name_folder(index: int, name: str, seed: int) -> str:
    """Return the name of the folder in which a candidate is trained."""
    return f"{index}-{re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('-')}-{seed}"
