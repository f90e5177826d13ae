"""Define ``Policy``, the base class and the interface of all policies.

A custom policy derives from ``Policy``, implements two methods, and is registered by a name:

    @policies.register("mine")
    class Mine(Policy): ...

The two methods are:

* ``_predictor``: return the ``Predictor`` that maps contexts to rewards and confidence bonuses.
* ``_learn``: learn a batch of rounds.

``arm_arrays`` lists the attributes with the learned arrays. A policy whose state is not arrays over
arms replaces ``_grow``, ``_state`` and ``_restore`` instead.

These methods get contexts that are checked and transformed, the index of the domain in
``Policy.domains``, and rewards in the user's unit. They return predictions and bonuses in the same
unit, from which ``Policy`` chooses arms. ``Policy`` also keeps running moments of the learned
rewards (``reward_moments``), for policies that standardise rewards.

A policy may also replace ``_play``, ``_prepare``, ``_observe`` and ``_adapt``, which have a
default. It extends ``settings`` if its constructor has further arguments.

All input is checked completely before anything changes, so an error leaves a policy unchanged.

Any number of threads may share a policy. It has two locks. The *write lock* serialises everything
that changes a policy: ``update``, ``play``, ``observe_target``, ``adapt``, ``add_arm``,
``prepare``, ``save``. The *state lock* is held while learned statistics are read or changed: around
``_predictor`` and ``Predictor.score``, and by default around ``_learn`` and ``_play``. ``adapt``
holds only the write lock, so ``select`` never waits for it. A forked process gets new locks and
other random draws (``policies/_thread_locks.py``).
"""

from __future__ import annotations

import copy
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from daband.base._arguments import check_available, check_class_names, check_int, check_one_of
from daband.base._arrays import (
    MAX_NORM,
    MAX_RAW_NORM,
    AnyArray,
    ArrayLike,
    Arrays,
    ContextRule,
    FloatArray,
    IntArray,
    Mask,
    Scores,
    Shape,
    Weights,
    check_contexts,
    check_number,
    check_rewards,
    check_weights,
    is_finite,
    read_array,
)
from daband.errors import InvalidInput
from daband.features._catalogue import Catalogue
from daband.features._costs import ArmCosts
from daband.features._domain_names import DomainNames
from daband.features._shift import as_shift
from daband.features._table_transform import TableTransform
from daband.features._transforms import (
    Transform,
    adapt_transform,
    as_transform,
    get_transform_settings,
)
from daband.linear._draws import make_draw_key, make_seeded_draw
from daband.linear._exploration import Decision, Exploration, join_decisions
from daband.linear._predictor import ContextStep, Predictor, freeze
from daband.linear._reward_moments import RewardMoments, Scaling
from daband.linear._ridge_head import RidgeHead
from daband.linear._source_worth import WorthEstimate
from daband.policies._checkpoints import check_notes, restore_arrays, save_policy
from daband.policies._incoming_rounds import (
    RoundIds,
    check_shape,
    compute_importance_weights,
    mask_new,
)
from daband.policies._pair_defaults import build_policy_for_pair
from daband.policies._settings import PolicySettings, build_signature, get_setting_defaults
from daband.policies._thread_locks import Locks, run_to_end
from daband.rounds._rounds import Rounds, make_rounds
from daband.serving._frozen_policy import FrozenPolicy


@dataclass(frozen=True, slots=True)
class RewardedDecision(Decision):
    """The decisions of an episode, with their rewards."""

    #: The reward of each chosen arm, (B,).
    reward: FloatArray


class CheckedAttribute:
    """An attribute of a policy that may be None, and is otherwise checked when it is set.

    ``check(policy, value)`` returns the value to store, or raises an error.
    """

    def __init__(self, check: Callable[[Any, Any], Any], doc: str) -> None:
        self._check = check
        self.__doc__ = doc

    def __set_name__(self, _: type, name: str) -> None:
        self._name = f"_{name}"

    def __get__(self, policy: Any, _: type | None = None) -> Any:
        return self if policy is None else getattr(policy, self._name)

    def __set__(self, policy: Any, value: Any) -> None:
        setattr(policy, self._name, None if value is None else self._check(policy, value))


def _create_exploration_property(field_name: str) -> property:
    """Return a property of a policy that reads and changes a field of its ``Exploration``."""

    def get_field(policy: Any) -> Any:
        return getattr(policy.exploration, field_name)

    def set_field(policy: Any, value: Any) -> None:
        checked_value = value if field_name == "rule" else check_number(field_name, value)
        policy.exploration = replace(policy.exploration, **{field_name: checked_value})

    return property(
        get_field, set_field, doc=f"``Exploration.{field_name}``; it may be set at any time."
    )


def _check_table(policy: Policy, table: TableTransform) -> TableTransform:
    """Return the table transform, after checking that its features are the policy's contexts."""
    if not isinstance(table, TableTransform):
        raise InvalidInput(
            f"table must be a daband.domains.TableTransform, e.g. pair.table, got {table!r}"
        )
    if (len(table.feature_names),) != policy.context_shape:
        raise InvalidInput(
            f"table must make contexts of shape {policy.context_shape}, got"
            f" ({len(table.feature_names)},)"
        )
    return table


def _check_catalogue(policy: Policy, catalogue: Catalogue) -> Catalogue:
    """Return the catalogue, after checking that it has the policy's arms."""
    if not isinstance(catalogue, Catalogue):
        raise InvalidInput(
            f"catalogue must be a Catalogue, e.g. pair.catalogue, got {type(catalogue).__name__}"
        )
    if len(catalogue.names) != policy.n_arms or policy.arms == "shared":
        raise InvalidInput(
            f"catalogue must have {policy.n_arms} disjoint arms, got {len(catalogue.names)} arms"
        )
    return catalogue


class Policy(ABC):
    """The base class of policies, which choose one of ``n_arms`` arms for each context.

    Contexts have the shape (B, *context_shape), or (B, n_arms, *context_shape) with
    ``arms="shared"``, one context per arm. Inputs are numpy arrays or torch tensors; outputs are
    numpy arrays. Contexts of type ``uint8`` are images, whose values are divided by 255. Rewards
    may have any unit; predicted rewards and bonuses have the same unit.

    Threads may share a policy. ``update``, ``play``, ``learn_full``, ``prepare``,
    ``observe_target``, ``adapt``, ``add_arm``, ``deploy``, ``frozen``, ``save``, ``restore`` and
    copies hold the write lock, so only one of them runs at a time. ``select``, ``decide`` and
    ``probabilities`` do not wait for it, but only while statistics are read or changed. ``adapt``
    takes the gradient steps of a network, or fits trees, pseudo-labels, or the penalties of a
    regression on arm features again; other policies do nothing. ``daband.train`` calls it after
    every episode.

    Every policy has these settings. Classes with further settings describe only those.

    Args:
        context_shape: the shape of one context.
        n_arms: the number of arms; more can be added later.
        arms: "disjoint" (one context per round) or "shared" (one context per arm).
        explore: the rule by which arms are chosen (``daband.linear.Exploration``). "igw" draws arms
            with probabilities that fall with the gap between their scores and the best score. "ucb"
            chooses the arm with the best score, "greedy" the arm with the largest predicted reward.
            A score is the predicted reward plus the confidence bonus.
        alpha: the factor of the bonus.
        epsilon: the probability of drawing an arm uniformly instead. Logs of a policy with "igw" or
            an ``epsilon`` can be used for off-policy evaluation.
        gamma: the factor of gaps for "igw". A policy with a larger factor explores less.
        standardise_rewards: if True, predictions shrink towards the mean of rewards, and bonuses
            are scaled by a standard deviation of each arm's rewards (``reward_moments``), so that
            the unit of rewards changes no decision. If False, predictions shrink towards 0 and
            bonuses are not scaled.
        transform: applied to contexts first, e.g. ``daband.Standardise()`` or ``daband.PCA(64)``;
            ``prepare`` fits it.
        shift: the assumed difference between the domains (``daband.Shift``). ``for_pair`` chooses a
            transform accordingly.
        source_worth: the number of target rounds as which a source round counts in the target, at
            least 0. By default it is learned from target rewards (``source_worth`` reports it).
        seed: determines random draws and how ties are broken; an integer >= 0.
        domains: the names of the sources and targets, one of each by default.

    >>> policies = [daband.LinUCB, daband.Constant, daband.Trees]
    >>> all(issubclass(policy, daband.Policy) for policy in policies)
    True
    """

    #: The registered name; ``policies.register`` sets it.
    name: ClassVar[str]
    #: True if ``adapt`` takes gradient steps, for which a GPU may be useful.
    learns_by_gradients: bool = False
    #: True for the network that is a member of default mixtures.
    is_default_network: ClassVar[bool] = False
    #: True if decisions depend on the unit and the offset of contexts; ``for_pair`` then
    #: standardises them.
    scale_matters: ClassVar[bool] = False
    #: True if ``Policy`` holds the state lock around ``_learn`` and ``_play``. A policy with long
    #: work in these methods sets it to False, and holds ``self._locks.state`` while it reads or
    #: changes its learned state.
    locks_state: ClassVar[bool] = True
    #: True if the learned state depends on the order of rounds, beyond rounding.
    order_matters: ClassVar[bool] = False
    #: The number of round ids that are stored: see ``update``.
    id_window: ClassVar[int] = 1 << 18
    #: The power of the importance weights of rounds with propensities (``_weigh``): 1 for full
    #: weights, 0 for none.
    propensity_power: ClassVar[float] = 0.25
    #: True if only the ratios of the weights of rounds matter. Otherwise a round of weight 2 counts
    #: as two rounds.
    weights_are_relative: ClassVar[bool] = False
    #: The attributes of learned arrays whose last axis is that of the arms. By default, a new arm
    #: has zeros, and files contain these arrays.
    arm_arrays: ClassVar[tuple[str, ...]] = ()
    #: Defaults of ``PolicySettings`` that differ for this class.
    default_settings: ClassVar[Mapping[str, Any]] = {}
    #: False if the policy cannot have ``arms="shared"``.
    allows_shared_arms: ClassVar[bool] = True
    #: Contexts with a larger Euclidean norm are rejected, unless the policy has a transform.
    max_norm: float = MAX_NORM
    adapts_to_target = property(
        lambda _: False, doc="True if training uses unlabelled target contexts."
    )

    #: The settings by which arms are chosen.
    exploration: Exploration
    _catalogue: Catalogue | None = None

    domain = property(
        lambda self: self.domains.names[self._domain_index],
        doc="The default domain, set by ``deploy``.",
    )
    alpha = _create_exploration_property("alpha")
    epsilon = _create_exploration_property("epsilon")
    explore = _create_exploration_property("rule")
    gamma = _create_exploration_property("gamma")
    table = CheckedAttribute(
        _check_table,
        "The ``TableTransform`` from raw rows to contexts:"
        " ``policy.select(policy.table.contexts({...}))``. ``for_pair`` sets it for a pair made of"
        " tables; a saved file holds it.",
    )
    catalogue = CheckedAttribute(
        _check_catalogue,
        "The arms with their features, or None. ``for_pair`` sets the pair's catalogue. An arm that"
        " a domain does not have is not chosen there. Saved files contain the catalogue.",
    )
    arm_names = CheckedAttribute(
        lambda policy, names: check_class_names(names, policy.n_arms, "arm_names"),
        "A name per arm, or None. Saved files contain the names.",
    )

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls.__signature__ = build_signature(cls)  # type: ignore[attr-defined]

    def __init__(self, **settings: Any) -> None:
        checked = PolicySettings(**{**self.default_settings, **settings})
        self._locks = Locks()
        self.context_shape = check_shape(checked.context_shape)
        self.n_arms = int(checked.n_arms)
        self.arms = checked.arms
        if self.arms == "shared" and not self.allows_shared_arms:
            raise InvalidInput(f"arms must be 'disjoint' for {type(self).__name__}, got 'shared'")
        numbers = {
            name: check_number(name, getattr(checked, name))
            for name in ("alpha", "epsilon", "gamma")
        }
        self.exploration = Exploration(checked.explore, **numbers)
        self.standardise_rewards = checked.standardise_rewards
        #: True if each arm's bonus has its own unit, False if all arms have the same one.
        self._has_arm_units = self.arms == "disjoint"
        #: Moments of the learned rewards.
        self.reward_moments = RewardMoments(standardise=self.standardise_rewards)
        #: The assumed ``Shift`` between the domains.
        self.shift = as_shift(checked.shift, context_shape=self.context_shape)
        #: The transform of contexts, a copy for this policy; None if there is none.
        self.transform: Transform | None = adapt_transform(
            as_transform(checked.transform), self.shift, math.prod(self.context_shape)
        )
        #: The shape of a context after the transform.
        self.feature_shape: Shape = self.context_shape
        if self.transform is not None:
            self.feature_shape = (self.transform.n_features(self.context_shape),)
        #: The fixed worth of a source round in the target; None if it is learned.
        self._fixed_worth = checked.source_worth
        self.seed = int(checked.seed)
        #: The names of the sources and targets. The methods that a policy implements get the index
        #: of a domain in them.
        self.domains = checked.domains or DomainNames()
        #: The index of the first target.
        self._first_target = len(self.domains.sources)
        #: The index of the default domain.
        self._domain_index = 0
        #: The number of rounds for which an arm was chosen.
        self.rounds_decided = 0
        #: The number of rounds whose rewards were learned.
        self.rounds_learned = 0
        #: The ids of the latest learned rounds.
        self._round_ids = RoundIds(self.id_window)
        self.table = None
        self.catalogue = None
        self.arm_names = None
        #: (resize, crop): the side in pixels to which training resized image files, and the side of
        #: the centre crop. None if contexts were not read from files. ``for_pair`` sets it; saved
        #: files contain it.
        self.framing: tuple[int, int] | None = None
        #: The costs of arms, which readers of logs subtract from rewards; None without costs.
        #: ``update`` takes net rewards. ``for_pair`` sets it; saved files contain it.
        self.costs: ArmCosts | None = None
        #: Digests of the learned parts of logs, so that no part is learned twice. Saved files
        #: contain them.
        self.log_parts: frozenset[str] = frozenset()
        #: The number of target logs learned by ``daband.learn_log``; exported files have it.
        self.version = 0

    @classmethod
    def for_pair(cls, pair: Any, **settings: Any) -> Self:
        """Return a policy with the context shape, arms, feedback and transform for a
        ``daband.domains.Pair``.

        ``settings`` are keyword arguments of this class. ``alpha``, ``device`` and ``feedback`` are
        ignored if the class has no such argument, so that a loop over classes needs no special
        cases. Rewards of a pair with feedback "one_hot" are 0 and 1, and are not standardised.
        """
        return build_policy_for_pair(cls, pair, settings)

    # Methods that a policy implements. ``domain`` is the index of a domain in ``self.domains``.

    @abstractmethod
    def _predictor(self, domain: int) -> Predictor:
        """Return the predictor of transformed contexts. Its arrays may be views of learned arrays."""

    @abstractmethod
    def _learn(self, rounds: Rounds, domain: int) -> None:
        """Learn a batch of rounds, with transformed contexts.

        A regression weights them by ``self._weigh(rounds)``.
        """

    # Methods that a policy may replace.

    def _grow(self) -> None:
        """Add space for one more arm; ``n_arms`` is raised afterwards."""
        for name in self.arm_arrays:
            array = getattr(self, name)
            setattr(self, name, np.pad(array, [*[(0, 0)] * (array.ndim - 1), (0, 1)]))

    def _state(self, *, replay: bool = True) -> Arrays:
        """Return the learned state as arrays.

        Without ``replay``, they contain no context, arm or reward of a round.
        """
        return {name: getattr(self, name) for name in self.arm_arrays}

    def _restore(self, state: Arrays) -> None:
        """Restore the state that ``_state`` returned."""
        arrays = {name: read_array(state, name, getattr(self, name)) for name in self.arm_arrays}
        vars(self).update(arrays)

    def _play(
        self,
        contexts: AnyArray,
        rewards: FloatArray,
        domain: int,
        available: Mask,
        first_round: int,
        weights: Weights,
    ) -> Decision:
        """Decide and learn round by round, and update the reward moments.

        Subclasses may do it faster.
        """
        decisions = []
        for index in range(len(contexts)):
            rows = slice(index, index + 1)
            mask = None if available is None else available[rows]
            row_weights = None if weights is None else weights[rows]
            scores = self._predictor(domain)(contexts[rows])
            decision = _decide(self, scores, mask, first_round + index, self.exploration)
            row_rewards = rewards[rows, decision.arm[0]]
            self._learn(
                Rounds(contexts[rows], decision.arm, row_rewards, weights=row_weights), domain
            )
            self._add_to_moments(row_rewards, decision.arm, row_weights)
            decisions.append(decision)
        return join_decisions(decisions)

    def _learn_full(self, contexts: AnyArray, rewards: FloatArray, domain: int) -> None:
        """Learn the rewards (B, K) of all arms of transformed contexts, by default as a round for
        each arm.

        This method also updates the reward moments and the number of learned rounds.
        """
        rows, arms = np.divmod(np.arange(rewards.size), rewards.shape[1])
        learn_transformed(self, Rounds(contexts[rows], arms, rewards.ravel()), domain)

    def _add_to_moments(self, rewards: FloatArray, arms: IntArray, weights: Weights = None) -> None:
        """Add rewards to ``reward_moments``, which other threads read while they decide."""
        with self._locks.state:
            self.reward_moments.add(
                rewards, arms if self._has_arm_units else np.zeros_like(arms), weights
            )

    def _compute_units(self) -> FloatArray:
        """Return the unit of each arm's bonus, (K,), or (1,) if arms are shared."""
        return self.reward_moments.compute_units(self.n_arms if self._has_arm_units else 1)

    def _weigh(self, rounds: Rounds) -> Weights:
        """Return the weights (B,) of rounds in a regression: their weights times their importance
        weights; None if each round counts once.
        """
        if rounds.propensities is None:
            return rounds.weights
        weights = compute_importance_weights(
            rounds.propensities, self.n_arms, rounds.offered, self.propensity_power
        )
        return weights if rounds.weights is None else rounds.weights * weights

    def _get_source_worth(self) -> WorthEstimate | None:
        """Return how much the source counts; None if all rounds count the same."""
        head: RidgeHead | None = getattr(self, "_head", None)
        return None if head is None else head.estimate_worth()

    def _set_fixed_worth(self, worth: float | None) -> None:
        """Set the worth of a source round before the first target round; None to learn it."""
        self._fixed_worth = worth
        if hasattr(self, "_head"):
            self._head.fixed_worth = worth

    @property
    def has_seen_target(self) -> bool:
        """True if decisions depend on target contexts without rewards."""
        return False

    def _get_reference(self, domain: int) -> AnyArray | None:
        """Return stored contexts of a domain for the monitor of an exported policy, or None."""
        return None

    def _prepare(self, contexts: Sequence[AnyArray]) -> None:  # noqa: B027
        """Use unlabelled contexts, one transformed batch per domain, before the first round."""

    def _observe(self, contexts: AnyArray, domain: int) -> None:  # noqa: B027
        """Use unlabelled contexts of a target."""

    def _adapt(self, steps: int | None) -> dict[str, float]:
        """Take gradient steps or fit again, and return metrics by name."""
        return {}

    @property
    def _draw_key(self) -> np.uint64:
        """The key of the random draws; a forked process has another one."""
        return make_draw_key(self.seed, self._locks.fork_path)

    @property
    def _state_lock(self) -> AbstractContextManager[object]:
        """The lock of the state. It does nothing in policies that hold the lock themselves."""
        return self._locks.state if self.locks_state else nullcontext()

    # Methods that users call.

    def select(
        self, contexts: ArrayLike, domain: str | None = None, available: ArrayLike | None = None
    ) -> Decision:
        """Choose an arm for every context.

        Args:
            contexts: (B, *context_shape).
            domain: the domain of the contexts, "source" or "target"; by default the domain set by
                ``deploy``, or "source" if ``deploy`` was not called.
            available: booleans (K,) or (B, K), True for each arm that may be chosen; all arms by
                default.

        Returns:
            A ``Decision``. ``.arm`` (B,) has the chosen arms, ``.propensity`` (B,) their
            probabilities, ``.mean`` (B, K) the predicted rewards, and ``.bonus`` (B, K) the
            confidence bonuses, before the factor ``alpha``.
        """
        with self._locks.state:
            batch, domain_index, mask = _check_request(self, contexts, domain, available)
            first_round = self.rounds_decided
            next_round = first_round + len(batch)
            self.rounds_decided = next_round
        try:
            scores = predict(self, batch, domain_index)
            return _decide(self, scores, mask, first_round, self.exploration)
        except BaseException:
            with self._locks.state:
                if self.rounds_decided == next_round:  # no other thread has decided in between
                    self.rounds_decided = first_round
            raise

    def decide(
        self,
        contexts: ArrayLike,
        domain: str | None = None,
        available: ArrayLike | None = None,
        *,
        rule: str | None = None,
        round_offset: int = 0,
    ) -> Decision:
        """Choose arms as ``select`` does, but do not count the rounds as played.

        The policy does not change.

        Args:
            contexts: (B, *context_shape).
            domain: as in ``select``.
            available: as in ``select``.
            rule: "ucb" or "greedy" instead of the policy's exploration. Both are deterministic
                except for ties. With "greedy", bonuses are not computed and are 0.
            round_offset: added to the number of the first round, which determines the random draws.

        Returns:
            A ``Decision``, as in ``select``.
        """
        check_one_of("rule", rule, ("ucb", "greedy", None))
        batch, domain_index, mask = _check_request(self, contexts, domain, available)
        scores = predict(self, batch, domain_index, rule != "greedy")
        exploration = self.exploration.with_rule(rule)
        return _decide(self, scores, mask, self.rounds_decided + round_offset, exploration)

    def probabilities(
        self,
        contexts: ArrayLike,
        domain: str | None = None,
        available: ArrayLike | None = None,
        *,
        rule: str | None = None,
    ) -> FloatArray:
        """Return the probability with which ``select`` would choose each arm, (B, K).

        Arguments as in ``decide``.
        """
        check_one_of("rule", rule, ("ucb", "greedy", None))
        batch, domain_index, mask = _check_request(self, contexts, domain, available)
        mean, bonus = predict(self, batch, domain_index, rule != "greedy")
        mask = _drop_new_arms(mask, mean.shape[1])
        exploration = self.exploration.with_rule(rule)
        return exploration.probabilities(mean, bonus, available=mask, scaling=_get_scaling(self))

    def update(
        self,
        contexts: ArrayLike,
        arm: ArrayLike,
        reward: ArrayLike,
        domain: str | None = None,
        weights: ArrayLike | None = None,
        propensities: ArrayLike | None = None,
        available: ArrayLike | None = None,
        clusters: ArrayLike | None = None,
        ids: Sequence[int | str] | IntArray | None = None,
        on_duplicate: str = "raise",
    ) -> list[int | str]:
        """Learn from a batch of rounds.

        Rounds may come late, incompletely, in any order, and from any thread.

        Args:
            contexts: (B, *context_shape), as given to ``select``.
            arm: the arm that was played in each round, (B,).
            reward: the reward of that arm, (B,). Any unit is allowed, but all rounds must have the
                same.
            domain: the domain in which the rounds were played; by default as in ``select``.
            weights: how much each round counts, (B,), at least 0; 1 by default. A round of weight 2
                counts as two rounds; for ``LogPolicy`` only the ratios of weights matter.
            propensities: the probability with which the arm of each round was chosen, (B,), in (0,
                1], for rounds that another policy chose. ``LogPolicy`` uses propensities in doubly
                robust scores, and estimates those that are not given. Other policies multiply the
                weights by importance weights.
            available: the arms that could be chosen, as in ``select``. Importance weights depend on
                their number.
            clusters: the cluster of each round, (B,), as integers or strings, if arms were drawn for
                clusters of rounds such as schools or customers. ``LogPolicy`` computes standard
                errors by cluster; other policies ignore it.
            ids: an integer or string per round, so that a round counts only once. An id that is
                repeated in the batch, or is among the latest ``id_window`` learned ids (262,144),
                is a duplicate. A round is learned together with its id or not at all, even if a
                signal handler raises an exception.
            on_duplicate: "raise" raises an error and learns nothing; "skip" ignores duplicates and
                learns the rest.

        Returns:
            The ids that were skipped.
        """
        if on_duplicate != "raise":
            check_one_of("on_duplicate", on_duplicate, ("raise", "skip"))

        def learn() -> list[int | str]:
            with self._locks.write:
                domain_index = _find_domain_index(self, domain)
                rounds = check_rounds(
                    self, contexts, arm, reward, weights, propensities, available, clusters
                )
                if self.transform is not None:
                    features = _transform(self, rounds.contexts, domain_index)
                    rounds = replace(rounds, contexts=features)
                if ids is None:
                    learn_transformed(self, rounds, domain_index)
                    return []
                checked_ids = self._round_ids.check(ids, len(rounds.arms))
                is_new = mask_new(checked_ids, self._round_ids)
                duplicates = list(itertools.compress(checked_ids, ~is_new))
                if duplicates and on_duplicate == "raise":
                    raise InvalidInput(
                        f"ids must be new, but the round {duplicates[0]!r} was learned before or is"
                        " repeated in this batch; on_duplicate='skip' learns the other rounds"
                    )
                if is_new.any():
                    new_rounds = rounds.select(is_new) if duplicates else rounds
                    learn_transformed(self, new_rounds, domain_index)
                self._round_ids.add(checked_ids)
                return duplicates

        return learn() if ids is None else run_to_end(self._locks, learn)

    def play(
        self,
        contexts: ArrayLike,
        rewards: ArrayLike,
        domain: str | None = None,
        available: ArrayLike | None = None,
        weights: ArrayLike | None = None,
    ) -> RewardedDecision:
        """Choose an arm and learn its reward, round by round, if the reward of every arm is known.

        The result equals a loop of ``select`` and ``update`` over single rounds, but may be
        computed faster.

        Args:
            contexts: (B, *context_shape).
            rewards: the reward of each arm, (B, K). The policy learns only the reward of the chosen
                arm.
            domain: the domain in which the rounds are played; by default as in ``select``.
            available: as in ``select``.
            weights: as in ``update``.

        Returns:
            A ``Decision`` as in ``select``, with ``.reward`` (B,), the reward of each chosen arm.
        """
        with self._locks.write:
            batch, domain_index, mask = _check_request(self, contexts, domain, available)
            n_rounds = len(batch)
            reward_table = check_rewards(rewards, (n_rounds, self.n_arms))
            checked_weights = check_weights(weights, n_rounds)
            with self._locks.state:
                first_round = self.rounds_decided
                self.rounds_decided += n_rounds
            try:
                with self._state_lock:
                    features = _transform(self, batch, domain_index)
                    decision = self._play(
                        features, reward_table, domain_index, mask, first_round, checked_weights
                    )
            except BaseException:
                with self._locks.state:
                    self.rounds_decided -= n_rounds
                raise
            self.rounds_learned += n_rounds
            received_rewards = reward_table[np.arange(n_rounds), decision.arm]
            return RewardedDecision(
                decision.arm, decision.propensity, decision.mean, decision.bonus, received_rewards
            )

    def learn_full(
        self, contexts: ArrayLike, rewards: ArrayLike, domain: str | None = None
    ) -> None:
        """Learn the rewards of all arms of each context.

        Labels are rewards too: the arm equal to the label has reward 1, every other arm 0.

        Args:
            contexts: (B, *context_shape).
            rewards: the reward of each arm, (B, K).
            domain: the domain of the contexts; by default as in ``select``.
        """
        with self._locks.write:
            batch, domain_index, _ = _check_request(self, contexts, domain, None)
            reward_table = check_rewards(rewards, (len(batch), self.n_arms))
            if getattr(self, "feedback", "") == "one_hot" and not is_one_hot(reward_table):
                raise InvalidInput(
                    "rewards must be 1 for one arm of each row and 0 for the others with"
                    " feedback='one_hot'; use feedback='bandit' for other rewards"
                )
            self._learn_full(_transform(self, batch, domain_index), reward_table, domain_index)

    def prepare(self, *contexts: ArrayLike) -> None:
        """Fit the transform to unlabelled contexts of all domains, before the first round.

        Args:
            contexts: one batch (B, *context_shape) per domain, in the order of ``domains``. With
                several sources, the batch of a source without rounds may be empty.
        """
        with self._locks.write:
            if self.transform is not None and self.transform.fitted:
                raise InvalidInput(
                    f"{self.transform!r} is already fitted, and the learned state depends on it"
                )
            if self.prepared:
                return
            batches = []
            for batch in contexts:
                is_empty = (
                    len(self.domains) > 2 and isinstance(batch, np.ndarray) and not batch.size
                )
                batches.append(
                    np.zeros((0, *_get_round_shape(self)))
                    if is_empty
                    else _check_contexts(self, batch)
                )
            with self._locks.state:
                if self.transform is not None:
                    self.transform.fit(
                        *[batch.reshape(-1, *self.context_shape) for batch in batches]
                    )
                self._prepare(
                    [_transform(self, batch, domain) for domain, batch in enumerate(batches)]
                )

    @property
    def source_worth(self) -> WorthEstimate | None:
        """How much the source counts in the target: ``worth`` is the number of target rounds as
        which a source round counts, ``rounds`` the number as which all source rounds count.

        The worth is 1 before the first target round. None if the policy does not learn a worth.

        >>> policy = daband.LinUCB(context_shape=(1,), n_arms=2, source_worth=0.5)
        >>> skipped = policy.update([[1.0], [0.5]] * 20, [0, 1] * 20, [0.0, 1.0] * 20)
        >>> skipped = policy.update([[1.0]], [0], [1.0], domain="target")
        >>> print(policy.source_worth)
        a source round counts as 0.5 target rounds; the source counts as 20 in all
        """
        with self._state_lock:
            return self._get_source_worth()

    @property
    def prepared(self) -> bool:
        """True if the transform is fitted, or if there is none."""
        return self.transform is None or self.transform.fitted

    def observe_target(self, contexts: ArrayLike, domain: str | None = None) -> None:
        """Store unlabelled contexts of a target for ``adapt``.

        Policies that do not adapt ignore them.

        Args:
            contexts: (B, *context_shape).
            domain: the target's name, if there are several targets.
        """
        domain_index = _find_domain_index(self, "target" if domain is None else domain)
        if not self.domains.is_target(domain_index):
            raise InvalidInput(
                f"domain must be a target ({', '.join(self.domains.targets)}), got {domain!r}"
            )
        with self._locks.write:
            self._observe(
                _transform(self, _check_contexts(self, contexts), domain_index), domain_index
            )

    def plan(self, episodes: int) -> None:  # noqa: B027
        """Set the number of episodes of a run, on which the schedules of some policies depend."""

    def adapt(self, steps: int | None = None) -> dict[str, float]:
        """Take gradient steps, or fit again, and return metrics by name, such as "loss".

        Linear policies without arm features do nothing. Other threads may decide meanwhile.

        Args:
            steps: the number of gradient steps; by default the policy's own schedule.
        """
        if steps is not None and not (type(steps) is int and steps >= 0):
            check_int("steps", steps, minimum=0)
        with self._locks.write:
            return self._adapt(steps)

    def deploy(self, domain: str) -> None:
        """Set the default domain of ``select``, ``update`` and ``play``. Saved files contain it."""
        with self._locks.write:
            self._domain_index = self.domains.index(domain)

    def frozen(self, domain: str | None = None) -> FrozenPolicy:
        """Return an immutable copy of the arrays that decide in a domain, by default the domain set
        by ``deploy``.

        ``daband.export`` writes it to a file. No round is learned while the copy is made.
        """
        with self._locks.write, self._locks.state:
            domain_index = _find_domain_index(self, domain)
            predictor = freeze(make_predictor(self, domain_index))
            catalogue = self._catalogue
            if catalogue is not None:  # both domains get the arms of this one
                offered = catalogue.offered[int(self.domains.is_target(domain_index))]
                catalogue = replace(catalogue, offered=np.stack([offered, offered]))
            return FrozenPolicy(
                policy=self.name,
                domain=self.domains.names[domain_index],
                context_shape=self.context_shape,
                arms=self.arms,
                n_arms=self.n_arms,
                scaling=_get_scaling(self),
                max_norm=self.max_norm if self.transform is None else MAX_RAW_NORM,
                rounds_learned=self.rounds_learned,
                exploration=self.exploration,
                seed=self.seed,
                predictor=predictor,
                table=self.table,
                catalogue=catalogue,
                round_counts=getattr(self, "counts", None),
                reference=self._get_reference(domain_index),
                has_seen_target=self.has_seen_target,
            )

    def add_arm(self, name: str | None = None, features: Any = None) -> int:
        """Add an arm without rounds, and return its index.

        Args:
            name: the name of the arm; by default its index. If arms had no names, they get their
                indices as names.
            features: for a policy with a catalogue, a mapping from the catalogue's columns to the
                arm's values.
        """
        with self._locks.write, self._locks.state:
            if (features is None) != (self._catalogue is None):
                requirement = (
                    "None without a catalogue"
                    if self._catalogue is None
                    else "given for a catalogue"
                )
                raise InvalidInput(f"features must be {requirement}")
            default_name = str(self.n_arms)
            old_catalogue = self._catalogue
            names = self.arm_names or (() if name is None else tuple(map(str, range(self.n_arms))))
            new_name = name or (f"arm {default_name}" if default_name in names else default_name)
            if not isinstance(new_name, str) or new_name in names:
                problem = "is already an arm" if isinstance(new_name, str) else "is not a string"
                raise InvalidInput(f"name must be a new string: {new_name!r} {problem}")
            if old_catalogue is not None:
                self._catalogue = old_catalogue.with_arms([new_name], [features])
            try:
                self._grow()
            except BaseException:
                self._catalogue = old_catalogue
                raise
            self.n_arms += 1
            if names:
                self.arm_names = (*names, new_name)
            return self.n_arms - 1

    def settings(self) -> dict[str, Any]:
        """Return the keyword arguments that create an equal untrained policy, as JSON types."""
        settings = {
            "context_shape": list(self.context_shape),
            "n_arms": self.n_arms,
            "arms": self.arms,
            "alpha": self.alpha,
            "explore": self.explore,
            "epsilon": self.epsilon,
            "gamma": self.gamma,
            "standardise_rewards": self.standardise_rewards,
            "transform": get_transform_settings(self.transform),
            "source_worth": self._fixed_worth,
            "seed": self.seed,
            "catalogue": None if self._catalogue is None else self._catalogue.state(),
            **({"shift": self.shift.state()} if self.shift.stated else {}),
            **({} if self.domains == DomainNames() else {"domains": self.domains.settings()}),
        }
        accepted_settings = get_setting_defaults(type(self))  # a class may lack arms or transform
        return {name: value for name, value in settings.items() if name in accepted_settings}

    def __repr__(self) -> str:
        defaults = get_setting_defaults(type(self))
        scalars = {
            name: value
            for name, value in self.settings().items()
            if isinstance(value, int | float | str)
        }
        texts = [
            f"{name}={value!r}"
            for name, value in scalars.items()
            if name != "n_arms" and value != defaults[name]
        ]
        arguments = ", ".join([f"context_shape={self.context_shape}, n_arms={self.n_arms}", *texts])
        progress = f"{self.rounds_decided:,} rounds decided, {self.rounds_learned:,} learned"
        return f"<{type(self).__name__}({arguments}): {progress}, acts in the {self.domain}>"

    def save(
        self, path: str | Path, *, notes: Mapping[str, str] | None = None, replay: bool = True
    ) -> None:
        """Write the policy to one safetensors file.

        A loaded policy continues with bitwise equal results.

        Args:
            path: the file. An existing file keeps its mode; a symbolic link is kept, and its target
                is written.
            notes: short texts by name, which are stored with the policy.
            replay: if True, also store training data: contexts, arms, rewards, and round ids.
                Without them the loaded policy decides the same and can learn new rounds, but does
                not recognise the ids of earlier rounds.
        """
        checked_notes = check_notes(notes)
        with self._locks.write:  # nothing changes meanwhile; ``select`` only reads
            save_policy(self, path, checked_notes, replay=replay)

    def restore(self, arrays: Arrays) -> None:
        """Set the learned state to the arrays of a saved policy with the same settings.

        An error changes nothing.
        """
        with self._locks.write, self._locks.state:
            for name, array in arrays.items():
                if not is_finite(array):
                    raise ValueError(f"{name} has a NaN or infinite value")
            old_attributes = copy.deepcopy(self.__dict__, {id(self._locks): self._locks})
            try:
                restore_arrays(self, arrays)
            except BaseException:
                self.__dict__.update(old_attributes)
                raise

    def __getstate__(self) -> dict[str, Any]:
        # Copied while the lock is held, so that a copy or a pickle never contains half of another
        # thread's change.
        with self._locks.write:
            return copy.deepcopy(self.__dict__)


# Helpers between the public methods and those that a policy implements.


def make_predictor(policy: Policy, domain_index: int) -> Predictor:
    """Return the predictor of contexts before the policy's transform."""
    predictor = policy._predictor(domain_index)
    if policy.transform is None:
        return predictor
    step = policy.transform.get_step(domain_index)
    return predictor.after(ContextStep(policy.context_shape, step))


def predict(
    policy: Policy, contexts: AnyArray, domain_index: int, with_bonuses: bool = True
) -> Scores:
    """Return predicted rewards and bonuses (B, K) of checked contexts.

    The state lock is not held while features are computed, which takes long for a network.
    """
    with policy._locks.state:
        predictor = make_predictor(policy, domain_index)
    features = predictor.compute_features(contexts)
    with policy._locks.state:
        return predictor.score(features, with_bonuses)


def _decide(
    policy: Policy, scores: Scores, available: Mask, first_round: int, exploration: Exploration
) -> Decision:
    """Return decisions for predicted rewards and bonuses, (B, K) each.

    ``first_round`` is the number of the first round, which determines the random draws.
    """
    draw = make_seeded_draw(policy._draw_key, first_round)
    mask = _drop_new_arms(available, scores[0].shape[1])
    return exploration.decide(*scores, draw, mask, scaling=_get_scaling(policy))


def _get_scaling(policy: Policy) -> Scaling:
    """Return the unit and the number of the learned rewards."""
    with policy._locks.state:
        return policy.reward_moments.make_scaling(policy._compute_units())


def _drop_new_arms(available: Mask, n_arms: int) -> Mask:
    """Return the mask as (B, n_arms), with False for arms that another thread added after the mask
    was checked.
    """
    if available is None or available.shape[1] == n_arms:
        return available
    return np.pad(available[:, :n_arms], ((0, 0), (0, max(0, n_arms - available.shape[1]))))


def check_rounds(
    policy: Policy,
    contexts: ArrayLike,
    arm: ArrayLike,
    reward: ArrayLike,
    weights: ArrayLike | None = None,
    propensities: ArrayLike | None = None,
    available: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
) -> Rounds:
    """Return the rounds that ``update`` got, after checking them. Contexts are not transformed."""
    return make_rounds(
        contexts,
        arm,
        reward,
        propensities,
        weights,
        available,
        clusters,
        n_arms=policy.n_arms,
        context_rule=_get_context_rule(policy),
    )


def is_one_hot(rewards: FloatArray) -> bool:
    """Return True if one arm of each row (B, K) has reward 1 and all others 0."""
    has_one = (rewards == 1.0).sum(axis=1) == 1
    return bool(has_one.all() and np.count_nonzero(rewards) == len(rewards))


def learn_transformed(policy: Policy, rounds: Rounds, domain_index: int) -> None:
    """Learn checked rounds with transformed contexts."""
    with policy._state_lock:
        policy._learn(rounds, domain_index)
        weights = rounds.weights if rounds.propensities is None else policy._weigh(rounds)
        policy._add_to_moments(rounds.rewards, rounds.arms, weights)
        policy.rounds_learned += len(rounds.arms)


def check_and_transform(policy: Policy, contexts: AnyArray, domain_index: int) -> AnyArray:
    """Return contexts after checking and transforming them.

    ``domain_index`` is the index of their domain.
    """
    return _transform(policy, _check_contexts(policy, contexts), domain_index)


def _transform(policy: Policy, contexts: AnyArray, domain_index: int) -> AnyArray:
    """Return contexts after the policy's transform, if it has one."""
    transform = policy.transform
    if transform is None:
        return contexts
    batch_shape = contexts.shape[: -len(policy.context_shape)]
    rows = contexts.reshape(-1, *policy.context_shape)
    features = transform(rows, domain_index)
    return features.reshape(*batch_shape, features.shape[-1])


def _get_round_shape(policy: Policy) -> Shape:
    """Return the shape of a round's contexts: of one context, or of one context per arm."""
    return (
        (policy.n_arms, *policy.context_shape) if policy.arms == "shared" else policy.context_shape
    )


def _get_context_rule(policy: Policy) -> ContextRule:
    """Return which contexts the policy accepts, before its transform."""
    return ContextRule(
        policy.context_shape if policy.arms == "disjoint" else _get_round_shape(policy),
        math.prod(policy.context_shape),
        policy.max_norm if policy.transform is None else MAX_RAW_NORM,
    )


def _check_contexts(policy: Policy, contexts: ArrayLike) -> AnyArray:
    """Return contexts as an array, after checking their shape and their numbers."""
    if hasattr(contexts, "columns"):
        remedy = (
            "pass its columns as an array"
            if policy.table is None
            else "policy.table.contexts(frame) converts its rows"
        )
        raise InvalidInput(f"contexts must be an array of numbers, got a frame: {remedy}")
    return check_contexts(contexts, _get_context_rule(policy))


def _check_request(
    policy: Policy, contexts: ArrayLike, domain: str | None, available: ArrayLike | None
) -> tuple[AnyArray, int, Mask]:
    """Return checked contexts, the index of the domain, and the mask of arms that may be chosen."""
    batch = _check_contexts(policy, contexts)
    domain_index = _find_domain_index(policy, domain)
    mask = None if available is None else check_available(available, len(batch), policy.n_arms)
    catalogue = policy._catalogue
    if (
        catalogue is not None
        and not (offered := catalogue.offered[int(policy.domains.is_target(domain_index))]).all()
    ):
        mask = (
            np.tile(offered, (len(batch), 1)) if mask is None else mask & offered[: mask.shape[1]]
        )
        if not mask.any(axis=1).all():
            raise InvalidInput(
                f"available must include an arm that the {policy.domains.names[domain_index]} has"
            )
    return batch, domain_index, mask


def _find_domain_index(policy: Policy, domain: str | None) -> int:
    """Return the index of a domain.

    None is the domain set by ``deploy``, and so is "target" if that is a target.
    """
    deployed_index = policy._domain_index
    if domain is None or (
        isinstance(domain, str) and domain == "target" and policy.domains.is_target(deployed_index)
    ):
        return deployed_index
    return policy.domains.index(domain)


def transform_contexts(policy: Policy, contexts: ArrayLike, domain: str | None = None) -> AnyArray:
    """Return contexts (B, *context_shape) of a domain, checked and transformed."""
    batch, domain_index, _ = _check_request(policy, contexts, domain, None)
    return _transform(policy, batch, domain_index)
