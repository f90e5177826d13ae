"""The state of one run: an episode is played, the policy adapts, the episode is closed and, at intervals, saved.

In a run's folder, ``config.json`` has the settings, ``rounds.npz`` and ``episodes.jsonl`` the history, and
``policy.safetensors`` the policy after the last saved episode. The policy is written last and names its episode. So
after a crash between two writes the other files may be longer than needed, and the extra rounds are played again with
the same result. The policy file also has a digest of the rounds and episodes up to its own: a changed bit is an error.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from daband._arguments import check_int
from daband._arrays import AnyArray, FloatArray, IntArray, checked_number
from daband._files import read_bytes, read_npz, write_npz, write_text
from daband.domains._contract import Contexts, LoggedDomain, LoggedRounds, RewardDomain
from daband.errors import CheckpointError, InvalidInput
from daband.evaluation._collapse_watch import CollapseWarning, CollapseWatch
from daband.evaluation._regret_bound import LiveBound
from daband.linear._exploration import Decision, join_decisions
from daband.policies._checkpoints import read_checkpoint
from daband.policies._incoming_rounds import log_weights
from daband.policies._policy import Policy, RewardedDecision
from daband.training._work_folder import Folder, as_json

#: A domain whose rounds are rewarded as they are played, or a log of such rounds.
LabelledDomain = RewardDomain | LoggedDomain
Progress = Callable[[dict[str, float]], None]
#: Rounds or contexts of some domains, each with its domain's name; None for the only source or the only target.
ByDomain = list[tuple[str | None, Any]]
_PREVIEW_BYTES = 1 << 30
_COLUMNS = ("arm", "reward", "regret", "propensity")
_DEFAULT_EPISODES = 300
_MOST_PASSES = 5


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """The settings of one run: the arguments of ``train``, which documents them."""

    episodes: int | None = None
    episode_length: int = 64
    seed: int | None = None
    directory: str | Path | None = None
    config: Mapping[str, Any] | None = None
    save_every: float = 30.0
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if not checked_number("save_every", self.save_every) >= 0:
            raise InvalidInput(f"save_every must be a number of seconds >= 0, got {self.save_every!r}")
        if self.config is not None:
            if not isinstance(self.config, Mapping):
                raise InvalidInput(f"config must be a mapping of settings, got {self.config!r}")
            as_json(self.config)

    def order_seed(self, policy: Policy) -> int:
        """Return the seed of the order of contexts: the policy's seed by default."""
        return policy.seed if self.seed is None else check_int("seed", self.seed, minimum=0)


@dataclass(frozen=True)
class Run:
    """The history of a run in the domain where it was played: a row per round, a record per episode.

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> policy = daband.LinUCB.for_pair(pair, seed=0)
    >>> run = daband.train(policy, source=pair.source, target=pair.target, episodes=2, episode_length=8)
    >>> run.rounds, run.reward.shape, len(run.episodes)
    (16, (16,), 2)
    """

    arm: IntArray
    reward: FloatArray
    regret: FloatArray
    propensity: FloatArray
    episodes: list[dict[str, float]]
    seconds: float
    #: A default that was chosen for the caller, such as the number of passes over a small source; may be empty.
    note: str = ""

    def __repr__(self) -> str:
        regret = "" if np.isnan(self.total_regret) else f", regret {self.total_regret:,.4g}"
        mean = f"mean reward {self.reward.mean():.4g}" if self.rounds else "nothing"
        return (
            f"<Run of {self.rounds:,} rounds in {len(self.episodes):,} episodes: {mean}{regret}, {self.seconds:,.1f} s"
            f"{self.note and f'; {self.note}'}>"
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
    """The history so far: a row per round, a record per episode, and the seconds it took."""

    #: The columns of each episode's rounds.
    rounds: list[dict[str, AnyArray]] = field(default_factory=list)
    episodes: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0

    def column(self, name: str) -> AnyArray:
        """Return one column of all rounds."""
        empty = np.zeros(0, np.int64 if name == "arm" else np.float64)
        return np.concatenate([piece[name] for piece in self.rounds]) if self.rounds else empty

    def lines(self) -> str:
        """Return the records in the format of ``episodes.jsonl``."""
        return "".join(json.dumps(record, sort_keys=True) + "\n" for record in self.episodes)

    def digest(self) -> str:
        """Return a digest of all rounds and records."""
        mark = hashlib.sha256(self.lines().encode())
        for name in _COLUMNS:
            mark.update(np.ascontiguousarray(self.column(name)).tobytes())
        return mark.hexdigest()


@dataclass(frozen=True)
class Phase:
    """Rounds that a policy plays in one domain, optionally with unlabelled contexts of the other."""

    policy: Policy
    domain_name: str
    domain: LabelledDomain
    unlabelled: Contexts | None
    episodes: int
    seed: int
    settings: TrainSettings = field(default_factory=TrainSettings)
    rounds: int | None = None
    note: str = ""

    @property
    def episode_length(self) -> int:
        """Rounds of an episode."""
        return self.settings.episode_length

    def bounds(self, episode: int) -> tuple[int, int]:
        """Return the first round of an episode and the first round after it."""
        start, stop = episode * self.episode_length, (episode + 1) * self.episode_length
        return start, stop if self.rounds is None else min(stop, self.rounds)

    def read(self, episode: int) -> tuple[ByDomain, ByDomain]:
        """Return the rounds of an episode, and its unlabelled contexts, if any, domain by domain."""
        start, stop = self.bounds(episode)
        rounds = self.domain.by_domain(start, stop, seed=self.seed)
        if self.unlabelled is None or start >= self.unlabelled.rounds_available:
            return rounds, []
        return rounds, self.unlabelled.by_domain(start, min(stop, self.unlabelled.rounds_available), seed=self.seed)

    def config(self) -> dict[str, Any]:
        """Return the content of ``config.json``."""
        training = {
            "domain": self.domain_name, "episodes": self.episodes, "episode_length": self.episode_length,
            "rounds": self.rounds, "seed": self.seed, "data": self._fingerprint(),
        }  # fmt: skip
        policy = {**self.policy.settings(), "name": self.policy.name}
        return {"policy": policy, **(self.settings.config or {}), "training": training}

    def _fingerprint(self) -> str:
        """Return a short digest of the data, so that a folder with other data is not used for this run."""
        last = self.bounds(self.episodes - 1)[1]
        mark = hashlib.sha256(f"{len(self.domain)} {self.domain.context_shape}".encode())
        for start in (0, max(0, last - 4)):
            rounds = self.domain.rounds(start, min(start + 4, last), seed=self.seed)
            mark.update(np.ascontiguousarray(rounds.contexts).tobytes())
            mark.update(np.ascontiguousarray(rounds.rewards).tobytes())
        return mark.hexdigest()[:16]


class Trainer:
    """The state of one run. For each episode the caller calls ``play``, adapts the policy, and calls ``close``."""

    def __init__(self, phase: Phase) -> None:
        policy = phase.policy
        self.policy, self.phase = policy, phase
        settings = phase.settings
        self.progress = settings.progress
        self.folder = None if settings.directory is None else Folder(settings.directory, save_every=settings.save_every)
        self.history = History()
        try:
            if self.folder is not None:
                self.folder.claim("config.json", phase.config())
                self.history = self._resume(self.folder)
            if not policy.prepared:
                _prepare(phase)
        except BaseException:
            if self.folder is not None:
                self.folder.release()
            raise
        policy.plan(phase.episodes)
        self._since = time.perf_counter()
        self._beside = 1
        self._watch = CollapseWatch()
        for record in self.history.episodes:  # warnings given before an interruption are not repeated
            self._watch.observe(record)
        self._played: RewardedDecision | None = None
        self._unlabelled: ByDomain = []

    @property
    def episode(self) -> int:
        """The next episode."""
        return len(self.history.episodes)

    @property
    def over(self) -> bool:
        """True if every episode is closed."""
        return self.episode >= self.phase.episodes

    def play(self, *, since: float | None = None, beside: int = 1) -> None:
        """Play the rounds of the next episode, and show the policy its target contexts.

        If ``beside`` runs take turns, they divide the time of an episode that started at ``since``, and save
        proportionally less often.
        """
        self._since, self._beside = self._since if since is None else since, beside
        rounds, self._unlabelled = self.phase.read(self.episode)
        self._played = _play_episode(self.phase, rounds, self.history)
        for name, contexts in self._unlabelled:
            self.policy.observe_target(contexts, name)

    def close(self, measured: dict[str, float] | Exception) -> None:
        """Record the episode with the numbers that ``adapt`` measured, or raise its exception."""
        if isinstance(measured, Exception):
            raise measured
        history = self.history
        if measured and self._played is not None and self._unlabelled:
            measured = {**measured, **_bound_so_far(self.policy, self._played, self._unlabelled, history, measured)}
        record = _record(self.episode, history, measured)
        for message in self._watch.observe(record):
            warnings.warn(message, CollapseWarning, stacklevel=4)
        history.episodes.append(record)
        now = time.perf_counter()
        history.seconds += (now - self._since) / self._beside
        self._since = now
        if self.folder is not None and (self.folder.due() or self.over):
            self.save()
        if self.progress is not None:
            self.progress(record)

    def save(self) -> None:
        """Write the history into the folder, if the run has one, and then the policy."""
        if self.folder is None:
            return
        begun = time.perf_counter()
        columns = {name: self.history.column(name) for name in _COLUMNS}
        write_npz(self.folder.path / "rounds.npz", columns)
        write_text(self.folder.path / "episodes.jsonl", self.history.lines())
        reached = {"episodes": str(len(self.history.episodes)), "rounds": str(len(columns["arm"]))}
        notes = {**reached, "seconds": repr(self.history.seconds), "digest": self.history.digest()}
        self.policy.save(self.folder.path / "policy.safetensors", notes=notes)
        self.folder.note_save(begun, turns=self._beside)

    def _resume(self, folder: Folder) -> History:
        """Restore the policy of the last saved episode and return the history up to it.

        A new folder saves the policy at once, so that a run always resumes from a known state. This also holds for a
        caller who tries again after an interruption with a policy that has learned in the meantime.
        """
        policy, path = self.policy, folder.path / "policy.safetensors"
        history = History()
        if not os.path.lexists(path):
            self._beside = 1
            self.save()
            return history
        try:
            saved = read_checkpoint(path)
            rounds, episodes = int(saved.notes["rounds"]), int(saved.notes["episodes"])
            table = read_npz(folder.path / "rounds.npz")
            for name in _COLUMNS:
                if len(table[name]) < rounds:
                    raise ValueError(f"rounds.npz has {len(table[name])} of {rounds} rounds")
            history.rounds = [{name: table[name][:rounds] for name in _COLUMNS}]
            lines = read_bytes(folder.path / "episodes.jsonl").decode().splitlines()[:episodes]
            if len(lines) < episodes:
                raise ValueError(f"episodes.jsonl has {len(lines)} of {episodes} episodes")
            history.episodes = [json.loads(line) for line in lines]
            history.seconds = float(saved.notes["seconds"])
            if saved.notes["digest"] != history.digest():
                raise ValueError("rounds.npz or episodes.jsonl does not match the digest saved with the policy")
            policy.restore(saved.arrays)
        except (OSError, KeyError, ValueError, TypeError, IndexError, RuntimeError) as error:
            raise CheckpointError(f"{folder.path} is damaged ({error}); remove the folder to start anew") from error
        return history

    def stop(self) -> None:
        """Release the folder; a later call resumes from it."""
        if self.folder is not None:
            self.folder.release()

    def result(self) -> Run:
        """Return the history as a ``Run``."""
        arm, reward, regret, propensity = (self.history.column(name) for name in _COLUMNS)
        return Run(arm, reward, regret, propensity, self.history.episodes, self.history.seconds, self.phase.note)


def _bound_so_far(
    policy: Policy, played: RewardedDecision, unlabelled: ByDomain, history: History, measured: Mapping[str, float]
) -> dict[str, float]:
    """Return the observable terms of the target-regret bound, summed over all episodes up to this one.

    The bound is stated for rewards in [0, 1], so everything is converted from the user's units to that scale.
    """
    last = next((record for record in reversed(history.episodes) if "bound_rounds" in record), None)
    live = LiveBound(alpha=float(getattr(policy, "alpha", 0.0)), last_record=last)
    target = join_decisions([policy.decide(part, name or "target", rule="ucb") for name, part in unlabelled])
    low, high = policy.reward_moments.observed
    return live.add(
        source=_unit_scale(played, low, high),
        reward=(played.reward - low) / (high - low),
        regret=history.rounds[-1]["regret"][-len(played.arm) :] / (high - low),
        target=_unit_scale(target, low, high),
        accuracy=measured.get("discriminator_accuracy"),
    )


def _unit_scale(decision: Decision, low: float, high: float) -> Decision:
    """Return decisions with means and bonuses scaled from the user's units to rewards in [0, 1]."""
    return replace(decision, mean=(decision.mean - low) / (high - low), bonus=decision.bonus / (high - low))


def _play_episode(phase: Phase, episode: ByDomain, history: History) -> RewardedDecision | None:
    """Play the rounds of every domain in turn; rounds without a domain name are played in the phase's domain."""
    policy = phase.policy
    played: list[RewardedDecision] = []
    columns = []
    for name, rounds in episode:
        domain = name or phase.domain_name
        if isinstance(rounds, LoggedRounds):
            weights = log_weights(policy, rounds.propensities)
            policy.update(rounds.contexts, rounds.arms, rounds.rewards, domain, weights)
            columns.append((rounds.arms, rounds.rewards, np.full(len(rounds), np.nan), rounds.propensities))
        else:
            decision = policy.play(rounds.contexts, rounds.rewards, domain)
            columns.append((decision.arm, decision.reward, rounds.regret(decision.arm), decision.propensity))
            played.append(decision)
    history.rounds.append(dict(zip(_COLUMNS, map(np.concatenate, zip(*columns, strict=True)), strict=True)))
    return join_decisions(played) if played else None


def _record(episode: int, history: History, measured: dict[str, float]) -> dict[str, float]:
    before = history.episodes[-1]["regret"] if history.episodes else 0.0
    regret = history.rounds[-1]["regret"]
    total = None if before is None or np.isnan(regret).any() else before + float(regret.sum())
    reward = float(history.rounds[-1]["reward"].mean())
    return {"episode": episode + 1, "regret": total, "reward": reward, **measured}  # type: ignore[dict-item]


def _prepare(phase: Phase) -> None:
    """Fit the transform on the contexts the run will see, as many as fit in memory, without labels."""
    policy = phase.policy
    item = max(1, phase.domain.batch(0, 1, seed=phase.seed).nbytes)
    n = min(phase.episodes * phase.episode_length, len(phase.domain), max(2, _PREVIEW_BYTES // (2 * item)))
    both = [phase.domain] if phase.unlabelled is None else [phase.domain, phase.unlabelled]
    batches: dict[int, AnyArray] = {}
    for domain, called in zip(both, (phase.domain_name, "target"), strict=False):
        fraction = min(n, len(domain)) / len(domain)
        for name, part in domain.by_name.items():
            rows = part.batch(0, math.ceil(fraction * len(part)), seed=phase.seed)
            batches[policy.domains.index(name or called)] = rows
    policy.prepare(*(batches[number] for number in sorted(batches)))


def source_phase(policy: Policy, source: LabelledDomain, target: Contexts | None, settings: TrainSettings) -> Phase:
    """Return the checked phase that ``train`` plays. Without ``episodes``, a rule sets their number.

    The rule: 300 episodes. A source with fewer rounds is shown again, up to five times in all (a log once, as its
    rounds would be counted again). If even one episode is longer than the source, it is cut to the source's length.
    """
    note = ""
    check_domains(policy, source, target)
    length = check_int("episode_length", settings.episode_length, minimum=1)
    episodes = settings.episodes
    if episodes is None:
        source, episodes, length, note = _default_budget(source, length)
        settings = replace(settings, episode_length=length)
    else:
        check_int("episodes", episodes, minimum=1)
    fitting = source.rounds_available // length
    if episodes * length > source.rounds_available:
        raise InvalidInput(
            f"{episodes} episodes of {length} are {episodes * length} rounds, but the source has "
            f"{source.rounds_available} ({len(source)} contexts, {source.passes} pass(es)); ask for "
            + (f"at most episodes={fitting}" if fitting else f"a shorter episode_length than {length}")
            + f", or build the pair with passes={math.ceil(episodes * length / len(source))}, so that contexts "
            "are shown again (on the command line --set episodes=... or --set pair_options.passes=...)"
        )
    return Phase(policy, "source", source, target, episodes, settings.order_seed(policy), settings, note=note)


def _default_budget(source: Any, length: int) -> tuple[Any, int, int, str]:
    """Return the source with the default number of passes, the episodes, their length, and a line that reports it."""
    wanted = _DEFAULT_EPISODES * length
    if source.rounds_available >= wanted:
        return source, _DEFAULT_EPISODES, length, ""
    if not isinstance(source, LoggedDomain):
        passes = min(max(source.passes, _MOST_PASSES), math.ceil(wanted / len(source)))
        if passes > source.passes:
            source = copy.copy(source)
            source.passes = passes
    length = min(length, source.rounds_available)
    episodes = min(_DEFAULT_EPISODES, source.rounds_available // length)
    times = "once" if source.passes == 1 else f"{source.passes} times"
    note = f"the source's {len(source):,} contexts are shown {times}: {episodes * length:,} rounds"
    return source, episodes, length, note


def check_unlabelled(target: Contexts | None) -> None:
    """Raise if ``target`` is not a stream of contexts, or has rewards."""
    if target is not None and (not isinstance(target, Contexts) or isinstance(target, LabelledDomain)):
        kind = type(target).__name__
        raise InvalidInput(f"target must be a stream of contexts without rewards, e.g. pair.target, got {kind}")


def check_domains(policy: Policy, domain: LabelledDomain, target: Contexts | None, what: str = "source") -> None:
    """Raise if a domain, called ``what`` in messages, or the unlabelled contexts do not fit the policy."""
    if not isinstance(policy, Policy):
        raise InvalidInput(f"policy must be a daband policy, got {policy!r}")
    if not isinstance(domain, LabelledDomain):
        raise InvalidInput(f"{what} must be a RewardDomain or LoggedDomain (pair.source), got {type(domain).__name__}")
    check_unlabelled(target)
    for name, contexts in ((what, domain), ("target", target)):
        if contexts is not None and tuple(contexts.context_shape) != policy.context_shape:
            raise InvalidInput(
                f"{name} has contexts of shape {tuple(contexts.context_shape)}, the policy takes {policy.context_shape}"
            )
    if domain.n_arms != policy.n_arms:
        raise InvalidInput(f"{what} has {domain.n_arms} arms, the policy {policy.n_arms}")
