"""What every policy can do, and the checks that stand before it.

A policy of one's own derives from ``Policy``, fills in the hooks of ``policies/hooks.py``, and registers:

    @policies.register("mine")
    class Mine(Policy): ...

Whatever arrives is checked in full before anything changes, so an error leaves a policy exactly as it was.

A policy may be shared by any number of threads. Two locks see to it. The *write lock* serialises everything that
changes a policy: ``update``, ``play``, ``observe_target``, ``adapt``, ``add_arm``, ``prepare``, ``save``. The *state
lock* is held for the moment in which learned statistics are read or changed, by default around ``_decide``, ``_learn``
and ``_play``. ``adapt`` holds the write lock alone, so ``select`` never waits for it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from daband.arrays import ArrayLike, FloatArray, IntArray, check_memory
from daband.errors import InvalidInput
from daband.linear import Decision, as_transform, frozen_step, transform_settings
from daband.policies.checked_rounds import CheckedRounds
from daband.policies.decisions import Played
from daband.policies.for_pair import policy_for_pair, setting_defaults
from daband.policies.input_checks import (
    DOMAINS,
    LARGEST_NORM,
    LARGEST_RAW_NORM,
    checked_arms,
    checked_domain,
    checked_mask,
    checked_prior_trust,
    checked_propensities,
    checked_shape,
    checked_whole,
)
from daband.policies.pending_rounds import PendingRounds
from daband.policies.propensities import checked_weighting, round_weights
from daband.policies.reward_scale import RewardRange, RewardScale
from daband.policies.round_ids import RoundIds
from daband.registry import Registry
from daband.serving import FrozenPolicy

__all__ = ["DOMAINS", "Policy", "policies"]


class Policy(CheckedRounds):
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
    them sets it to False and holds ``self._state_lock`` itself where it reads or changes what it has learned."""
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
    ) -> None:
        super().__init__()
        self.context_shape = checked_shape(context_shape)
        self.n_arms = checked_whole("n_arms", n_arms, least=1)
        one_round = 8.0 * (8 * self.n_arms + math.prod(self.context_shape) * (self.n_arms if arms == "shared" else 1))
        check_memory(one_round, f"one round of n_arms={self.n_arms} and context_shape={self.context_shape}")
        if arms not in ("disjoint", "shared"):
            raise InvalidInput(f"arms must be 'disjoint' or 'shared', got {arms!r}")
        self.arms = arms
        self._dimensions = math.prod(self.context_shape)
        self.largest_norm = LARGEST_NORM
        self._set_round_shape()
        self._scale = RewardScale(reward_range)
        self.transform = as_transform(transform)  # a copy, fitted for this policy alone
        self.seed = checked_whole("seed", seed, least=0)
        self.domain = "source"
        """What ``domain=None`` means; ``deploy`` changes it."""
        self.rounds_decided = 0
        self.rounds_learned = 0
        self._ids = RoundIds(self.id_window)
        self._pending = PendingRounds()

    @classmethod
    def for_pair(cls, pair: Any, **settings: Any) -> Self:
        """A policy for a ``daband.domains.Pair``: context shape, arms, feedback, reward range and a transform follow.

        ``settings`` are this class's own keyword arguments; ``alpha``, ``device`` and ``feedback`` are dropped where it
        has none, so that a loop over classes needs no special cases.
        """
        return policy_for_pair(cls, pair, settings)

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
        with self._state_lock:
            checked, where, mask = self._checked_request(contexts, domain, available)
            first = self.rounds_decided
            if self.locks_state:
                decision = self._decide(self._transformed(checked), where, mask, first, None)
            self.rounds_decided = first + len(checked)
        if not self.locks_state:
            try:
                decision = self._decide(self._transformed(checked), where, mask, first, None)
            except BaseException:
                with self._state_lock:
                    if self.rounds_decided == first + len(checked):  # nobody has decided in between
                        self.rounds_decided = first
                raise
        return self._in_units(decision)

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
        ``round_offset`` is added to the number of the first round, on which random draws depend.
        """
        if rule not in (None, "ucb", "greedy"):
            raise InvalidInput(f"rule must be 'ucb', 'greedy' or None, got {rule!r}")
        with self._state_lock:
            checked, where, mask = self._checked_request(contexts, domain, available)
            first = self.rounds_decided + round_offset
            if self.locks_state:
                decision = self._decide(self._transformed(checked), where, mask, first, rule)
        if not self.locks_state:
            decision = self._decide(self._transformed(checked), where, mask, first, rule)
        return self._in_units(decision)

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
    ) -> list[int | str]:
        """Learn from a batch of rounds: late ones, some of them only, in any order, from any thread.

        Args:
            contexts: (B, *context_shape), as they were given to ``select``.
            arm: the arm that was pulled in each round, (B,).
            reward: what it paid, (B,), within ``reward_range``.
            domain: where the rounds were played; by default as in ``select``.
            ids: a name per round, integers or strings. A round counts once: a name among the latest ``id_window``
                that were learned (262,144), or twice in a batch, is a duplicate.
            propensity: for rounds of a log, the probability with which the logging policy pulled each arm, (B,) in
                (0, 1]; it is used as ``propensity_weighting`` says. Rounds that this policy chose itself need none.
            on_duplicate: "refuse" the whole batch with an error, or "skip" the duplicates and learn the rest.
            propensity_weighting: "importance" (rounds weighted by ``1 / (n_arms * propensity)``, at most 10),
                "flattened" (by the fourth root of that), "doubly_robust" (linear policies: every arm learns a
                pseudo-reward of every round) or "none" (they are not used). By default the first of the policy's
                ``propensity_weightings``, which was the best by measurement (docs/guide/logs.md).

        Returns:
            The ids that were skipped.
        """
        if on_duplicate not in ("refuse", "skip"):
            raise InvalidInput(f"on_duplicate must be 'refuse' or 'skip', got {on_duplicate!r}")
        with self._write_lock:
            checked = self._checked_contexts(contexts)
            where = self._resolved_domain(domain)
            pulled = checked_arms(arm, len(checked), self.n_arms)
            paid = self._checked_rewards(reward, (len(checked),))
            weighting, chance = "none", None
            if propensity is not None or propensity_weighting is not None:
                weighting = checked_weighting(propensity_weighting, self.propensity_weightings, self.name)
                if propensity is not None:
                    chance = checked_propensities(propensity, len(checked))
                elif weighting != "none":
                    raise InvalidInput(f"propensity_weighting={weighting!r} needs the rounds' propensity")
            skipped: list[int | str] = []
            if ids is not None:
                names = self._ids.checked(ids, len(checked))
                new = self._ids.unknown(names)
                skipped = [name for name, is_new in zip(names, new, strict=True) if not is_new]
                if skipped and on_duplicate == "refuse":
                    raise InvalidInput(
                        f"ids: the round {skipped[0]!r} was learned before; every round counts once. "
                        "on_duplicate='skip' learns the others"
                    )
                if skipped:
                    checked, pulled, paid = checked[new], pulled[new], paid[new]
                    chance = None if chance is None else chance[new]
            if len(checked) and chance is not None and weighting == "doubly_robust":
                self._learn_doubly_robust(checked, pulled, paid, chance, where)
            elif len(checked):
                weights = None if chance is None else round_weights(chance, self.n_arms, weighting=weighting)
                self._absorb(checked, pulled, paid, where, weights)
            if ids is not None:
                self._ids.add(name for name, is_new in zip(names, new, strict=True) if is_new)
            return skipped

    def probabilities(
        self,
        contexts: ArrayLike,
        domain: str | None = None,
        available: ArrayLike | None = None,
        *,
        rule: str | None = None,
    ) -> FloatArray:
        """The probability with which ``select`` would choose each arm, (B, K). Arguments as in ``decide``."""
        if rule not in (None, "ucb", "greedy"):
            raise InvalidInput(f"rule must be 'ucb', 'greedy' or None, got {rule!r}")
        with self._state_lock:
            checked, where, mask = self._checked_request(contexts, domain, available)
            if self.locks_state:
                return self._probabilities(self._transformed(checked), where, mask, rule)
        return self._probabilities(self._transformed(checked), where, mask, rule)

    def play(
        self, contexts: ArrayLike, rewards: ArrayLike, domain: str | None = None, available: ArrayLike | None = None
    ) -> Played:
        """Play rounds one after the other, learning after each, where the environment can say what every arm pays.

        The choices are those of ``select`` and ``update`` in turn, round by round; a policy may get there faster.

        Args:
            contexts: (B, *context_shape).
            rewards: what each arm would pay, (B, K). The policy learns the reward of the arm it pulls.
            domain: where the rounds are played; by default as in ``select``.
            available: as in ``select``.
        """
        with self._write_lock:
            checked = self._checked_contexts(contexts)
            where = self._resolved_domain(domain)
            paid = self._checked_rewards(rewards, (len(checked), self.n_arms))
            mask = None if available is None else checked_mask(available, len(checked), self.n_arms)
            play = self._play_known if self._scale.known else self._play_unknown
            return play(checked, paid, where, mask)

    def prepare(self, *contexts: ArrayLike) -> None:
        """Look at unlabelled contexts, of source and target, before the first round: this fits the transform."""
        with self._write_lock:
            if self.transform is not None and self.transform.fitted:
                raise InvalidInput(f"{self.transform!r} is fitted already; what was learned rests on it as it is")
            if self.prepared:
                return
            checked = [self._checked_contexts(batch) for batch in contexts]
            with self._state_lock:
                if self.transform is not None:
                    self.transform.fit(*[batch.reshape(-1, *self.context_shape) for batch in checked])
                self._prepare([self._transformed(batch) for batch in checked])

    @property
    def prepared(self) -> bool:
        """Whether there is nothing left for ``prepare`` to do."""
        return self.transform is None or self.transform.fitted

    def observe_target(self, contexts: ArrayLike) -> None:
        """Unlabelled contexts of the target, (B, *context_shape). Policies that do not adapt ignore them."""
        with self._write_lock:
            self._observe(self._transformed(self._checked_contexts(contexts)))

    def adapt(self, steps: int | None = None) -> dict[str, float]:
        """Take gradient steps; returns what was measured on the way. A policy without an encoder has none to take."""
        if steps is not None:
            checked_whole("steps", steps, least=0)
        with self._write_lock:
            return self._adapt(steps)

    def deploy(self, domain: str) -> None:
        """Set what ``domain=None`` means in ``select``, ``update`` and ``play`` from now on; a saved file keeps it."""
        checked = checked_domain(domain)
        with self._write_lock:
            self.domain = checked

    def trust_prior(self, prior_trust: float | str = "adaptive") -> None:
        """Say how much what was learned so far counts against the rounds that are learned from now on.

        Args:
            prior_trust: a factor from 0 (nothing) to 1 (every round as much as a new one), or "adaptive": several
                factors run beside each other, and the one that predicts rewards best acts.
        """
        discounts = checked_prior_trust(prior_trust)
        with self._write_lock:
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
        kind = type(self)
        freezes, decides = (
            next(at for at, own in enumerate(kind.__mro__) if name in vars(own)) for name in ("_freeze", "_decide")
        )
        if decides < freezes < kind.__mro__.index(Policy):
            raise InvalidInput(
                f"the policy {self.name!r} ({kind.__name__}) cannot be exported: it decides by code of its own and has "
                "no method _freeze of its own, which says what it decides with"
            )
        with self._write_lock, self._state_lock:
            where = self._resolved_domain(domain)
            if not self._scale.known:
                raise InvalidInput(
                    "policy: reward_range='auto' has not seen enough rewards to know the range; update with more "
                    "rounds first"
                )
            step = None
            if self.transform is not None:
                step = copy.deepcopy(frozen_step(self.transform))
            return FrozenPolicy(
                policy=self.name,
                domain=where,
                context_shape=self.context_shape,
                arms=self.arms,
                n_arms=self.n_arms,
                reward_range=self.reward_range,
                largest_norm=self.largest_norm if step is None else LARGEST_RAW_NORM,
                rounds_learned=self.rounds_learned,
                seed=self.seed,
                transform=step,
                table=self.table,
                **self._freeze(where)._asdict(),
            )

    def add_arm(self) -> int:
        """Add an arm of which nothing is known yet, and return its number."""
        with self._write_lock, self._state_lock:
            if len(self._pending) and self.arms == "shared":
                raise InvalidInput(
                    "reward_range='auto' has not seen enough rewards yet, and the rounds it keeps back have no context "
                    "for a new arm; add arms before the first update, or give the range"
                )
            self._grow()
            self.n_arms += 1
            self._set_round_shape()
            return self.n_arms - 1

    def settings(self) -> dict[str, Any]:
        """The keyword arguments that make this policy anew, as JSON can hold them."""
        return {
            "context_shape": list(self.context_shape),
            "n_arms": self.n_arms,
            "arms": self.arms,
            "reward_range": self._scale.setting,
            "transform": transform_settings(self.transform),
            "seed": self.seed,
        }

    @property
    def reward_range(self) -> tuple[float, float]:
        """The smallest and largest reward; with "auto" the estimate, (0, 1) before there is one."""
        return self._scale.low, self._scale.high

    @property
    def knows_reward_range(self) -> bool:
        """Whether predictions are in the user's units: always, but before ``reward_range="auto"`` has its estimate."""
        return self._scale.known

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """The shape of a context behind the transform."""
        return self.context_shape if self.transform is None else (self.transform.n_features(self.context_shape),)

    def __repr__(self) -> str:
        defaults = setting_defaults(type(self))
        settings = {name: value for name, value in self.settings().items() if name != "reward_range"}
        shown = {name: value for name, value in settings.items() if isinstance(value, int | float | str)}
        given = [f"{name}={value!r}" for name, value in shown.items() if value != defaults.get(name)]
        low, high = self.reward_range
        if (low, high) != (0.0, 1.0):
            given.append(f"reward_range=({low:g}, {high:g})")
        arguments = ", ".join([f"context_shape={self.context_shape}", *given])
        counts = f"{self.rounds_decided:,} rounds decided, {self.rounds_learned:,} learned"
        if len(self._pending):
            counts += f", {len(self._pending)} kept back until the range of rewards is known"
        return f"<{type(self).__name__}({arguments}): {counts}, acts in the {self.domain}>"


class _PolicyRegistry(Registry[type[Policy]]):
    """Registered policy classes; each learns its own name."""

    def add(self, name: str, member: type[Policy]) -> None:
        super().add(name, member)
        member.name = name


policies: Registry[type[Policy]] = _PolicyRegistry("policy", "daband.policies")
