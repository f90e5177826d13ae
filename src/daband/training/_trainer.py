"""Play the episodes of one training run, and save the run in its folder.

In each episode, rounds are played, the policy adapts, and the episode is recorded. ``Trainer`` plays
and saves the rounds of a ``Phase``, and ``Run`` is the result.

In a run's folder, ``config.json`` has the settings, ``rounds.npz`` and ``episodes.jsonl`` the
history, and ``policy.safetensors`` the policy after the last saved episode. The policy is written
last, with the number of its episode. So after a crash between two writes, the history may have more
rounds than the policy has learned. These rounds are dropped and played again, with the same result.
The policy file also has a digest of the history, so that a changed file is detected.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from daband.base._arrays import AnyArray, Arrays, FloatArray, IntArray
from daband.base._files import read_bytes, read_npz, write_npz, write_text
from daband.errors import CheckpointError
from daband.policies._checkpoints import read_checkpoint
from daband.policies._thread_locks import run_to_end
from daband.rounds._rounds import Rounds
from daband.training._phase import ByDomain, Phase
from daband.training._work_folder import Folder

#: The maximum size in bytes of the contexts to which a transform is fitted.
_MAX_SAMPLE_BYTES = 1 << 30
#: The columns of ``rounds.npz``.
_ROUND_COLUMNS = ("arm", "reward", "regret", "propensity")


@dataclass(frozen=True)
class Run:
    """The result of a training run: one row per round, and one record per episode.

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> policy = daband.LinUCB.for_pair(pair, seed=0)
    >>> run = daband.train(policy, source=pair.source, target=pair.target, episodes=2, episode_length=8)
    >>> run.rounds, run.reward.shape, len(run.episodes)
    (16, (16,), 2)
    """

    #: The index of the chosen arm in each round, (rounds,).
    arm: IntArray
    #: The reward of the chosen arm in each round, (rounds,).
    reward: FloatArray
    #: The expected regret of each round, (rounds,); NaN if it is not known.
    regret: FloatArray
    #: The probability with which the arm was chosen in each round, (rounds,).
    propensity: FloatArray
    #: The record of each episode: its number, regret so far, mean reward, and the metrics of
    #: ``adapt``, by name.
    episodes: list[dict[str, float]]
    #: The duration of the run in seconds.
    seconds: float
    #: A sentence about a default that ``train`` chose, such as the number of passes over a small
    #: source; or empty.
    note: str = ""

    def __repr__(self) -> str:
        regret_text = "" if np.isnan(self.total_regret) else f", regret {self.total_regret:,.4g}"
        mean_text = f"mean reward {self.reward.mean():.4g}" if self.rounds else "no rounds"
        return (
            f"<Run of {self.rounds:,} rounds in {len(self.episodes):,} episodes:"
            f" {mean_text}{regret_text}, {self.seconds:,.1f} s{self.note and f'; {self.note}'}>"
        )

    @property
    def rounds(self) -> int:
        """The number of rounds played."""
        return len(self.arm)

    @property
    def total_regret(self) -> float:
        """The sum of expected regrets; NaN if expected rewards are not known."""
        return float(self.regret.sum())


@dataclass
class History:
    """The rounds and records of all episodes so far."""

    #: The rounds of each episode, as arrays (rounds,) by the names in ``_ROUND_COLUMNS``.
    rounds_by_episode: list[Arrays] = field(default_factory=list)
    #: The record of each episode (``Run.episodes``).
    records: list[dict[str, float]] = field(default_factory=list)
    #: The duration of all episodes in seconds.
    seconds: float = 0.0

    def concatenate(self, name: str) -> AnyArray:
        """Return the column ``name`` of the rounds of all episodes, (rounds,)."""
        no_rounds = np.zeros(0, np.int64 if name == "arm" else np.float64)
        columns = [rounds[name] for rounds in self.rounds_by_episode]
        return np.concatenate(columns) if columns else no_rounds

    def format_records(self) -> str:
        """Return the records in the format of ``episodes.jsonl``."""
        return "".join(json.dumps(record, sort_keys=True) + "\n" for record in self.records)

    def compute_digest(self) -> str:
        """Return a digest of all rounds and records."""
        digest = hashlib.sha256(self.format_records().encode())
        for name in _ROUND_COLUMNS:
            digest.update(np.ascontiguousarray(self.concatenate(name)).tobytes())
        return digest.hexdigest()


class Trainer:
    """Plays one training run, episode by episode.

    Args:
        phase: the rounds to play.
    """

    def __init__(self, phase: Phase) -> None:
        self.policy = phase.policy
        self.phase = phase
        self.history = History()
        self.folder = (
            None
            if phase.directory is None
            else Folder(phase.directory, save_every=phase.save_every)
        )
        try:
            if self.folder is not None:
                self.folder.claim("config.json", phase.build_config())
                self.history = self._resume(self.folder)
            if not self.policy.prepared:
                _fit_transform(phase)
        except BaseException:
            self.stop()
            raise
        self.policy.plan(phase.n_episodes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *_: object) -> None:
        try:
            if exception_type is not None and issubclass(exception_type, KeyboardInterrupt):
                self.save()
        finally:
            self.stop()

    @property
    def next_episode(self) -> int:
        """The index of the next episode."""
        return len(self.history.records)

    @property
    def is_finished(self) -> bool:
        """True if every episode is recorded."""
        return self.next_episode >= self.phase.n_episodes

    def play_episode(self) -> None:
        """Play the next episode, let the policy adapt, and record the episode.

        ``KeyboardInterrupt`` waits for the end of the episode.
        """
        start_time = time.perf_counter()
        history = self.history
        rounds, target_contexts = self.phase.read_episode(self.next_episode)

        def play() -> dict[str, float]:
            _play_rounds(self.phase, rounds, history)
            for name, contexts in target_contexts:
                self.policy.observe_target(contexts, name)
            record = _build_record(self.next_episode, history, self.policy.adapt())
            history.records.append(record)
            history.seconds += time.perf_counter() - start_time
            return record

        record = run_to_end(self.policy._locks, play)
        if self.folder is not None and (self.folder.is_save_due() or self.is_finished):
            self.save()
        if self.phase.progress is not None:
            self.phase.progress(record)

    def save(self) -> None:
        """Write the history and then the policy into the folder, if the run has one."""
        if self.folder is None:
            return
        start_time = time.perf_counter()
        columns = {name: self.history.concatenate(name) for name in _ROUND_COLUMNS}
        write_npz(self.folder.path / "rounds.npz", columns)
        write_text(self.folder.path / "episodes.jsonl", self.history.format_records())
        counts = {"episodes": str(len(self.history.records)), "rounds": str(len(columns["arm"]))}
        notes = {
            **counts,
            "seconds": repr(self.history.seconds),
            "digest": self.history.compute_digest(),
        }
        self.policy.save(self.folder.path / "policy.safetensors", notes=notes)
        self.folder.record_save(start_time)

    def _resume(self, folder: Folder) -> History:
        """Restore the policy after the last saved episode, and return the history up to that
        episode.

        In a new folder, the policy is saved at once. So a second call starts from the same state,
        even if the policy has learned more rounds in the meantime.
        """
        policy = self.policy
        path = folder.path / "policy.safetensors"
        history = History()
        if not os.path.lexists(path):
            self.save()
            return history
        try:
            saved_policy = read_checkpoint(path)
            n_rounds = int(saved_policy.notes["rounds"])
            n_episodes = int(saved_policy.notes["episodes"])
            columns = read_npz(folder.path / "rounds.npz")
            for name in _ROUND_COLUMNS:
                if len(columns[name]) < n_rounds:
                    raise ValueError(f"rounds.npz has {len(columns[name])} of {n_rounds} rounds")
            history.rounds_by_episode = [
                {name: columns[name][:n_rounds] for name in _ROUND_COLUMNS}
            ]
            lines = read_bytes(folder.path / "episodes.jsonl").decode().splitlines()[:n_episodes]
            if len(lines) < n_episodes:
                raise ValueError(f"episodes.jsonl has {len(lines)} of {n_episodes} episodes")
            history.records = [json.loads(line) for line in lines]
            history.seconds = float(saved_policy.notes["seconds"])
            if saved_policy.notes["digest"] != history.compute_digest():
                raise ValueError(
                    "rounds.npz or episodes.jsonl does not match the digest saved with the policy"
                )
            policy.restore(saved_policy.arrays)
        except (OSError, KeyError, ValueError, TypeError, IndexError, RuntimeError) as error:
            raise CheckpointError(
                f"{folder.path} is damaged ({error}); remove the folder to start again"
            ) from error
        return history

    def stop(self) -> None:
        """Unlock the folder. A later call resumes from it."""
        if self.folder is not None:
            self.folder.release()

    def build_run(self) -> Run:
        """Return the history as a ``Run``."""
        arm, reward, regret, propensity = (
            self.history.concatenate(name) for name in _ROUND_COLUMNS
        )
        return Run(
            arm,
            reward,
            regret,
            propensity,
            self.history.records,
            self.history.seconds,
            self.phase.note,
        )


def _play_rounds(phase: Phase, rounds_by_domain: ByDomain, history: History) -> None:
    """Play the rounds of every domain in turn, and append them to the history.

    Logged rounds, and rounds with full feedback, are learned without a decision. The history of a
    round with full feedback has its best arm.
    """
    policy = phase.policy
    domain_columns: list[tuple[AnyArray, ...]] = []
    for name, rounds in rounds_by_domain:
        domain_name = name or phase.domain_name
        if isinstance(rounds, Rounds):
            policy.update(**rounds.to_arguments(), domain=domain_name)
            policy.log_parts |= phase.domain.by_name[name].log_parts  # type: ignore[attr-defined]
            domain_columns.append(
                (
                    rounds.arms,
                    rounds.rewards,
                    np.full(len(rounds), np.nan),
                    rounds.known_propensities,
                )
            )
        elif phase.has_full_feedback:
            policy.learn_full(rounds.contexts, rounds.rewards, domain_name)
            no_regrets = np.full(len(rounds), np.nan)
            arms, rewards = rounds.rewards.argmax(axis=1), rounds.rewards.max(axis=1)
            domain_columns.append((arms, rewards, no_regrets, np.ones(len(rounds))))
        else:
            decision = policy.play(rounds.contexts, rounds.rewards, domain_name)
            domain_columns.append(
                (decision.arm, decision.reward, rounds.regret(decision.arm), decision.propensity)
            )
    columns = map(np.concatenate, zip(*domain_columns, strict=True))
    history.rounds_by_episode.append(dict(zip(_ROUND_COLUMNS, columns, strict=True)))


def _build_record(episode: int, history: History, metrics: dict[str, float]) -> dict[str, float]:
    """Return the record of the last episode: its number, the regret so far, its mean reward and
    metrics.
    """
    regret_before = history.records[-1]["regret"] if history.records else 0.0
    regrets = history.rounds_by_episode[-1]["regret"]
    total_regret = (
        None
        if regret_before is None or np.isnan(regrets).any()
        else regret_before + float(regrets.sum())
    )
    mean_reward = float(history.rounds_by_episode[-1]["reward"].mean())
    return {"episode": episode + 1, "regret": total_regret, "reward": mean_reward, **metrics}  # type: ignore[dict-item]


def _fit_transform(phase: Phase) -> None:
    """Fit the policy's transform to contexts of every domain of the phase, at most
    ``_MAX_SAMPLE_BYTES`` in total.
    """
    policy = phase.policy
    context_bytes = max(1, phase.domain.batch(0, 1, seed=phase.order_seed).nbytes)
    n_rows = min(len(phase.domain), max(2, _MAX_SAMPLE_BYTES // (2 * context_bytes)))
    n_rows = min(phase.n_episodes * phase.episode_length, n_rows)
    context_sets = (
        [phase.domain] if phase.target_contexts is None else [phase.domain, phase.target_contexts]
    )
    samples: dict[int, AnyArray] = {}
    for context_set, default_name in zip(context_sets, (phase.domain_name, "target"), strict=False):
        fraction = min(n_rows, len(context_set)) / len(context_set)
        for name, domain in context_set.by_name.items():
            sample = domain.batch(0, math.ceil(fraction * len(domain)), seed=phase.order_seed)
            samples[policy.domains.index(name or default_name)] = sample
    policy.prepare(*(samples[index] for index in sorted(samples)))
