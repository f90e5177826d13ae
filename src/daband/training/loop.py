"""The loop of one run: source rounds, unlabelled target contexts, gradient steps; and continued training."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from daband.arrays import checked_number
from daband.domains import Contexts, LoggedDomain, RewardDomain
from daband.errors import InvalidInput
from daband.policies import Policy
from daband.policies.input_checks import check_prior_trust
from daband.training.stacked import Training, can_train_stacked, train_stacked
from daband.training.stop_signals import stop_signals_deferred
from daband.training.trainer import Phase, Progress, Run, Trainer, check_training, check_weighting, order_seed

__all__ = ["continue_on_target", "train"]


@overload
def train(
    policy: Policy,
    *,
    source: RewardDomain | LoggedDomain,
    target: Contexts | None = None,
    episodes: int = 300,
    episode_length: int = 64,
    seed: int | None = None,
    propensity_weighting: str | None = None,
    directory: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    save_every: float = 30.0,
    progress: Progress | None = None,
) -> Run: ...


@overload
def train(
    policy: Sequence[Policy],
    *,
    source: RewardDomain | LoggedDomain,
    target: Contexts | None = None,
    episodes: int = 300,
    episode_length: int = 64,
    seed: int | None = None,
    propensity_weighting: str | None = None,
    directory: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    save_every: float = 30.0,
    progress: Progress | None = None,
) -> list[Run]: ...


def train(
    policy: Policy | Sequence[Policy],
    *,
    source: RewardDomain | LoggedDomain,
    target: Contexts | None = None,
    episodes: int = 300,
    episode_length: int = 64,
    seed: int | None = None,
    propensity_weighting: str | None = None,
    directory: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    save_every: float = 30.0,
    progress: Progress | None = None,
) -> Run | list[Run]:
    """Train a policy on source rewards and unlabelled target contexts, or several: a committee for ``assess``.

    Args:
        policy: changed in place. Of several, neural ones of one shape and recipe are trained in a stack, with common
            gradient steps; all others one after another. Each sees the contexts in the order of its own seed.
        source: where rounds are played and paid (or a log of such rounds).
        target: contexts of the target. There is no way to give rewards of it here.
        episodes: how many episodes.
        episode_length: rounds of an episode; the policy adapts after each.
        seed: fixes the order in which contexts are seen; the policy's own seed by default.
        propensity_weighting: how the propensities of a log are used, as in ``Policy.update``.
        directory: keep the run there, of several each in a folder ``0``, ``1``, ... of it. Called again with the same
            settings, a run that was killed resumes and ends with the same result, bit for bit, as one left alone. With
            more ``episodes`` a finished run is extended, to what as many at once would have given (a transform stays as
            it was fitted, and so does the standardisation of LinUCB beside a network). Ctrl-C and SIGTERM wait for the
            end of the episode and save it; a second one stops at once. A folder is used by one process at a time.
        config: more settings to write down in the folder's ``config.json``.
        save_every: seconds between saves into ``directory``, more where a save takes long; 0 saves every episode.
        progress: called after every episode with its record.

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> policy = daband.LinUCB.for_pair(pair, seed=0)
    >>> run = daband.train(policy, source=pair.source, target=pair.target, episodes=2, directory="run")
    >>> policy.rounds_learned
    128
    """
    if isinstance(policy, Sequence) and not isinstance(policy, Policy | str):
        return _train_several(
            [
                Training(
                    one, source, target, episodes, episode_length, seed, place, config, progress, propensity_weighting
                )
                for one, place in zip(policy, _places(directory, len(policy)), strict=True)
            ],
            save_every,
        )
    check_training(policy, source, target, episodes, episode_length)
    check_weighting(policy, source, propensity_weighting)
    phase = Phase(
        "source",
        source,
        target,
        episodes,
        episode_length,
        order_seed(policy, seed),
        propensity_weighting=propensity_weighting,
    )
    return _run(policy, phase, directory, config, save_every, progress)


def _places(directory: str | Path | None, n: int) -> list[Path | None]:
    return [None if directory is None else Path(directory) / str(index) for index in range(n)]


def _train_several(trainings: Sequence[Training], save_every: float) -> list[Run]:
    """Stacked where that can be, and then a run that fails raises after the others are done; else in turn."""
    if not trainings:
        raise InvalidInput("policy is an empty list; give at least one")
    for index, one in enumerate(trainings):
        if not isinstance(one.policy, Policy):
            raise InvalidInput(f"policy[{index}] must be a daband policy, got {one.policy!r}")
        if any(one.policy is other.policy for other in trainings[:index]):
            raise InvalidInput(f"policy[{index}] is there twice; a committee needs policies of different seeds")
    if can_train_stacked([one.policy for one in trainings]):
        found = train_stacked(trainings, save_every=save_every)
        for outcome in found:
            if isinstance(outcome, Exception):
                raise outcome
        return [outcome for outcome in found if isinstance(outcome, Run)]
    for one in trainings:
        if one.directory is not None:
            Path(one.directory).mkdir(parents=True, exist_ok=True)
    return [
        train(
            one.policy,
            source=one.source,
            target=one.target,
            episodes=one.episodes,
            episode_length=one.episode_length,
            seed=one.seed,
            propensity_weighting=one.propensity_weighting,
            directory=one.directory,
            config=one.config,
            save_every=save_every,
            progress=one.progress,
        )
        for one in trainings
    ]


def continue_on_target(
    policy: Policy,
    *,
    target: RewardDomain | None,
    rounds: int = 1920,
    episode_length: int = 64,
    prior_trust: float | str | None = None,
    seed: int | None = None,
    directory: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    save_every: float = 30.0,
    progress: Progress | None = None,
) -> Run:
    """Continue training in the target once its rewards are available; the head start lowers cumulative regret.

    The policy updates by its own rule. What it learned in the source counts as ``prior_trust`` says. Fewer than
    ``rounds`` rounds are played where the target has fewer contexts; the last episode may be shorter than
    ``episode_length``.

    Args:
        policy: changed in place.
        target: the target with its rewards, e.g. ``pair.target_labelled``; contexts that evaluation does not use.
        rounds: how many rounds at most.
        episode_length: rounds of an episode; the policy adapts after each.
        prior_trust: how much a round of the source counts against one of the target: a factor from 0 to 1, or
            "adaptive", the best of several as target rewards tell (``Policy.trust_prior``), so that a bad hand-over
            recovers. By default "adaptive" where the policy has learned something and offers it, else 1.
        seed: fixes the order in which contexts are seen; the policy's own seed by default.
        directory: keep the phase there, as ``train`` does.
        config: more settings to write down in the folder's ``config.json``.
        save_every: seconds between saves into ``directory``, more where a save takes long; 0 saves every episode.
        progress: called after every episode with its record.

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> policy = daband.LinUCB.for_pair(pair, seed=0)
    >>> run = daband.continue_on_target(policy, target=pair.target_labelled, rounds=16, episode_length=8)
    >>> run.rounds
    16
    """
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise InvalidInput(f"rounds must be a whole number >= 1, got {rounds!r}")
    if not isinstance(target, RewardDomain):
        missing = ": this pair has no rewards of the target to continue on" if target is None else ""
        raise InvalidInput(
            f"target must be a domain that pays, e.g. pair.target_labelled, got {type(target).__name__}{missing}"
        )
    if isinstance(episode_length, bool) or not isinstance(episode_length, int) or episode_length < 1:
        raise InvalidInput(f"episode_length must be a whole number >= 1, got {episode_length!r}")
    rounds = min(rounds, target.rounds_available)
    check_training(policy, target, None, 1, min(episode_length, rounds), what="target")
    episodes = math.ceil(rounds / episode_length)
    if prior_trust is None:
        prior_trust = "adaptive" if policy.rounds_learned and policy.can_discount else 1.0
    check_prior_trust(prior_trust)
    if prior_trust != 1.0:
        policy.require_discounts()
    phase = Phase(
        "target",
        target,
        None,
        episodes,
        episode_length,
        order_seed(policy, seed),
        rounds,
        prior_trust=prior_trust,
    )
    return _run(policy, phase, directory, {**(config or {}), "prior_trust": prior_trust}, save_every, progress)


def _run(
    policy: Policy,
    phase: Phase,
    directory: str | Path | None,
    config: Mapping[str, Any] | None,
    save_every: float,
    progress: Progress | None,
) -> Run:
    if not checked_number("save_every", save_every) >= 0:
        raise InvalidInput(f"save_every must be a number of seconds >= 0, got {save_every!r}")
    _check_config(config)
    trainer = Trainer(policy, phase, directory, config, save_every, progress)
    with stop_signals_deferred(wanted=directory is not None) as request:
        try:
            while not trainer.over:
                trainer.play()
                trainer.close(policy.adapt())
                request.obey(trainer.save)
        finally:
            trainer.stop()
    return trainer.result()


def _check_config(config: Mapping[str, Any] | None) -> None:
    """Refuse settings that ``config.json`` cannot hold."""
    if config is None:
        return
    if not isinstance(config, Mapping):
        raise InvalidInput(f"config must be a mapping of settings, got {config!r}")
    try:
        json.dumps(dict(config))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"config must hold what JSON can: texts, numbers, lists and mappings ({error})") from None
