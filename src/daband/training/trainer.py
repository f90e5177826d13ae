"""A run under way: an episode is played, the policy adapts, the episode is closed and now and then saved."""

from __future__ import annotations

import hashlib
import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from daband.arrays import AnyArray, FloatArray, IntArray
from daband.domains import Contexts, LoggedDomain, LoggedRounds, RewardDomain, Rounds
from daband.errors import InvalidInput
from daband.evaluation.bound import LiveBound
from daband.evaluation.collapse import CollapseWarning, CollapseWatch
from daband.linear import Decision
from daband.policies import Policy, RewardedDecision
from daband.policies.propensities import resolve_weighting
from daband.training.prefetch import Prefetcher
from daband.training.run_folder import History, RunFolder

__all__ = ["Phase", "Progress", "Run", "Trainer", "check_training", "check_weighting", "order_seed"]

_PREVIEW_BYTES = 1 << 30
_SAVES_APART = 20.0
"""Between two saves pass at least so many times what a save takes: a long run has more to write each time, and yet
saving stays below a twentieth of it."""
Progress = Callable[[dict[str, float]], None]


@dataclass(frozen=True)
class Run:
    """What a run did in the domain where it was played: a row per round, a record per episode.

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

    def __repr__(self) -> str:
        regret = "" if np.isnan(self.total_regret) else f", regret {self.total_regret:,.4g}"
        mean = f"mean reward {self.reward.mean():.4g}" if self.rounds else "nothing"
        return (
            f"<Run of {self.rounds:,} rounds in {len(self.episodes):,} episodes: {mean}{regret}, {self.seconds:,.1f} s>"
        )

    @property
    def rounds(self) -> int:
        """How many rounds were played."""
        return len(self.arm)

    @property
    def total_regret(self) -> float:
        """The sum of expected regrets; NaN where the domain cannot tell."""
        return float(self.regret.sum())


@dataclass(frozen=True)
class Phase:
    """Rounds played in one domain, while contexts of the other may be unlabelled."""

    domain_name: str
    domain: RewardDomain | LoggedDomain
    unlabelled: Contexts | None
    episodes: int
    episode_length: int
    seed: int
    rounds: int | None = None
    propensity_weighting: str | None = None
    prior_trust: float | str = 1.0
    """How much what the policy has learned before counts from the first round on (``Policy.trust_prior``)."""

    def bounds(self, episode: int) -> tuple[int, int]:
        """The first round of an episode and the first behind it."""
        start, stop = episode * self.episode_length, (episode + 1) * self.episode_length
        return start, stop if self.rounds is None else min(stop, self.rounds)

    @property
    def prefetches(self) -> bool:
        """Whether the next episode may be read while this one is played."""
        return self.domain.prefetches or (self.unlabelled is not None and self.unlabelled.prefetches)

    def read(self, episode: int) -> tuple[Rounds | LoggedRounds, AnyArray | None]:
        """The rounds of an episode, and the contexts of the other domain that go with it, if any."""
        start, stop = self.bounds(episode)
        rounds = self.domain.rounds(start, stop, seed=self.seed)
        if self.unlabelled is None or start >= self.unlabelled.rounds_available:
            return rounds, None
        return rounds, self.unlabelled.batch(start, min(stop, self.unlabelled.rounds_available), seed=self.seed)

    def settings(self) -> dict[str, Any]:
        """What ``config.json`` says of it."""
        weighting = {"propensity_weighting": self.propensity_weighting} if self.propensity_weighting else {}
        return {
            **weighting,
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


class Trainer:
    """The state of one run. For each episode the caller calls ``play``, adapts the policy, and calls ``close``."""

    def __init__(
        self,
        policy: Policy,
        phase: Phase,
        directory: str | Path | None,
        config: Mapping[str, Any] | None,
        save_every: float,
        progress: Progress | None,
    ) -> None:
        self.policy, self.phase, self.save_every, self.progress = policy, phase, save_every, progress
        self.folder = None if directory is None else RunFolder(directory)
        self.history = History()
        if self.folder is not None:
            try:
                settings = {"policy": {**policy.settings(), "name": policy.name}, **(config or {})}
                self.folder.claim(
                    lambda episodes: {**settings, "training": replace(phase, episodes=episodes).settings()},
                    phase.episodes,
                )
                self._trust_prior()  # only now: a folder that is refused must leave the policy as it was
                self.history = self.folder.resume(policy)
                if self.history.episodes and policy.transform is not None and not policy.transform.fitted:
                    raise InvalidInput(
                        f"{directory} holds a run whose transform the file cannot hold; pass the fitted transform, as "
                        "what was learned rests on it"
                    )
                self._fit_transform()
            except BaseException:
                self.folder.release()
                raise
        else:
            self._trust_prior()
        self._fit_transform()
        self._since = self._saved = time.perf_counter()
        self._beside = 1
        self._apart = save_every
        self._watch = CollapseWatch()
        for record in self.history.episodes:  # warnings given before an interruption are not repeated
            self._watch.observe(record)
        self._material = Prefetcher(phase.read, episodes=phase.episodes, wanted=phase.prefetches)
        self._played: RewardedDecision | None = None
        self._unlabelled: AnyArray | None = None

    def _trust_prior(self) -> None:
        if self.phase.prior_trust != 1.0:
            self.policy.trust_prior(self.phase.prior_trust)

    def _fit_transform(self) -> None:
        if not self.policy.prepared:
            _prepare(self.policy, self.phase)

    @property
    def episode(self) -> int:
        """The episode that comes next."""
        return len(self.history.episodes)

    @property
    def over(self) -> bool:
        """Whether every episode is closed."""
        return self.episode >= self.phase.episodes

    def play(self, *, since: float | None = None, beside: int = 1) -> None:
        """Play the rounds of the next episode, and show the policy the target contexts that go with it.

        Where ``beside`` runs take turns, an episode of all of them that began at ``since`` is shared: each has spent
        its part of the time, and saves as much more seldom.
        """
        self._since, self._beside = self._since if since is None else since, beside
        rounds, self._unlabelled = self._material.take(self.episode)
        in_units = self.policy.knows_reward_range  # else means of this episode are partly in another unit
        played = _play_episode(
            self.policy, rounds, self.phase.domain_name, self.history, self.phase.propensity_weighting
        )
        self._played = played if in_units else None
        if self._unlabelled is not None:
            self.policy.observe_target(self._unlabelled)

    def close(self, measured: dict[str, float]) -> None:
        """Write down the episode with what ``adapt`` measured."""
        history = self.history
        if measured and self._played is not None and self._unlabelled is not None:
            measured = {**measured, **_bound_so_far(self.policy, self._played, self._unlabelled, history, measured)}
        record = _record(self.episode, history, measured)
        for message in self._watch.observe(record):
            warnings.warn(message, CollapseWarning, stacklevel=4)
        history.episodes.append(record)
        now = time.perf_counter()
        history.seconds += (now - self._since) / self._beside
        self._since = now
        if self.folder is not None and (time.perf_counter() - self._saved >= self._apart or self.over):
            self.save()
        if self.progress is not None:
            self.progress(record)

    def save(self) -> None:
        """Write the episodes closed so far into the folder, if the run has one."""
        if self.folder is None:
            return
        begun = time.perf_counter()
        self.folder.save(self.policy, self.history)
        self._saved = time.perf_counter()
        if self.save_every > 0:
            self._apart = max(self.save_every, _SAVES_APART * self._beside * (self._saved - begun))

    def stop(self) -> None:
        """Cancel prefetching and release the folder; a later call resumes from it."""
        self._material.close()
        if self.folder is not None:
            self.folder.release()

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


def _bound_so_far(
    policy: Policy, played: RewardedDecision, unlabelled: AnyArray, history: History, measured: Mapping[str, float]
) -> dict[str, float]:
    """The observable terms of the target-regret bound, summed over all episodes up to this one.

    The bound is stated for rewards in [0, 1], so everything is converted from the user's units to that scale.
    """
    last = next((record for record in reversed(history.episodes) if "bound_rounds" in record), None)
    live = LiveBound(alpha=float(policy.settings().get("alpha", 0.0)), last_record=last)
    target = policy.decide(unlabelled, "target", rule="ucb")
    low, high = policy.reward_range
    return live.add(
        source=_unit_scale(played, low, high),
        reward=(played.reward - low) / (high - low),
        regret=history.regret[-1][-len(played.arm) :] / (high - low),
        target=_unit_scale(target, low, high),
        accuracy=measured.get("discriminator_accuracy"),
    )


def _unit_scale(decision: Decision, low: float, high: float) -> Decision:
    """Decisions whose means and widths are in the user's units, with both scaled as if rewards lay in [0, 1]."""
    return Decision(
        decision.arm, decision.propensity, (decision.mean - low) / (high - low), decision.width / (high - low)
    )


def _play_episode(
    policy: Policy, rounds: Rounds | LoggedRounds, domain_name: str, history: History, weighting: str | None
) -> RewardedDecision | None:
    played = None
    if isinstance(rounds, LoggedRounds):
        policy.update(
            rounds.contexts,
            rounds.arms,
            rounds.rewards,
            domain_name,
            propensity=rounds.propensities,
            propensity_weighting=weighting,
        )
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


def _prepare(policy: Policy, phase: Phase) -> None:
    """Fit the transform on the contexts the run will see, as many as fit in memory, labels unseen."""
    item = max(1, phase.domain.batch(0, 1, seed=phase.seed).nbytes)
    n = min(phase.episodes * phase.episode_length, len(phase.domain), max(2, _PREVIEW_BYTES // (2 * item)))
    batches = [phase.domain.batch(0, n, seed=phase.seed)]
    if phase.unlabelled is not None:
        batches.append(phase.unlabelled.batch(0, min(n, len(phase.unlabelled)), seed=phase.seed))
    policy.prepare(*batches)


def check_weighting(policy: Policy, source: RewardDomain | LoggedDomain, propensity_weighting: str | None) -> None:
    """Refuse a weighting by propensities that the policy has not, or of a source that is no log."""
    if propensity_weighting is None:
        return
    resolve_weighting(propensity_weighting, policy.propensity_weightings, policy.name)
    if not isinstance(source, LoggedDomain):
        raise InvalidInput("propensity_weighting is for a source that is a log, and this one pays any arm")


def check_training(
    policy: Policy,
    source: RewardDomain | LoggedDomain,
    target: Contexts | None,
    episodes: int,
    episode_length: int,
    what: str = "source",
) -> None:
    """Refuse what cannot be trained: ``source``, called ``what`` in the message, must fit the policy and be enough."""
    if not isinstance(policy, Policy):
        raise InvalidInput(f"policy must be a daband policy, got {policy!r}")
    for name, value in (("episodes", episodes), ("episode_length", episode_length)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidInput(f"{name} must be a whole number >= 1, got {value!r}")
    if not isinstance(source, RewardDomain | LoggedDomain):
        raise InvalidInput(f"source must be a RewardDomain or LoggedDomain (pair.source), got {type(source).__name__}")
    if target is not None and (not isinstance(target, Contexts) or isinstance(target, RewardDomain | LoggedDomain)):
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
            + (f"at most episodes={fitting}" if fitting else f"a shorter episode_length than {episode_length}")
            + f", or build the pair with passes={math.ceil(episodes * episode_length / len(source))}, so that contexts "
            "are shown again (on the command line --set episodes=... or --set pair_options.passes=...)"
        )


def order_seed(policy: Policy, seed: int | None) -> int:
    """The seed of the order in which contexts are seen: the policy's own by default."""
    if seed is None:
        return policy.seed
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InvalidInput(f"seed must be a whole number >= 0, got {seed!r}")
    return int(seed)
