"""Describe the rounds that a policy plays in training (``Phase``).

``build_source_phase`` checks the arguments of ``train``, and chooses the number of episodes if it is
not given.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daband.base._arguments import Progress, check_int
from daband.base._arrays import check_number
from daband.domains._contract import Contexts, LoggedDomain, RewardDomain
from daband.errors import InvalidInput
from daband.policies._policy import Policy
from daband.training._work_folder import as_json

#: A domain whose rounds are rewarded as they are played, or a log of such rounds.
LabelledDomain = RewardDomain | LoggedDomain
#: Pairs of a domain's name and its rounds or contexts. The name is None for a single source or
#: target.
ByDomain = list[tuple[str | None, Any]]
#: The default number of episodes.
_DEFAULT_EPISODES = 300
#: The maximum number of passes over a small source, if the number of episodes is not given.
_MAX_DEFAULT_PASSES = 5


@dataclass(frozen=True)
class Phase:
    """A phase of training: the rounds that a policy plays in one domain.

    The policy may observe unlabelled target contexts at the same time.
    """

    #: The policy, which is changed in place.
    policy: Policy
    #: The role of ``domain``: "source" or "target".
    domain_name: str
    #: The domain in which rounds are played.
    domain: LabelledDomain
    #: The unlabelled target contexts, or None.
    target_contexts: Contexts | None
    #: The number of episodes.
    n_episodes: int
    #: The number of rounds per episode.
    episode_length: int = 64
    #: The seed that determines the order of contexts; None for the policy's seed.
    seed: int | None = None
    #: The run's folder, or None.
    directory: str | Path | None = None
    #: Additional settings to store in ``config.json``, or None.
    config: Mapping[str, Any] | None = None
    #: The minimum number of seconds between two saves.
    save_every: float = 30.0
    #: Called after every episode with its record.
    progress: Progress | None = None
    #: The total number of rounds, if the last episode may be shorter; None if all episodes have the
    #: same length.
    n_rounds: int | None = None
    #: The text of ``Run.note``.
    note: str = ""

    def __post_init__(self) -> None:
        check_int("seed", self.order_seed, minimum=0)
        if not check_number("save_every", self.save_every) >= 0:
            raise InvalidInput(
                f"save_every must be a number of seconds >= 0, got {self.save_every!r}"
            )
        if self.config is not None:
            if not isinstance(self.config, Mapping):
                raise InvalidInput(f"config must be a mapping of settings, got {self.config!r}")
            as_json(self.config)

    @property
    def has_full_feedback(self) -> bool:
        """True if the policy learns the rewards of all arms."""
        return isinstance(self.domain, RewardDomain) and self.domain.full_feedback

    @property
    def order_seed(self) -> int:
        """The seed that determines the order of contexts."""
        return self.policy.seed if self.seed is None else self.seed

    def get_round_range(self, episode: int) -> tuple[int, int]:
        """Return the index of an episode's first round, and the index after its last round."""
        start = episode * self.episode_length
        stop = (episode + 1) * self.episode_length
        return start, stop if self.n_rounds is None else min(stop, self.n_rounds)

    def read_episode(self, episode: int) -> tuple[ByDomain, ByDomain]:
        """Return the rounds and the unlabelled target contexts of an episode, by domain.

        Rounds are shown again after the last one, target contexts are not.
        """
        start, stop = self.get_round_range(episode)
        rounds = self.domain.read_by_domain(start, stop, seed=self.order_seed)
        if self.target_contexts is None or start >= len(self.target_contexts):
            return rounds, []
        stop = min(stop, len(self.target_contexts))
        return rounds, self.target_contexts.read_by_domain(start, stop, seed=self.order_seed)

    def build_config(self) -> dict[str, Any]:
        """Return the content of ``config.json``."""
        training_settings = {
            "domain": self.domain_name,
            "episodes": self.n_episodes,
            "episode_length": self.episode_length,
            "rounds": self.n_rounds,
            "seed": self.order_seed,
            "data": self._compute_data_digest(),
        }
        policy_settings = {**self.policy.settings(), "name": self.policy.name}
        return {
            "policy": policy_settings,
            **(self.config or {}),
            "training": training_settings,
        }

    def _compute_data_digest(self) -> str:
        """Return a short digest of the domain's size and its first and last rounds.

        It is stored in ``config.json``, so that a folder cannot be resumed with other data.
        """
        n_rounds = self.get_round_range(self.n_episodes - 1)[1]
        digest = hashlib.sha256(f"{len(self.domain)} {self.domain.context_shape}".encode())
        for start in (0, max(0, n_rounds - 4)):
            rounds = self.domain.rounds(start, min(start + 4, n_rounds), seed=self.order_seed)
            digest.update(np.ascontiguousarray(rounds.contexts).tobytes())
            digest.update(np.ascontiguousarray(rounds.rewards).tobytes())
        return digest.hexdigest()[:16]


def build_source_phase(
    policy: Policy,
    source: LabelledDomain,
    target: Contexts | None,
    *,
    episodes: int | None = None,
    episode_length: int = 64,
    **options: Any,
) -> Phase:
    """Check the arguments of ``train``, and return the phase that it plays.

    ``options`` are further fields of ``Phase``.

    By default there are 300 episodes. A source with fewer rounds is shown again, up to five times
    in total. All rounds of a log are learned once, in longer episodes if there are many, and the
    last episode may be shorter. The same holds for all rows of a source with full feedback, unless
    the policy takes gradient steps. An episode is at most as long as the source.
    """
    note = ""
    n_rounds = None
    check_domains(policy, source, target)
    length = check_int("episode_length", episode_length, minimum=1)
    n_episodes = 0 if episodes is None else check_int("episodes", episodes, minimum=1)
    n_contexts = len(source)
    if (isinstance(source, LoggedDomain) and episodes is None) or (
        isinstance(source, RewardDomain) and source.full_feedback and not policy.learns_by_gradients
    ):
        n_rounds = n_contexts
        length = min(max(length, math.ceil(n_rounds / _DEFAULT_EPISODES)), n_rounds)
        n_episodes = math.ceil(n_rounds / length)
        note = f"each of the source's {n_contexts:,} contexts is shown once"
    elif episodes is None:
        n_available = min(_DEFAULT_EPISODES * length, _MAX_DEFAULT_PASSES * n_contexts)
        length = min(length, n_available)
        n_episodes = n_available // length
        if n_contexts < _DEFAULT_EPISODES * length:
            n_shown = n_episodes * length
            times = math.ceil(n_shown / n_contexts)
            times_text = "once" if times == 1 else f"{times} times"
            note = (
                f"the source's {n_contexts:,} contexts are shown {times_text}: {n_shown:,} rounds"
            )
    elif isinstance(source, LoggedDomain) and n_episodes * length > n_contexts:
        raise InvalidInput(
            f"{n_episodes} episodes of {length} are {n_episodes * length:,} rounds, but the log has"
            f" {n_contexts:,}; a logged round is learned once, so use fewer episodes, or the"
            " default, which learns all rounds"
        )
    return Phase(
        policy,
        "source",
        source,
        target,
        n_episodes,
        length,
        n_rounds=n_rounds,
        note=note,
        **options,
    )


def check_unlabelled(target: Contexts | None) -> None:
    """Raise an error if ``target`` does not consist of contexts without rewards; None is
    accepted.
    """
    if target is not None and (
        not isinstance(target, Contexts) or isinstance(target, LabelledDomain)
    ):
        type_name = type(target).__name__
        raise InvalidInput(
            f"target must be contexts without rewards, e.g. pair.target, got {type_name}"
        )


def check_domains(
    policy: Policy, domain: LabelledDomain, target: Contexts | None, role: str = "source"
) -> None:
    """Raise an error if the domain or the target contexts do not match the policy.

    ``role`` is the name of the argument ``domain`` in errors, "source" or "target".
    """
    if not isinstance(policy, Policy):
        raise InvalidInput(f"policy must be a daband policy, got {policy!r}")
    if not isinstance(domain, LabelledDomain):
        raise InvalidInput(
            f"{role} must be a RewardDomain or LoggedDomain (pair.source), got"
            f" {type(domain).__name__}"
        )
    check_unlabelled(target)
    for name, contexts in ((role, domain), ("target", target)):
        if contexts is not None and tuple(contexts.context_shape) != policy.context_shape:
            raise InvalidInput(
                f"{name} must have contexts of shape {policy.context_shape}, got"
                f" {tuple(contexts.context_shape)}"
            )
    if domain.n_arms != policy.n_arms:
        raise InvalidInput(
            f"{role} must have {policy.n_arms} arms, as the policy has, got {domain.n_arms}"
        )
