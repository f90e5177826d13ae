"""The loop of one run: rounds in the source, glimpses of the target, gradient steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daband.arrays import FloatArray, IntArray
from daband.domains import Contexts, EvaluationDomain, LoggedDomain, LoggedRounds, PayingDomain
from daband.errors import InvalidInput
from daband.policies import Policy
from daband.training.run_folder import History, RunFolder

__all__ = ["Run", "train"]

_PREVIEW_BYTES = 1 << 30
Progress = Callable[[dict[str, float]], None]


@dataclass(frozen=True)
class Run:
    """What a training run did in the source: a row per round, a record per episode."""

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
    def source_regret(self) -> float:
        """The sum of expected regrets; NaN where the source cannot tell."""
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
        save_every: seconds between saves into ``directory``.
        progress: called after every episode with its record.
    """
    _check(policy, source, target, episodes, episode_length)
    order_seed = policy.seed if seed is None else seed
    folder = None if directory is None else RunFolder(directory)
    history = History()
    if folder is not None:
        settings = {"policy": {**policy.settings(), "name": policy.name}, **(config or {})}
        loop = {"episodes": episodes, "episode_length": episode_length, "seed": order_seed}
        folder.claim({**settings, "training": loop})
        history = folder.resume(policy)
    if policy.transform is not None and not policy.transform.fitted:
        _prepare(policy, source, target, episodes * episode_length, order_seed)
    started = time.perf_counter() - history.seconds
    saved = time.perf_counter()
    for episode in range(len(history.episodes), episodes):
        start, stop = episode * episode_length, (episode + 1) * episode_length
        _play_episode(policy, source, start, stop, order_seed, history)
        if target is not None and start < target.rounds_available:
            policy.observe_target(target.batch(start, min(stop, target.rounds_available), seed=order_seed))
        measured = policy.adapt()
        record = _record(episode, history, measured)
        history.episodes.append(record)
        history.seconds = time.perf_counter() - started
        if folder is not None and (time.perf_counter() - saved >= save_every or episode == episodes - 1):
            folder.save(policy, history)
            saved = time.perf_counter()
        if progress is not None:
            progress(record)
    columns = (history.column("arm"), history.column("reward"), history.column("regret"), history.column("propensity"))
    return Run(*columns, history.episodes, history.seconds)


def _play_episode(
    policy: Policy, source: PayingDomain | LoggedDomain, start: int, stop: int, seed: int, history: History
) -> None:
    rounds = source.rounds(start, stop, seed=seed)
    if isinstance(rounds, LoggedRounds):
        policy.update(rounds.contexts, rounds.arms, rounds.rewards, "source")
        arm, reward, propensity = rounds.arms, rounds.rewards, rounds.propensities
        regret = np.full(len(arm), np.nan)
    else:
        played = policy.play(rounds.contexts, rounds.rewards, "source")
        arm, reward, propensity = played.arm, played.reward, played.propensity
        regret = rounds.regret(arm)
    history.arm.append(arm)
    history.reward.append(reward)
    history.regret.append(regret)
    history.propensity.append(propensity)


def _record(episode: int, history: History, measured: dict[str, float]) -> dict[str, float]:
    before = history.episodes[-1]["source_regret"] if history.episodes else 0.0
    regret = history.regret[-1]
    if history.episodes and len(history.regret) == 1:  # resumed: the first piece holds every round so far
        before = 0.0
    total = None if before is None or np.isnan(regret).any() else before + float(regret.sum())
    return {
        "episode": episode + 1,
        "source_regret": total,  # type: ignore[dict-item]
        "reward": float(history.reward[-1].mean()),
        **measured,
    }


def _prepare(
    policy: Policy, source: PayingDomain | LoggedDomain, target: Contexts | None, rounds: int, seed: int
) -> None:
    """Fit the transform on the contexts the run will see, as many as fit in memory, labels unseen."""
    item = max(1, source.batch(0, 1, seed=seed).nbytes)
    n = min(rounds, len(source), max(2, _PREVIEW_BYTES // (2 * item)))
    batches = [source.batch(0, n, seed=seed)]
    if target is not None:
        batches.append(target.batch(0, min(n, len(target)), seed=seed))
    policy.prepare(*batches)


def _check(
    policy: Policy,
    source: PayingDomain | LoggedDomain,
    target: Contexts | None,
    episodes: int,
    episode_length: int,
) -> None:
    for name, value in (("episodes", episodes), ("episode_length", episode_length)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidInput(f"{name} must be a whole number >= 1, got {value!r}")
    if not isinstance(source, PayingDomain | LoggedDomain):
        raise InvalidInput(f"source must be a domain that pays, e.g. pair.source, got {type(source).__name__}")
    if target is not None and (not isinstance(target, Contexts) or isinstance(target, PayingDomain | LoggedDomain)):
        raise InvalidInput(
            f"target must be a stream of contexts without rewards, e.g. pair.target, got {type(target).__name__}"
        )
    if isinstance(target, EvaluationDomain):
        raise InvalidInput("target must not be the evaluation domain: its rewards are for daband.evaluate alone")
    for what, domain in (("source", source), ("target", target)):
        if domain is not None and tuple(domain.context_shape) != policy.context_shape:
            raise InvalidInput(
                f"{what} has contexts of shape {tuple(domain.context_shape)}, the policy takes {policy.context_shape}"
            )
    if source.n_arms != policy.n_arms:
        raise InvalidInput(f"source has {source.n_arms} arms, the policy {policy.n_arms}")
    if episodes * episode_length > source.rounds_available:
        raise InvalidInput(
            f"{episodes} episodes of {episode_length} are {episodes * episode_length} rounds, but the source has "
            f"{source.rounds_available} ({len(source)} contexts, {source.passes} pass(es)); ask for at most "
            f"{source.rounds_available // episode_length} episodes, or for "
            f"passes={math.ceil(episodes * episode_length / len(source))}"
        )
