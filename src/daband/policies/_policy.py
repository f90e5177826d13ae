"""What every policy can do, and what a method adds to it.

A policy *has* round ids, a reward scale, pending rounds and locks. A policy of one's own derives from ``Policy``,
implements five methods, and registers:

    @policies.register("mine")
    class Mine(Policy): ...

* ``_decide``: choose arms; change nothing.
* ``_learn``: learn a batch of rounds.
* ``_grow``: make room for one more arm.
* ``_state``, ``_restore``: everything learned, as arrays, and back.

They get contexts that are checked and transformed, the index of their domain (``Policy.domains`` has its name), and
rewards scaled to [0, 1]; they return means and widths on that scale. Further methods have a default that may be
replaced: ``_freeze`` (needed to export), ``_probabilities`` (needed where arms are drawn at random), ``_play``,
``_prepare``, ``_observe``, ``_adapt``, ``_trust_prior`` with ``can_discount``, ``_fade`` (needed for a half-life),
``_check_unit_rewards``, ``settings`` (extended where there are more).

Whatever arrives is checked in full before anything changes, so an error leaves a policy exactly as it was.

A policy may be shared by any number of threads. Two locks see to it. The *write lock* serialises everything that
changes a policy: ``update``, ``play``, ``observe_target``, ``adapt``, ``add_arm``, ``prepare``, ``save``. The *state
lock* is held for the moment in which learned statistics are read or changed, by default around ``_decide``, ``_learn``
and ``_play``. ``adapt`` holds the write lock alone, so ``select`` never waits for it. A forked process gets locks of
its own (``policies/thread_locks.py``).
"""

from __future__ import annotations

import copy
import math
from abc import ABC, ABCMeta, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from daband._arguments import RewardRange, check_available, checked_class_names, one_of, whole
from daband._arrays import (
    AnyArray,
    ArrayLike,
    BoolArray,
    FloatArray,
    IntArray,
    Mask,
    Weights,
    as_numpy,
    below,
    check_memory,
    checked_number,
)
from daband._domain_names import DomainNames
from daband._registry import Registry
from daband._shift import ShiftLike, as_shift
from daband._table_transform import TableTransform
from daband._tensor_files import FileFormat, read_tensor_file, read_tensor_header, write_tensor_file
from daband.errors import CheckpointError, DataError, InvalidInput, did_you_mean
from daband.linear._exploration import Decision, join_decisions
from daband.linear._kernels import kernels
from daband.linear._reward_model import cross_fitted_rewards, flat_features
from daband.linear._transforms import Transform, as_transform, build_transform, shift_transform, transform_settings
from daband.policies._incoming_rounds import (
    LARGEST_NORM,
    LARGEST_RAW_NORM,
    LARGEST_WEIGHT,
    PendingRounds,
    PlayedRounds,
    RoundIds,
    check_arms,
    check_contexts,
    check_prior_trust,
    check_propensities,
    check_rewards,
    check_seed,
    check_shape,
    pseudo_rewards,
    resolve_weighting,
    round_weights,
)
from daband.policies._pair_defaults import policy_for_pair, setting_defaults
from daband.policies._reward_scale import RewardScale
from daband.policies._thread_locks import Locks, defer_signals
from daband.serving._frozen_policy import FrozenParts, FrozenPolicy

# The file a policy is saved in: safetensors with a format version and a digest. Reading one runs no code.
#
# The header holds the policy's name and settings and the caller's notes as JSON; the tensors hold what was learned. See
# ``daband._tensor_files`` for the digest.


CHECKPOINT_VERSION = 2
_FORMAT = FileFormat(
    name="daband-policy",
    what="a policy saved by daband (policy.save writes one; daband.load_deployed reads what daband.export wrote)",
    version=CHECKPOINT_VERSION,
    oldest=CHECKPOINT_VERSION,
    remedy="train and save it anew",
    required=("settings", "notes"),
)


class SavedPolicy(NamedTuple):
    """What a file holds: the policy's settings, its arrays by name, and the caller's notes."""

    settings: dict[str, Any]
    arrays: dict[str, AnyArray]
    notes: dict[str, str]


def check_notes(notes: Mapping[str, str] | None) -> dict[str, str]:
    """The caller's notes as a file can hold them: texts by name."""
    if notes is None:
        return {}
    if not isinstance(notes, Mapping) or not all(isinstance(text, str) for pair in notes.items() for text in pair):
        raise InvalidInput(f"notes must be a mapping from text to text, got {notes!r}")
    return dict(notes)


def write_checkpoint(
    path: str | Path, settings: dict[str, Any], arrays: dict[str, AnyArray], notes: dict[str, str]
) -> None:
    """Write a whole file or nothing."""
    write_tensor_file(path, _FORMAT, {"settings": settings, "notes": notes}, arrays)


def read_checkpoint(path: str | Path) -> SavedPolicy:
    """Settings, arrays and notes of a saved policy, each bit as it was written."""
    header, arrays = read_tensor_file(path, _FORMAT)
    if header["settings"].get("policy") == "average":
        raise CheckpointError(
            f"{path} is an average of candidates, which choose no longer makes; choose anew. What was exported "
            "from it goes on deciding"
        )
    return SavedPolicy(header["settings"], arrays, header["notes"])


def read_notes(path: str | Path) -> dict[str, str]:
    """The caller's notes in a saved policy's header."""
    return read_tensor_header(path, _FORMAT)["notes"]


_NO_LOCK = nullcontext()
_FLOAT64 = np.dtype(np.float64)


@dataclass(frozen=True, slots=True)
class RewardedDecision(Decision):
    """The decisions of an episode, with the reward (B,) of each chosen arm."""

    reward: FloatArray


def exploration_setting(field: str) -> property:
    """A setting of ``Exploration`` as an attribute of a policy, which may be changed at any time."""

    def read(policy: Any) -> Any:
        return getattr(policy.exploration, field)

    def change(policy: Any, value: Any) -> None:
        checked = value if field == "rule" else checked_number(field, value)
        policy.exploration = replace(policy.exploration, **{field: checked})

    return property(read, change, doc=f"``Exploration.{field}``; it may be set at any time.")


class _PolicyType(ABCMeta):
    """Refuses unknown settings by the name of the class; notes when a policy is constructed.

    From then on, attributes that would do nothing are refused.
    """

    def __call__(cls, *arguments: Any, **settings: Any) -> Any:
        offered: dict[str, Any] = setting_defaults(cls)
        unknown = next((name for name in settings if name not in offered), None)
        if unknown is not None and offered:
            hint = "; it is called 'feedback' now" if unknown == "reveal" else did_you_mean(unknown, offered)
            raise TypeError(f"{cls.__name__} has no setting {unknown!r}{hint} (its settings: {', '.join(offered)})")
        policy = super().__call__(*arguments, **settings)
        policy.__dict__["_constructed"] = True
        return policy


class Policy(ABC, metaclass=_PolicyType):
    """Chooses among ``n_arms`` arms by contexts of ``context_shape``.

    Contexts are (B, *context_shape), with ``arms="shared"`` (B, n_arms, *context_shape): one context per arm. Numpy
    arrays or torch tensors go in, numpy arrays come out. ``uint8`` contexts are read as images, 0..255 scaled to
    [0, 1]. Rewards go in, and predicted rewards and widths come out, in the user's units: ``reward_range`` tells the
    smallest and largest one, or is "auto".

    >>> policies = [daband.LinUCB, daband.Constant, daband.DABand]
    >>> all(issubclass(policy, daband.Policy) for policy in policies)
    True
    """

    name: ClassVar[str]
    """The registered name; ``policies.register`` sets it."""
    learns_by_gradients: ClassVar[bool] = False
    """Whether ``adapt`` takes gradient steps, for which a GPU may be of use."""
    scale_matters: ClassVar[bool] = False
    """Whether decisions depend on the unit and the offset of contexts; ``for_pair`` then standardises them."""
    locks_state: ClassVar[bool] = True
    """Whether ``Policy`` holds the state lock around ``_decide``, ``_learn`` and ``_play``. A policy with long work in
    them sets it to False and holds ``self._locks.state`` itself where it reads or changes what it has learned."""
    id_window: ClassVar[int] = 1 << 18
    """How many round ids are remembered: see ``update``."""

    def __init__(
        self,
        *,
        context_shape: Sequence[int],
        n_arms: int,
        arms: str,
        reward_range: RewardRange,
        transform: Any,
        seed: int,
        shift: ShiftLike = None,
        half_life: float | None = None,
        domains: DomainNames | None = None,
    ) -> None:
        self._locks = Locks()
        self.context_shape = check_shape(context_shape)
        self.n_arms = whole("n_arms", n_arms, least=1)
        one_round = 8.0 * (8 * self.n_arms + math.prod(self.context_shape) * (self.n_arms if arms == "shared" else 1))
        check_memory(one_round, f"one round of n_arms={self.n_arms} and context_shape={self.context_shape}")
        one_of("arms", arms, ("disjoint", "shared"))
        self.arms = arms
        self._dimensions = math.prod(self.context_shape)
        self.largest_norm = LARGEST_NORM
        """Contexts of a larger Euclidean norm are refused, unless a transform stands before the policy."""
        self._set_round_shape()
        self._scale = RewardScale(reward_range)
        self.shift = as_shift(shift, context_shape=self.context_shape)
        """What may differ between the domains."""
        transform = as_transform(transform)  # a copy, fitted for this policy alone
        if self.shift.stated:
            transform = shift_transform(transform, self.shift, self._dimensions)
        self.transform: Transform | None = transform
        self.seed = check_seed(seed)
        self.half_life = None if half_life is None else checked_number("half_life", half_life)
        """After how much time a round counts half; None: every round counts as much for ever."""
        if self.half_life is not None and not self.half_life > 0:
            raise InvalidInput(f"half_life must be a number > 0, or None, got {half_life!r}")
        self._clock = 0.0
        self._domains = DomainNames() if domains is None else domains
        self._domain = 0
        self.rounds_decided = 0
        self.rounds_learned = 0
        self._ids = RoundIds(self.id_window)
        self._pending = PendingRounds()
        self._table: TableTransform | None = None
        self._arm_names: tuple[str, ...] | None = None
        self.log_parts: frozenset[str] = frozenset()
        """Digests of the parts of logs that ``fit_log`` has taught it: none is counted twice. Files hold them."""

    @classmethod
    def for_pair(cls, pair: Any, **settings: Any) -> Self:
        """A policy for a ``daband.domains.Pair``: context shape, arms, feedback, reward range and a transform follow.

        ``settings`` are this class's own keyword arguments; ``alpha``, ``device`` and ``feedback`` are dropped where it
        has none, so that a loop over classes needs no special cases.
        """
        return policy_for_pair(cls, pair, settings)

    # What a policy implements.

    @abstractmethod
    def _decide(self, contexts: AnyArray, domain: int, available: Mask, first_round: int, rule: str | None) -> Decision:
        """Choose; change nothing. Random numbers may depend on seed and round number only."""

    @abstractmethod
    def _learn(self, contexts: AnyArray, arms: IntArray, rewards: FloatArray, domain: int, weights: Weights) -> None:
        """Learn a batch of rounds, each counted by its weight (B,); None: each once."""

    @abstractmethod
    def _grow(self) -> None:
        """Make room for one more arm; ``n_arms`` is raised afterwards."""

    @abstractmethod
    def _state(self, *, replay: bool = True) -> dict[str, AnyArray]:
        """All that was learned, as arrays; without ``replay`` no context, arm or reward of a round is among them."""

    @abstractmethod
    def _restore(self, state: dict[str, AnyArray]) -> None:
        """Restore what ``_state`` returned."""

    # What a policy may replace.

    @property
    def propensity_weightings(self) -> tuple[str, ...]:
        """Which values of ``propensity_weighting`` the policy offers, the default first."""
        return ("none",)

    def _probabilities(self, contexts: AnyArray, domain: int, available: Mask, rule: str | None) -> FloatArray:
        """The probability of each arm, (B, K); change nothing. A policy that draws arms at random must say it."""
        decision = self._decide(contexts, domain, available, self.rounds_decided, rule)
        if not (decision.propensity == 1.0).all():
            raise InvalidInput(f"{self.name} chooses at random and does not say the probability of every arm")
        certain = np.zeros(decision.mean.shape)
        certain[np.arange(len(certain)), decision.arm] = 1.0
        return certain

    def _play(
        self, contexts: AnyArray, rewards: FloatArray, domain: int, available: Mask, first_round: int
    ) -> Decision:
        """Decide and learn round by round; a policy whose rounds can be played in one call does better."""
        decisions = []
        for i in range(len(contexts)):
            mask = None if available is None else available[i : i + 1]
            decision = self._decide(contexts[i : i + 1], domain, mask, first_round + i, None)
            self._learn(contexts[i : i + 1], decision.arm, rewards[i, decision.arm], domain, None)
            decisions.append(decision)
        return join_decisions(decisions)

    def _freeze(self, domain: int) -> FrozenParts:
        """What decides in this domain, as copies of arrays: with this method a policy can be exported.

        A class that decides by other means than its parent's has one of its own.
        """
        raise NotImplementedError

    def _prepare(self, contexts: Sequence[AnyArray]) -> None:
        """Look at batches of unlabelled contexts, behind the transform, before the first round."""

    def _observe(self, contexts: AnyArray, domain: int) -> None:
        """See unlabelled contexts of a target."""

    def _adapt(self, steps: int | None) -> dict[str, float]:
        return {}

    @property
    def can_discount(self) -> bool:
        """Whether ``trust_prior`` is offered."""
        return False

    def _trust_prior(self, discounts: tuple[float, ...]) -> None:
        """Count what was learned so far by the best of these factors."""
        raise NotImplementedError

    def _fade(self, factor: float) -> None:
        """Count every round learned so far by this factor in (0, 1): what a half-life asks for before each update."""
        raise NotImplementedError

    def _check_unit_rewards(self, rewards: FloatArray) -> None:
        """Raise where the method cannot learn from these rewards, which are scaled to [0, 1] already."""

    def timed_parts(self) -> list[tuple[str, object, str]]:
        """What a stopwatch may time: (part, object, name of its method), parts being "step", "features" and "head"."""
        return []

    # What users call.

    def select(self, contexts: ArrayLike, domain: str | None = None, available: ArrayLike | None = None) -> Decision:
        """Choose an arm for every context.

        Args:
            contexts: (B, *context_shape).
            domain: which domain the contexts come from, "source" or "target"; by default the one that ``deploy`` set,
                "source" before.
            available: which arms may be chosen, (K,) or (B, K) of booleans; all by default.

        Returns:
            ``.arm`` (B,), ``.propensity`` (B,): the probability with which that arm was chosen, ``.mean`` (B, K):
            predicted rewards in the user's units, ``.width`` (B, K): their uncertainty before ``alpha`` scales it.
        """
        with self._locks.state:
            request = self._check_request(contexts, domain, available)
            first, n = self.rounds_decided, len(request[0])
            if self.locks_state:
                contexts, where, mask = request
                decision = self._decide(self._transform_contexts(contexts, where), where, mask, first, None)
            self.__dict__["rounds_decided"] = first + n  # past __setattr__: single rounds would feel its checks
        if not self.locks_state:
            try:
                decision = self._decide_request(request, first, None)
            except BaseException:
                with self._locks.state:
                    if self.rounds_decided == first + n:  # nobody has decided in between
                        self.rounds_decided = first
                raise
        return decision if self._scale.is_unit else self._in_units(decision)

    def decide(
        self,
        contexts: ArrayLike,
        domain: str | None = None,
        available: ArrayLike | None = None,
        *,
        rule: str | None = None,
        round_offset: int = 0,
    ) -> Decision:
        """``select`` without counting the rounds as played: the policy is the same afterwards.

        ``rule`` "ucb" or "greedy" stands in for the policy's own way to explore, with no randomness but for ties.
        "greedy" uses no widths, so regressions do not calculate them: they are 0. ``round_offset`` is added to the
        number of the first round, on which random draws depend.
        """
        _check_rule(rule)
        with self._locks.state:
            request = self._check_request(contexts, domain, available)
            first = self.rounds_decided + round_offset
            if self.locks_state:
                return self._in_units(self._decide_request(request, first, rule))
        return self._in_units(self._decide_request(request, first, rule))

    def probabilities(
        self,
        contexts: ArrayLike,
        domain: str | None = None,
        available: ArrayLike | None = None,
        *,
        rule: str | None = None,
    ) -> FloatArray:
        """The probability with which ``select`` would choose each arm, (B, K). Arguments as in ``decide``."""
        _check_rule(rule)
        with self._locks.state:
            checked, where, mask = self._check_request(contexts, domain, available)
            if self.locks_state:
                return self._probabilities(self._transform_contexts(checked, where), where, mask, rule)
        return self._probabilities(self._transform_contexts(checked, where), where, mask, rule)

    def update(
        self,
        contexts: ArrayLike,
        arm: ArrayLike,
        reward: ArrayLike,
        domain: str | None = None,
        ids: Sequence[int | str] | IntArray | None = None,
        propensity: ArrayLike | None = None,
        on_duplicate: str = "refuse",
        propensity_weighting: str | None = None,
        time: ArrayLike | None = None,
    ) -> list[int | str]:
        """Learn from a batch of rounds: late ones, some of them only, in any order, from any thread.

        Args:
            contexts: (B, *context_shape), as they were given to ``select``.
            arm: the arm that was played in each round, (B,).
            reward: its reward, (B,), within ``reward_range``.
            domain: where the rounds were played; by default as in ``select``.
            ids: a name per round, integers or strings. A round counts once: a name among the latest ``id_window``
                that were learned (262,144), or twice in a batch, is a duplicate. A signal that arrives meanwhile is
                handled behind the update, so that a round is learned with its id or not at all.
            propensity: for rounds of a log, the probability with which the logging policy chose each arm, (B,) in
                (0, 1]; it is used as ``propensity_weighting`` says. Rounds that this policy chose itself need none.
            on_duplicate: "refuse" the whole batch with an error, or "skip" the duplicates and learn the rest.
            propensity_weighting: "importance" (rounds weighted by ``1 / (n_arms * propensity)``, at most 10),
                "flattened" (by the fourth root of that), "doubly_robust" (linear policies: every arm learns a
                pseudo-reward of every round) or "none" (they are not used). By default the first of the policy's
                ``propensity_weightings``, which was the best by measurement (docs/guide/logs.md).
            time: when each round was played, (B,), in the unit of ``half_life``; late rounds count less. By default
                rounds follow one another at a distance of 1.

        Returns:
            The ids that were skipped.
        """
        if on_duplicate != "refuse":
            one_of("on_duplicate", on_duplicate, ("refuse", "skip"))
        with self._locks.write:
            checked = self._check_contexts(contexts)
            n = len(checked)
            where = self._domain if domain is None else self._index(domain)
            arms, rewards = check_arms(arm, n, self.n_arms), check_rewards(reward, (n,))
            self._scale.check(rewards)
            weighting, propensities = "none", None
            if propensity is not None or propensity_weighting is not None:
                weighting = resolve_weighting(propensity_weighting, self.propensity_weightings, self.name)
                if propensity is not None:
                    propensities = check_propensities(propensity, n)
                elif weighting != "none":
                    raise InvalidInput(f"propensity_weighting={weighting!r} needs the rounds' propensity")
            times = None if time is None else self._check_times(time, n)
            if ids is None and propensities is None and self._scale.known:  # single rounds would feel the way below
                self._learn_scaled((checked, arms, rewards, where, None, times))
                return []
            rounds = PlayedRounds(checked, arms, rewards, where, None, times)
            if ids is None:
                self._learn_checked(rounds, weighting, propensities)
                return []
            names = self._ids.check(ids, n)
            new = self._ids.unknown(names)
            skipped = [name for name, is_new in zip(names, new, strict=True) if not is_new]
            if skipped and on_duplicate == "refuse":
                raise InvalidInput(
                    f"ids: the round {skipped[0]!r} was learned before or is here twice; every round counts once. "
                    "on_duplicate='skip' learns the others"
                )
            if skipped:
                rounds, propensities = rounds.only(new), None if propensities is None else propensities[new]
            with defer_signals():
                if len(rounds.arms):
                    self._learn_checked(rounds, weighting, propensities)
                self._ids.add(name for name, is_new in zip(names, new, strict=True) if is_new)
            return skipped

    def play(
        self, contexts: ArrayLike, rewards: ArrayLike, domain: str | None = None, available: ArrayLike | None = None
    ) -> RewardedDecision:
        """Play rounds one after the other, learning after each, where the environment tells every arm's reward.

        The choices are those of ``select`` and ``update`` in turn, round by round; a policy may get there faster.

        Args:
            contexts: (B, *context_shape).
            rewards: the reward of each arm, (B, K). The policy learns that of the arm it chooses.
            domain: where the rounds are played; by default as in ``select``.
            available: as in ``select``.
        """
        with self._locks.write:
            checked, where, mask = self._check_request(contexts, domain, available)
            table = check_rewards(rewards, (len(checked), self.n_arms))
            self._scale.check(table)
            if self._scale.known and self.half_life is None:
                return self._play_scaled(checked, table, where, mask)
            return self._play_singly(checked, table, where, mask)

    def prepare(self, *contexts: ArrayLike) -> None:
        """Look at unlabelled contexts, of source and target, before the first round: this fits the transform.

        With several sources there is a batch for each domain in its order; that of a source without rounds is empty.
        """
        with self._locks.write:
            if self.transform is not None and self.transform.fitted:
                raise InvalidInput(f"{self.transform!r} is fitted already; what was learned rests on it as it is")
            if self.prepared:
                return
            checked = []
            for part in contexts:
                without_rounds = len(self.domains) > 2 and isinstance(part, np.ndarray) and not part.size
                checked.append(np.zeros((0, *self._round_shape)) if without_rounds else self._check_contexts(part))
            with self._locks.state:
                if self.transform is not None:
                    self.transform.fit(*[batch.reshape(-1, *self.context_shape) for batch in checked])
                self._prepare([self._transform_contexts(batch, domain) for domain, batch in enumerate(checked)])

    @property
    def prepared(self) -> bool:
        """Whether there is nothing left for ``prepare`` to do."""
        return self.transform is None or self.transform.fitted

    def observe_target(self, contexts: ArrayLike, domain: str | None = None) -> None:
        """Unlabelled contexts of a target, (B, *context_shape). Policies that do not adapt ignore them.

        ``domain`` is the target's name, where there are several.
        """
        where = self._index("target" if domain is None else domain)
        if not self.domains.is_target(where):
            raise InvalidInput(f"domain must be a target ({', '.join(self.domains.targets)}), got {domain!r}")
        with self._locks.write:
            self._observe(self._transform_contexts(self._check_contexts(contexts), where), where)

    @property
    def encodes_ahead(self) -> bool:
        """Whether ``adapt`` also encodes what ``expect`` says."""
        return False

    def expect(self, read: Callable[[], Sequence[tuple[AnyArray, str]]]) -> None:
        """Say what reads the contexts, each with its domain, that are asked for right after the next ``adapt``."""

    def adapt(self, steps: int | None = None) -> dict[str, float]:
        """Take gradient steps; returns what was measured on the way. A policy without an encoder has none to take."""
        if steps is not None:
            whole("steps", steps, least=0)
        with self._locks.write:
            return self._adapt(steps)

    @property
    def domains(self) -> DomainNames:
        """The names of the sources and targets; ``for_pair`` sets them. Hooks get a domain's index in them."""
        return self._domains

    @domains.setter
    def domains(self, domains: DomainNames) -> None:
        if "domains" in setting_defaults(type(self)) or self.rounds_learned:
            raise AttributeError("domains are fixed once a policy learns, or where its constructor takes them")
        self._domains = domains

    @property
    def domain(self) -> str:
        """What ``domain=None`` means; ``deploy`` changes it."""
        return self.domains.names[self._domain]

    def deploy(self, domain: str) -> None:
        """Set what ``domain=None`` means in ``select``, ``update`` and ``play`` from now on; a saved file keeps it."""
        index = self.domains.index(domain)
        with self._locks.write:
            self._domain = index

    @property
    def version(self) -> int:
        """How many logs of the target it has learned (``daband.learn_log``); exported files say it."""
        return sum(part.startswith("version/") for part in self.log_parts)

    def trust_prior(self, prior_trust: float | str = "adaptive") -> None:
        """Say how much what was learned so far counts against the rounds that are learned from now on.

        Args:
            prior_trust: a factor from 0 (nothing) to 1 (every round as much as a new one), or "adaptive": several
                factors run beside each other, and the one that predicts rewards best acts.
        """
        discounts = check_prior_trust(prior_trust)
        with self._locks.write:
            self.require_discounts()
            self._trust_prior(discounts)

    def require_discounts(self) -> None:
        """Raise where ``trust_prior`` is not offered."""
        if not self.can_discount:
            raise InvalidInput(
                f"prior_trust is not offered by this {self.name}: it has no statistics, or they are too large to "
                "be kept several times; put a transform in front, e.g. daband.PCA(64)"
            )

    def frozen(self, domain: str | None = None) -> FrozenPolicy:
        """What the policy decides with in a domain, by default its own: arrays that nothing changes any more.

        ``daband.export`` writes it to a file. Nobody learns while it is made.
        """
        order = type(self).__mro__
        freezes, decides = (
            next(at for at, kind in enumerate(order) if name in vars(kind)) for name in ("_freeze", "_decide")
        )
        if decides < freezes:
            raise InvalidInput(
                f"the policy {self.name!r} ({type(self).__name__}) cannot be exported: it decides by code of its own "
                "and has no method _freeze of its own, which returns what it decides with"
            )
        with self._locks.write, self._locks.state:
            where = self._index(domain)
            if not self._scale.known:
                raise InvalidInput(
                    "policy: reward_range='auto' has not seen enough rewards to know the range; update with more "
                    "rounds first"
                )
            step = None if self.transform is None else copy.deepcopy(self.transform.frozen(where))
            return FrozenPolicy(
                policy=self.name,
                domain=self.domains.names[where],
                context_shape=self.context_shape,
                arms=self.arms,
                n_arms=self.n_arms,
                reward_range=self.reward_range,
                range_estimated=self.estimates_reward_range,
                largest_norm=self.largest_norm if step is None else LARGEST_RAW_NORM,
                rounds_learned=self.rounds_learned,
                seed=self.seed,
                transform=step,
                table=self.table,
                **self._freeze(where)._asdict(),
            )

    def add_arm(self) -> int:
        """Add an arm of which nothing is known yet, and return its number."""
        with self._locks.write, self._locks.state:
            if self._pending.n_rounds and self.arms == "shared":
                raise InvalidInput(
                    "reward_range='auto' has not seen enough rewards yet, and the rounds it keeps back have no context "
                    "for a new arm; add arms before the first update, or give the range"
                )
            self._grow()
            if self._arm_names is not None:
                name = str(self.n_arms)
                self._arm_names = (*self._arm_names, f"arm {name}" if name in self._arm_names else name)
            self.__dict__["n_arms"] += 1
            self._set_round_shape()
            return self.n_arms - 1

    # Settings.

    def settings(self) -> dict[str, Any]:
        """The keyword arguments that make this policy anew, as JSON can hold them."""
        settings = {
            "context_shape": list(self.context_shape), "n_arms": self.n_arms, "arms": self.arms,
            "reward_range": self._scale.setting, "transform": transform_settings(self.transform), "seed": self.seed,
            **({"shift": self.shift.state()} if self.shift.stated else {}),
            **({} if self.half_life is None else {"half_life": self.half_life}),
            **({} if self.domains == DomainNames() else {"domains": self.domains.settings()}),
        }  # fmt: skip
        offered = {*setting_defaults(type(self)), "domains"}  # a class may leave out arms or transform
        return {name: value for name, value in settings.items() if name in offered}

    def plan(self, episodes: int) -> None:
        """Say how many episodes a run has, before the first: schedules of a policy that has any are shares of it."""

    @property
    def reward_range(self) -> tuple[float, float]:
        """The smallest and largest reward; with "auto" the estimate, (0, 1) before there is one."""
        return self._scale.low, self._scale.high

    @property
    def knows_reward_range(self) -> bool:
        """Whether predictions are in the user's units: always, but before ``reward_range="auto"`` has its estimate."""
        return self._scale.known

    @property
    def estimates_reward_range(self) -> bool:
        """Whether ``reward_range`` is an estimate ("auto")."""
        return self._scale.automatic

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """The shape of a context behind the transform."""
        return self.context_shape if self.transform is None else (self.transform.n_features(self.context_shape),)

    @property
    def alignment(self) -> str:
        """In one line, what the policy does about differences between the domains."""
        line = "nothing is aligned: a number means the same in every domain"
        if self.shift.stated and any(self.shift.own_statistics(self._dimensions)):
            line = f"nothing is aligned but the scale: each domain has its own statistics (shift: {self.shift})"
        ignored = self.shift.moves_labels and not self.learns_by_gradients
        return f"{line}; {self.name} ignores that arms are differently frequent (shift: labels)" if ignored else line

    @property
    def adapts_to_target(self) -> bool:
        """Whether training looks at the target's contexts: to align them, or with its own choices as labels."""
        return False

    @property
    def table(self) -> TableTransform | None:
        """What turns a raw row into a context: ``policy.select(policy.table.contexts({"age": 41, "city": "Oslo"}))``.

        ``for_pair`` sets it where the pair is made of tables; for a policy built by hand set ``policy.table =
        pair.table``. A saved file holds it.
        """
        return self._table

    @table.setter
    def table(self, table: TableTransform | None) -> None:
        if table is not None and not isinstance(table, TableTransform):
            raise InvalidInput(f"table must be a daband.domains.TableTransform, e.g. pair.table, got {table!r}")
        if table is not None and (len(table.feature_names),) != self.context_shape:
            raise InvalidInput(
                f"table makes contexts of shape ({len(table.feature_names)},), the policy takes {self.context_shape}"
            )
        with self._locks.write:
            self._table = table

    @property
    def arm_names(self) -> tuple[str, ...] | None:
        """A name per arm, as logs and exported files have it; ``for_pair`` sets the pair's. A saved file holds it."""
        return self._arm_names

    @arm_names.setter
    def arm_names(self, names: Sequence[str] | None) -> None:
        self._arm_names = None if names is None else checked_class_names(names, self.n_arms, "arm_names")

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and "_constructed" in self.__dict__ and not _may_set(self, name):
            raise AttributeError(_refusal(self, name))
        object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        defaults = setting_defaults(type(self))
        settings = {name: value for name, value in self.settings().items() if name not in ("reward_range", "n_arms")}
        shown = {name: value for name, value in settings.items() if isinstance(value, int | float | str)}
        given = [f"{name}={value!r}" for name, value in shown.items() if value != defaults.get(name)]
        low, high = self.reward_range
        if (low, high) != (0.0, 1.0):
            given.append(f"reward_range=({low:g}, {high:g})")
        arguments = ", ".join([f"context_shape={self.context_shape}, n_arms={self.n_arms}", *given])
        counts = f"{self.rounds_decided:,} rounds decided, {self.rounds_learned:,} learned"
        if self._pending.n_rounds:
            counts += f", {self._pending.n_rounds} kept back until the range of rewards is known"
        return f"<{type(self).__name__}({arguments}): {counts}, acts in the {self.domain}>"

    # Files and copies.

    def save(self, path: str | Path, *, notes: Mapping[str, str] | None = None, replay: bool = True) -> None:
        """Write everything to one safetensors file, all or nothing. A loaded policy continues from it to the last bit.

        Args:
            path: the file. One that exists keeps its mode; a symbolic link stays one, and its target is written.
            notes: short texts of the caller's own, read back by ``daband.policies.read_notes``.
            replay: whether the file holds what the policy was trained on: stored contexts, arms, rewards, and round
                ids. Without them the loaded policy decides the same. It learns on from the rounds that it sees then;
                rounds learned before the save are no longer recognised by their ids.
        """
        checked = check_notes(notes)
        with self._locks.write:  # no writer changes anything meanwhile, and those who select only read
            if self._pending.n_rounds and not replay:
                raise InvalidInput(
                    f"replay=False would lose {self._pending.n_rounds} rounds: reward_range='auto' has not seen enough "
                    "rewards to learn from them yet; update with more rounds first, or give the range"
                )
            settings = {**self.settings(), "policy": self.name}
            if self._table is not None:
                settings["table"] = self._table.state()
            if self._arm_names is not None:
                settings["arm_names"] = list(self._arm_names)
            arrays = self._arrays(replay=replay)
            if self.transform is not None:
                arrays.update({f"transform/{name}": array for name, array in self.transform.state().items()})
            write_checkpoint(path, settings, arrays, checked)

    def restore(self, arrays: Mapping[str, AnyArray]) -> None:
        """Restore the arrays of a saved file, all or nothing; the settings must be those it was saved with."""
        with self._locks.write, self._locks.state:
            before = self._snapshot()
            try:
                if self.transform is not None:
                    self.transform.restore(below("transform/", arrays))
                self._restore_arrays(arrays)
            except BaseException:
                self._roll_back(before)
                raise

    def _snapshot(self) -> tuple[dict[str, AnyArray], Transform | None]:
        """A copy of everything that changes, for ``_roll_back``."""
        return {name: np.array(array) for name, array in self._arrays().items()}, copy.deepcopy(self.transform)

    def _roll_back(self, snapshot: tuple[dict[str, AnyArray], Transform | None]) -> None:
        arrays, self.__dict__["transform"] = snapshot
        self._restore_arrays(arrays)

    def _arrays(self, *, replay: bool = True) -> dict[str, AnyArray]:
        """What a file holds of a policy, but for its transform."""
        arrays: dict[str, AnyArray] = {f"policy/{name}": array for name, array in self._state(replay=replay).items()}
        arrays["rounds"] = np.array([self.rounds_decided, self.rounds_learned], np.int64)
        arrays["domain"] = np.array([self._domain], np.int64)
        arrays["reward_scale"] = self._scale.state()
        if self.half_life is not None:
            arrays["clock"] = np.array([self._clock])
        ids = self._ids if replay else RoundIds(self._ids.window)
        arrays.update({f"ids/{name}": array for name, array in ids.state().items()})
        arrays.update({f"pending/{name}": array for name, array in self._pending.state().items()})
        if self.log_parts:
            arrays["log_parts"] = np.frombuffer("\n".join(sorted(self.log_parts)).encode(), np.uint8)
        return arrays

    def _restore_arrays(self, arrays: Mapping[str, AnyArray]) -> None:
        self.rounds_decided, self.rounds_learned = (int(count) for count in arrays["rounds"])
        self._domain = range(len(self.domains))[int(arrays["domain"][0])]
        self._scale.restore(arrays["reward_scale"])
        self._clock = float(arrays["clock"][0]) if self.half_life is not None else 0.0
        self._ids.restore(below("ids/", arrays))
        self._pending.restore(below("pending/", arrays))
        self.log_parts = frozenset(bytes(arrays.get("log_parts", b"")).decode().split())
        self._restore(below("policy/", arrays))

    def __getstate__(self) -> dict[str, Any]:
        # Copied while the lock is held: what a thread changes afterwards must not be half in a copy or a pickle.
        with self._locks.write:
            return copy.deepcopy(self.__dict__)

    # Between what users call and what a policy implements.

    def _decide_request(
        self, request: tuple[AnyArray, int, BoolArray | None], first_round: int, rule: str | None
    ) -> Decision:
        contexts, domain, available = request
        return self._decide(self._transform_contexts(contexts, domain), domain, available, first_round, rule)

    def _learn_checked(self, rounds: PlayedRounds, weighting: str, propensities: FloatArray | None) -> None:
        """Learn checked rounds, or keep them back until the range of rewards is known."""
        if propensities is not None and weighting == "doubly_robust":
            self._learn_doubly_robust(rounds, propensities)
            return
        if propensities is not None:
            rounds = rounds._replace(weights=round_weights(propensities, self.n_arms, weighting=weighting))
        if self._scale.known:
            self._learn_scaled(rounds)
            return
        self._transform_contexts(rounds.contexts, rounds.domain)  # refuse now what could not be learned later
        batches = [*self._pending, rounds]
        before = self._scale.state()
        if not self._scale.estimate(np.concatenate([batch.rewards for batch in batches])):
            if rounds.times is not None:
                raise InvalidInput("time: too few rewards for reward_range='auto' to know the range; give the range")
            self._pending.append(rounds.only(np.ones(len(rounds.arms), np.bool_)))  # copies: the caller's may change
            return
        try:
            for batch in batches:
                self._check_unit_rewards(self._scale.to_unit(batch.rewards))
        except BaseException:
            self._scale.restore(before)
            raise
        self._pending.clear()
        for batch in batches:
            self._learn_scaled(batch)

    def _learn_scaled(self, rounds: tuple[AnyArray, IntArray, FloatArray, int, Weights, FloatArray | None]) -> None:
        contexts, arms, rewards, domain, weights, times = rounds
        unit = rewards if self._scale.is_identity else self._scale.to_unit(rewards)
        self._check_unit_rewards(unit)
        with self._locks.state if self.locks_state else _NO_LOCK:
            features = self._transform_contexts(contexts, domain)
            if self.half_life is not None:
                weights = self._age(len(arms), weights, times)
            self._learn(features, arms, unit, domain, weights)
            self.__dict__["rounds_learned"] += len(arms)

    def _age(self, n: int, weights: Weights, times: FloatArray | None) -> FloatArray | None:
        """Let the clock run to the latest of ``n`` rounds: what was learned fades, and so do older ones of these."""
        if self.half_life is None:
            return weights
        times = self._clock + np.arange(1.0, n + 1.0) if times is None else times
        now = max(self._clock, float(times.max()))
        if self.rounds_learned and now > self._clock:
            self._fade(float(np.exp2((self._clock - now) / self.half_life)))
        self._clock = now
        ages = np.exp2((times - now) / self.half_life)
        return ages if weights is None else ages * weights

    def _check_times(self, time: ArrayLike, n: int) -> FloatArray:
        if self.half_life is None:
            raise InvalidInput("time is of use to a policy with a half_life, and this one has none")
        times = np.asarray(as_numpy(time, "time"), np.float64)
        if times.shape != (n,) or not np.isfinite(times).all():
            raise InvalidInput(f"time must be a finite number for each of {n} rounds, got shape {times.shape}")
        return times

    def _learn_doubly_robust(self, rounds: PlayedRounds, propensities: FloatArray) -> None:
        """Every arm learns its pseudo-reward in every round; a round counts once, each of its arms 1 / n_arms.

        Predictions come from what was learned before, or, where that is less than this batch, from a model that is
        fitted to the batch's other rounds.
        """
        if not self._scale.known:
            raise InvalidInput(
                "propensity_weighting='doubly_robust' needs to know reward_range, and 'auto' has not seen enough "
                "rewards yet; give the range, or use propensity_weighting='importance'"
            )
        contexts, arms, rewards, domain, _, times = rounds
        unit = self._scale.to_unit(rewards)
        n, k = len(arms), self.n_arms
        with self._locks.state:
            features = self._transform_contexts(contexts, domain)
            if self.rounds_learned >= n:
                predicted = self._decide(features, domain, None, self.rounds_decided, "greedy").mean
            else:
                (flat,) = flat_features(features, lead=2 if self.arms == "shared" else 1)
                predicted = cross_fitted_rewards(flat, arms, unit, n_arms=k, seed=self.seed)
            every = pseudo_rewards(predicted, arms, unit, propensities, largest=k * LARGEST_WEIGHT)
            repeated = np.repeat(features, k, axis=0)
            counted = self._age(n, None, times)
            weights = np.full(n * k, 1.0 / k) if counted is None else np.repeat(counted / k, k)
            self._learn(repeated, np.tile(np.arange(k), n), every.reshape(-1), domain, weights)
            self.rounds_learned += n

    def _play_scaled(self, contexts: AnyArray, rewards: FloatArray, domain: int, mask: Mask) -> RewardedDecision:
        unit = self._scale.to_unit(rewards)
        self._check_unit_rewards(unit)
        with self._locks.state:
            first = self.rounds_decided
            self.rounds_decided += len(contexts)
        try:
            with self._locks.state if self.locks_state else _NO_LOCK:
                decision = self._play(self._transform_contexts(contexts, domain), unit, domain, mask, first)
        except BaseException:
            with self._locks.state:
                self.rounds_decided -= len(contexts)
            raise
        self.rounds_learned += len(contexts)
        d = self._in_units(decision)
        return RewardedDecision(d.arm, d.propensity, d.mean, d.width, rewards[np.arange(len(contexts)), d.arm])

    def _play_singly(self, contexts: AnyArray, rewards: FloatArray, domain: int, mask: Mask) -> RewardedDecision:
        """Play one round at a time, with no half-life until "auto" knows the range, then the rest. All or none."""
        before, name = self._snapshot(), self.domains.names[domain]
        parts: list[RewardedDecision] = []
        start = selected = 0
        try:
            while start < len(contexts) and not (self._scale.known and self.half_life is None):
                part = slice(start, start + 1)
                decision = self.select(contexts[part], name, None if mask is None else mask[part])
                selected += 1
                reward = rewards[part, decision.arm[0]]
                self._learn_checked(PlayedRounds(contexts[part], decision.arm, reward, domain), "none", None)
                parts.append(RewardedDecision(decision.arm, decision.propensity, decision.mean, decision.width, reward))
                start += 1
            if start < len(contexts):
                rest = None if mask is None else mask[start:]
                parts.append(self._play_scaled(contexts[start:], rewards[start:], domain, rest))
        except BaseException:
            with self._locks.state:
                decided = self.rounds_decided - selected  # others may have selected meanwhile
                self._roll_back(before)
                self.rounds_decided = decided
            raise
        return join_decisions(parts)

    def _in_units(self, decision: Decision) -> Decision:
        if self._scale.is_unit:
            return decision
        mean, width = self._scale.predictions(decision.mean, decision.width)
        return Decision(decision.arm, decision.propensity, mean, width)

    def transformed(self, contexts: ArrayLike, domain: str | None = None) -> AnyArray:
        """Contexts (B, *context_shape) of a domain as the policy sees them: behind its transform."""
        checked, where, _ = self._check_request(contexts, domain, None)
        return self._transform_contexts(checked, where)

    def _transform_contexts(self, contexts: AnyArray, domain: int) -> AnyArray:
        if self.transform is None:
            return contexts
        lead = contexts.shape[: -len(self.context_shape)]
        flat = contexts.reshape(-1, *self.context_shape)
        features = self.transform(flat, domain) if self.transform.by_domain else self.transform(flat)
        return features.reshape(*lead, features.shape[-1])

    def _check_contexts(self, contexts: ArrayLike) -> AnyArray:
        usual = type(contexts) is np.ndarray and contexts.dtype == _FLOAT64 and contexts.shape[1:] == self._round_shape
        # One product tells in nearly every case that all is well: a loop of single rounds needs no further check.
        if usual and len(contexts) and kernels.sum_of_squares(contexts.reshape(-1)) < self.largest_norm**2:
            return contexts
        largest = self.largest_norm if self.transform is None else LARGEST_RAW_NORM
        return check_contexts(contexts, self._round_shape, dimensions=self._dimensions, largest_norm=largest)

    def _check_request(
        self, contexts: ArrayLike, domain: str | None, available: ArrayLike | None
    ) -> tuple[AnyArray, int, BoolArray | None]:
        checked = self._check_contexts(contexts)
        where = self._domain if domain is None else self._index(domain)
        mask = None if available is None else check_available(available, len(checked), self.n_arms)
        return checked, where, mask

    def _index(self, domain: str | None) -> int:
        """The index of a domain; of several targets "target" is the one that ``deploy`` set."""
        if domain is None or (domain == "target" and self.domains.is_target(self._domain)):
            return self._domain
        return self.domains.index(domain)

    def _set_round_shape(self) -> None:
        """The shape of what a round brings: one context, or one per arm."""
        self._round_shape = (self.n_arms, *self.context_shape) if self.arms == "shared" else self.context_shape


def _may_set(policy: Policy, name: str) -> bool:
    """Whether setting an attribute from outside has an effect: it exists, and is no setting of the constructor."""
    attribute = getattr(type(policy), name, None)
    if isinstance(attribute, property):
        return True  # Python refuses where it has no setter
    exists = attribute is not None or name in policy.__dict__
    return exists and (name == "transform" or name not in setting_defaults(type(policy)))


def _refusal(policy: Policy, name: str) -> str:
    kind, settings = type(policy).__name__, setting_defaults(type(policy))
    if name in settings:
        return f"{name} of a {kind} is fixed once it is made; give it to the constructor: {kind}({name}=...)"
    return f"a {kind} has no attribute {name!r}{did_you_mean(name, [*settings, *dir(policy)])}; setting it does nothing"


def _check_rule(rule: str | None) -> None:
    one_of("rule", rule, ("ucb", "greedy", None))


class _PolicyRegistry(Registry[type[Policy]]):
    """Registered policy classes; each learns its own name."""

    def add(self, name: str, member: type[Policy]) -> None:
        super().add(name, member)
        member.name = name


policies: Registry[type[Policy]] = _PolicyRegistry("policy", "daband.policies")


def build(settings: dict[str, Any], *, encoder: Any = None, transform: Any = None) -> Policy:
    """A policy from what ``settings()`` returned, with "policy", its registered name, "table" and "arm_names".

    ``encoder`` is the module where the policy has a custom one, ``transform`` the object where that is of another
    library.
    """
    arguments = dict(settings) if encoder is None else {**settings, "encoder": encoder}
    kind, table = policies.get(arguments.pop("policy")), arguments.pop("table", None)
    arm_names = arguments.pop("arm_names", None)
    arguments["context_shape"] = tuple(arguments["context_shape"])
    if isinstance(arguments.get("reward_range"), list):
        arguments["reward_range"] = tuple(arguments["reward_range"])
    if "transform" in arguments:
        arguments["transform"] = build_transform(arguments["transform"], transform)
    domains = arguments.pop("domains", None)
    if domains is not None and "domains" in setting_defaults(kind):
        arguments["domains"] = DomainNames(**domains)
    policy = kind(**arguments)
    if domains is not None and "domains" not in setting_defaults(kind):
        policy.domains = DomainNames(**domains)
    if table is not None:
        policy.table = TableTransform.from_state(table)
    policy.arm_names = arm_names
    return policy


def load_policy(path: str | Path, *, encoder: Any = None, transform: Any = None, device: str | None = None) -> Policy:
    """The policy that was saved at ``path``; it continues where it stopped, to the last bit.

    A file that is damaged, truncated, of another format or no policy at all is a ``CheckpointError`` that names it. A
    policy with a custom encoder needs the ``torch.nn.Module`` again, as ``encoder``; its weights are in the file. One
    whose transform is an object of another library needs that object, as ``transform``: fitted, unless it offers
    ``state`` and ``restore``. ``device`` is where it computes from now on, by default where it did.

    >>> policy = daband.LinUCB(context_shape=(2,), n_arms=2, seed=0)
    >>> policy.save("policy.safetensors")
    >>> again = daband.load("policy.safetensors")
    >>> again.select([[1.0, 2.0]]).arm.tolist() == policy.select([[1.0, 2.0]]).arm.tolist()
    True
    """
    saved = read_checkpoint(path)
    name = saved.settings.get("policy")
    network = saved.settings.get("recipe", {}).get("encoder", {})
    if encoder is None and network.get("name") == "custom":
        raise InvalidInput(
            f"{path} was saved with a custom encoder ({network['options'].get('module')}), of which a file holds the "
            "weights alone; pass the module: daband.load(path, encoder=module)"
        )
    try:
        if device is not None and "device" in saved.settings:
            saved.settings["device"] = device
        policy = build(saved.settings, encoder=encoder, transform=transform)
        policy.restore(saved.arrays)
    except (InvalidInput, DataError) as error:
        mine = f". If {name!r} is a policy of your own, import its module first: daband --plugin MODULE"
        hint = "" if policies.is_registered(str(name)) else mine
        raise CheckpointError(f"{path} cannot be loaded: {error}{hint}") from error
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError, AttributeError, MemoryError) as error:
        raise CheckpointError(f"{path} does not hold what its header promises: {error}") from error
    return policy
