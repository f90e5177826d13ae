"""The loop of one run: rounds in the source, glimpses of the target, gradient steps; and its sequel in the target."""

from __future__ import annotations

import hashlib
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daband.arrays import AnyArray, FloatArray, IntArray
from daband.domains import Contexts, LoggedDomain, LoggedRounds, PayingDomain, Rounds
from daband.errors import InvalidInput
from daband.evaluation.bound import LiveBound, Seen
from daband.evaluation.diagnostics import CollapseWarning, CollapseWatch
from daband.policies import Played, Policy
from daband.training.ahead import ReadAhead
from daband.training.run_folder import History, RunFolder

__all__ = ["Run", "Training", "continue_on_target", "train", "train_together"]

_PREVIEW_BYTES = 1 << 30
_SAVES_APART = 20.0
"""Between two saves pass at least so many times what a save takes: a long run has more to write each time, and yet
saving stays below a twentieth of it."""
Progress = Callable[[dict[str, float]], None]


@dataclass(frozen=True)
class Run:
    """What a run did in the domain where it was played: a row per round, a record per episode."""

    arm: IntArray
    reward: FloatArray
    regret: FloatArray
    propensity: FloatArray
    episodes: list[dict[str, float]]
    seconds: float

    @property
    def rounds(self) -> int:
        """How many rounds were played."""
        return len(self.arm)

    @property
    def total_regret(self) -> float:
        """The sum of expected regrets; NaN where the domain cannot tell."""
        return float(self.regret.sum())


def train(
    policy: Policy,
    *,
    source: PayingDomain | LoggedDomain,
    target: Contexts | None = None,
    episodes: int = 300,
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
        source: where rounds are played and paid (or a log of such rounds).
        target: contexts of the target. There is no way to give rewards of it here.
        episodes: how many episodes.
        episode_length: rounds of an episode; the policy adapts after each.
        seed: fixes the order in which contexts are seen; the policy's own seed by default.
        directory: keep the run there. Called again with the same settings, a run that was killed goes on and ends with
            the same result, bit for bit, as one left alone.
        config: more settings to write down in the folder's ``config.json``.
        save_every: seconds between saves into ``directory``, more where a save takes long; 0 saves every episode.
        progress: called after every episode with its record.
    """
    _check(policy, source, target, episodes, episode_length)
    phase = _Phase("source", source, target, episodes, episode_length, _order_seed(policy, seed))
    return _run(policy, phase, directory, config, save_every, progress)


@dataclass(frozen=True)
class Training:
    """What ``train`` is told, for one of several runs that are trained together."""

    policy: Policy
    source: PayingDomain | LoggedDomain
    target: Contexts | None = None
    episodes: int = 300
    episode_length: int = 64
    seed: int | None = None
    directory: str | Path | None = None
    config: Mapping[str, Any] | None = None
    progress: Progress | None = None


def train_together(trainings: Sequence[Training], *, save_every: float = 30.0) -> list[Run | Exception]:
    """``train`` for several runs in step: rounds are played run by run, gradient steps are taken for all at once.

    On a GPU, where the number of operations and not their size is what a small network costs, many seeds then take
    little longer than one. Every run's result is what it is alone, up to rounding, and its folder can be gone on with
    alone. A run that fails leaves its exception in its place; the others go on.
    """
    from daband.policies.together import adapt_together, fits_together

    if not trainings:
        return []
    if not fits_together([training.policy for training in trainings]):
        raise InvalidInput("only neural policies of one shape and recipe can be trained together; train them in turn")
    courses = []
    for one in trainings:
        _check(one.policy, one.source, one.target, one.episodes, one.episode_length)
        seed = _order_seed(one.policy, one.seed)
        phase = _Phase("source", one.source, one.target, one.episodes, one.episode_length, seed)
        courses.append(_Course(one.policy, phase, one.directory, one.config, save_every, one.progress))
    failed: dict[int, Exception] = {}

    def going(index: int) -> bool:
        return index not in failed and not courses[index].over

    while unfinished := [index for index in range(len(courses)) if going(index)]:
        # Runs that were gone on with may be ahead: they wait.
        behind = min(courses[index].episode for index in unfinished)
        present = [index for index in unfinished if courses[index].episode == behind]
        for index in present:
            courses[index].play()
        for index, measured in zip(present, adapt_together([courses[i].policy for i in present]), strict=True):
            if isinstance(measured, Exception):
                failed[index] = measured
            else:
                courses[index].close(measured)
    return [failed[index] if index in failed else course.result() for index, course in enumerate(courses)]


def continue_on_target(
    policy: Policy,
    *,
    target: PayingDomain,
    rounds: int = 1920,
    episode_length: int = 64,
    seed: int | None = None,
    directory: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    save_every: float = 30.0,
    progress: Progress | None = None,
) -> Run:
    """Go on in the target once its rewards may be seen: the head start shows as lower cumulative regret there.

    The policy keeps what it learned in the source, and updates by its own rule. Fewer than ``rounds`` rounds are played
    where the target has fewer contexts; the last episode may be shorter than ``episode_length``.

    Args:
        policy: changed in place.
        target: the target with its rewards, e.g. ``pair.target_paying``; contexts that evaluation does not use.
        rounds: how many rounds at most.
        episode_length: rounds of an episode; the policy adapts after each.
        seed: fixes the order in which contexts are seen; the policy's own seed by default.
        directory: keep the phase there, as ``train`` does.
        config: more settings to write down in the folder's ``config.json``.
        save_every: seconds between saves into ``directory``, more where a save takes long; 0 saves every episode.
        progress: called after every episode with its record.
    """
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise InvalidInput(f"rounds must be a whole number >= 1, got {rounds!r}")
    if not isinstance(target, PayingDomain):
        raise InvalidInput(f"target must be a domain that pays, e.g. pair.target_paying, got {type(target).__name__}")
    rounds = min(rounds, target.rounds_available)
    _check(policy, target, None, 1, min(episode_length, rounds), what="target")
    episodes = math.ceil(rounds / episode_length)
    order_seed = _order_seed(policy, seed)
    phase = _Phase("target", target, None, episodes, episode_length, order_seed, rounds)
    return _run(policy, phase, directory, config, save_every, progress)


def _order_seed(policy: Policy, seed: int | None) -> int:
    if seed is None:
        return policy.seed
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InvalidInput(f"seed must be a whole number >= 0, got {seed!r}")
    return int(seed)


@dataclass(frozen=True)
class _Phase:
    """Rounds played in one domain, while contexts of the other may be glimpsed."""

    domain_name: str
    domain: PayingDomain | LoggedDomain
    glimpsed: Contexts | None
    episodes: int
    episode_length: int
    seed: int
    rounds: int | None = None

    def bounds(self, episode: int) -> tuple[int, int]:
        """The first round of an episode and the first behind it."""
        start, stop = episode * self.episode_length, (episode + 1) * self.episode_length
        return start, stop if self.rounds is None else min(stop, self.rounds)

    @property
    def reads_ahead(self) -> bool:
        """Whether the next episode may be read while this one is played."""
        return self.domain.reads_ahead or (self.glimpsed is not None and self.glimpsed.reads_ahead)

    def read(self, episode: int) -> tuple[Rounds | LoggedRounds, AnyArray | None]:
        """The rounds of an episode, and the contexts of the other domain that go with it, if any."""
        start, stop = self.bounds(episode)
        rounds = self.domain.rounds(start, stop, seed=self.seed)
        if self.glimpsed is None or start >= self.glimpsed.rounds_available:
            return rounds, None
        return rounds, self.glimpsed.batch(start, min(stop, self.glimpsed.rounds_available), seed=self.seed)

    def settings(self) -> dict[str, Any]:
        """What ``config.json`` says of it."""
        return {
            "domain": self.domain_name,
            "episodes": self.episodes,
            "episode_length": self.episode_length,
            "rounds": self.rounds,
            "seed": self.seed,
            "data": self._fingerprint(),
        }

    def _fingerprint(self) -> str:
        """A short mark of the data, so that a folder of other data is not taken for this run's."""
        last = self.bounds(self.episodes - 1)[1]
        mark = hashlib.sha256(f"{len(self.domain)} {self.domain.context_shape}".encode())
        for start in (0, max(0, last - 4)):
            rounds = self.domain.rounds(start, min(start + 4, last), seed=self.seed)
            mark.update(np.ascontiguousarray(rounds.contexts).tobytes())
            mark.update(np.ascontiguousarray(rounds.rewards).tobytes())
        return mark.hexdigest()[:16]


class _Course:
    """One run under way. An episode is played, then somebody lets the policy adapt, then it is closed."""

    def __init__(
        self,
        policy: Policy,
        phase: _Phase,
        directory: str | Path | None,
        config: Mapping[str, Any] | None,
        save_every: float,
        progress: Progress | None,
    ) -> None:
        self.policy, self.phase, self.save_every, self.progress = policy, phase, save_every, progress
        self.folder = None if directory is None else RunFolder(directory)
        self.history = History()
        if self.folder is not None:
            settings = {"policy": {**policy.settings(), "name": policy.name}, **(config or {})}
            self.folder.claim({**settings, "training": phase.settings()})
            self.history = self.folder.resume(policy)
        if policy.transform is not None and not policy.transform.fitted:
            _prepare(policy, phase)
        self._started = time.perf_counter() - self.history.seconds
        self._saved = time.perf_counter()
        self._apart = save_every
        self._watch = CollapseWatch()
        self._material = ReadAhead(phase.read, episodes=phase.episodes, wanted=phase.reads_ahead)
        self._played: Played | None = None
        self._glimpse: AnyArray | None = None

    @property
    def episode(self) -> int:
        """The episode that comes next."""
        return len(self.history.episodes)

    @property
    def over(self) -> bool:
        """Whether every episode is closed."""
        return self.episode >= self.phase.episodes

    def play(self) -> None:
        """Play the rounds of the next episode, and show the policy the target contexts that go with it."""
        rounds, self._glimpse = self._material.take(self.episode)
        self._played = _play_episode(self.policy, rounds, self.phase.domain_name, self.history)
        if self._glimpse is not None:
            self.policy.observe_target(self._glimpse)

    def close(self, measured: dict[str, float]) -> None:
        """Write down the episode with what ``adapt`` measured."""
        history = self.history
        if measured and self._played is not None and self._glimpse is not None:
            measured = {**measured, **_bound_so_far(self.policy, self._played, self._glimpse, history, measured)}
        record = _record(self.episode, history, measured)
        for message in self._watch.observe(record):
            warnings.warn(message, CollapseWarning, stacklevel=4)
        history.episodes.append(record)
        history.seconds = time.perf_counter() - self._started
        if self.folder is not None and (time.perf_counter() - self._saved >= self._apart or self.over):
            begun = time.perf_counter()
            self.folder.save(self.policy, history)
            self._saved = time.perf_counter()
            if self.save_every > 0:
                self._apart = max(self.save_every, _SAVES_APART * (self._saved - begun))
        if self.progress is not None:
            self.progress(record)

    def result(self) -> Run:
        """What happened."""
        history = self.history
        return Run(
            history.column("arm"),
            history.column("reward"),
            history.column("regret"),
            history.column("propensity"),
            history.episodes,
            history.seconds,
        )


def _run(
    policy: Policy,
    phase: _Phase,
    directory: str | Path | None,
    config: Mapping[str, Any] | None,
    save_every: float,
    progress: Progress | None,
) -> Run:
    course = _Course(policy, phase, directory, config, save_every, progress)
    while not course.over:
        course.play()
        course.close(policy.adapt())
    return course.result()


def _bound_so_far(
    policy: Policy, played: Played, glimpse: AnyArray, history: History, measured: Mapping[str, float]
) -> dict[str, float]:
    """The observable terms of the target-regret bound, summed over all episodes up to this one."""
    last = history.episodes[-1] if history.episodes else None
    live = LiveBound(alpha=float(policy.settings().get("alpha", 0.0)), last_record=last)
    target = policy.decide(glimpse, "target", rule="ucb")
    low, high = policy.reward_range
    return live.add(
        source=Seen(played.arm, played.mean, played.width),
        reward=(played.reward - low) / (high - low),
        regret=history.regret[-1][-len(played.arm) :],
        target=Seen(target.arm, target.mean, target.width),
        accuracy=measured.get("discriminator_accuracy"),
    )


def _play_episode(policy: Policy, rounds: Rounds | LoggedRounds, domain_name: str, history: History) -> Played | None:
    played = None
    if isinstance(rounds, LoggedRounds):
        policy.update(rounds.contexts, rounds.arms, rounds.rewards, domain_name)
        arm, reward, propensity = rounds.arms, rounds.rewards, rounds.propensities
        regret = np.full(len(arm), np.nan)
    else:
        played = policy.play(rounds.contexts, rounds.rewards, domain_name)
        arm, reward, propensity = played.arm, played.reward, played.propensity
        regret = rounds.regret(arm)
    history.arm.append(arm)
    history.reward.append(reward)
    history.regret.append(regret)
    history.propensity.append(propensity)
    return played


def _record(episode: int, history: History, measured: dict[str, float]) -> dict[str, float]:
    before = history.episodes[-1]["regret"] if history.episodes else 0.0
    regret = history.regret[-1]
    total = None if before is None or np.isnan(regret).any() else before + float(regret.sum())
    return {
        "episode": episode + 1,
        "regret": total,  # type: ignore[dict-item]
        "reward": float(history.reward[-1].mean()),
        **measured,
    }


def _prepare(policy: Policy, phase: _Phase) -> None:
    """Fit the transform on the contexts the run will see, as many as fit in memory, labels unseen."""
    item = max(1, phase.domain.batch(0, 1, seed=phase.seed).nbytes)
    n = min(phase.episodes * phase.episode_length, len(phase.domain), max(2, _PREVIEW_BYTES // (2 * item)))
    batches = [phase.domain.batch(0, n, seed=phase.seed)]
    if phase.glimpsed is not None:
        batches.append(phase.glimpsed.batch(0, min(n, len(phase.glimpsed)), seed=phase.seed))
    policy.prepare(*batches)


def _check(
    policy: Policy,
    source: PayingDomain | LoggedDomain,
    target: Contexts | None,
    episodes: int,
    episode_length: int,
    what: str = "source",
) -> None:
    if not isinstance(policy, Policy):
        raise InvalidInput(f"policy must be a daband policy, got {policy!r}")
    for name, value in (("episodes", episodes), ("episode_length", episode_length)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidInput(f"{name} must be a whole number >= 1, got {value!r}")
    if not isinstance(source, PayingDomain | LoggedDomain):
        raise InvalidInput(f"source must be a domain that pays, e.g. pair.source, got {type(source).__name__}")
    if target is not None and (not isinstance(target, Contexts) or isinstance(target, PayingDomain | LoggedDomain)):
        raise InvalidInput(
            f"target must be a stream of contexts without rewards, e.g. pair.target, got {type(target).__name__}"
        )
    for name, domain in ((what, source), ("target", target)):
        if domain is not None and tuple(domain.context_shape) != policy.context_shape:
            raise InvalidInput(
                f"{name} has contexts of shape {tuple(domain.context_shape)}, the policy takes {policy.context_shape}"
            )
    if source.n_arms != policy.n_arms:
        raise InvalidInput(f"{what} has {source.n_arms} arms, the policy {policy.n_arms}")
    fitting = source.rounds_available // episode_length
    if episodes * episode_length > source.rounds_available:
        raise InvalidInput(
            f"{episodes} episodes of {episode_length} are {episodes * episode_length} rounds, but the source has "
            f"{source.rounds_available} ({len(source)} contexts, {source.passes} pass(es)); ask for "
            + (f"at most {fitting} episodes" if fitting else f"a shorter episode_length than {episode_length}")
            + f", or for passes={math.ceil(episodes * episode_length / len(source))}"
        )
