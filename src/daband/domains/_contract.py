"""Define which data training and evaluation can read from a domain.

Four types separate the data, so that training cannot see target rewards:

* ``Contexts`` has contexts only. Training gets nothing else from the target.
* ``RewardDomain`` has contexts with the reward of a chosen arm. It is the source, and after
  deployment the target.
* ``LoggedDomain`` has the contexts, arms and rewards that another policy logged.
* ``EvaluationDomain`` has contexts with the expected reward of every arm. Only the evaluator takes
  it.

A ``Pair`` combines the domains of one problem.

A domain has no cursor. ``batch(start, stop, seed=...)`` is a pure function of its arguments, so a
killed run resumes from a round number, and two methods with one seed see the same contexts in the
same order.

In the shapes of arrays, B is the number of contexts or rounds, K the number of arms, and C the
shape of one context.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from textwrap import shorten
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from daband.base._arrays import AnyArray, FloatArray, IntArray, Shape, take_chosen
from daband.errors import InvalidInput
from daband.features._domain_names import DomainNames
from daband.features._shift import Shift, as_shift
from daband.rounds._rounds import Rounds

if TYPE_CHECKING:
    from daband.features._catalogue import Catalogue
    from daband.features._costs import ArmCosts
    from daband.features._table_transform import TableTransform


@dataclass(frozen=True)
class FullRounds:
    """Rounds of a reward domain: contexts, and the reward of each arm.

    Only the training loop has the rewards of all arms. A policy gets the reward of the arm that it
    chose.
    """

    #: Contexts, (B, *C).
    contexts: AnyArray
    #: Realised rewards, (B, K). They are drawn once for all arms, so that methods are compared on
    #: the same draws.
    rewards: FloatArray
    #: Expected rewards, (B, K), if they are known; regret is then exact.
    expected: FloatArray | None = None
    #: Name of the domain of each round, (B,); None if all are of one domain.
    domains: AnyArray | None = None

    def __len__(self) -> int:
        return len(self.contexts)

    def chosen_rewards(self, arms: IntArray) -> FloatArray:
        """Return the rewards (B,) of the given arms (B,), one per round."""
        return take_chosen(self.rewards, arms)

    def regret(self, arms: IntArray) -> FloatArray:
        """Return the expected regret (B,) of the given arms (B,) against the best arms; NaN if it
        is not known.
        """
        if self.expected is None:
            return np.full(len(self.contexts), np.nan)
        return self.expected.max(axis=1) - take_chosen(self.expected, arms)


class Contexts(ABC):
    """A finite collection of contexts, in a random order that depends only on a seed.

    A subclass defines ``context_shape``, ``__len__`` and ``read``.

    >>> target = daband.domains.load("synthetic", tiny=True).target
    >>> target.batch(0, 4, seed=0).shape
    (4, 8)
    """

    #: Shape C of one context.
    context_shape: Shape
    #: For contexts read from image files: the side in pixels after resizing, and the side of the
    #: centre crop.
    framing: tuple[int, int] | None = None
    #: Columns (n,), such as ids or file names, by which people recognise the contexts. A policy
    #: never sees them.
    row_names: Mapping[str, Sequence[object]] = MappingProxyType({})
    #: The user's rows (a polars frame) without labels and rewards; None if the contexts do not come
    #: from a table.
    frame: Any = None
    #: A part of the seed of the order. It differs by class, so that source and target have
    #: different orders.
    _order_seed: int = 0

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of contexts, each counted once."""

    @abstractmethod
    def read(self, indices: IntArray) -> AnyArray:
        """Return the contexts at these indices, (B, *context_shape), or (B, K, *context_shape) for
        shared arms.
        """

    def read_raw(self, indices: IntArray) -> Any:
        """Return the raw contexts at these indices: rows of ``frame`` if there is one, else the
        result of ``read``.
        """
        return self.read(indices) if self.frame is None else self.frame[indices]

    def order(self, start: int, stop: int, *, seed: int) -> IntArray:
        """Return the indices of the contexts shown in rounds ``start`` to ``stop - 1``, (stop -
        start,).
        """
        if not 0 <= start <= stop:
            raise InvalidInput(
                f"rounds must satisfy 0 <= start <= stop, got start={start}, stop={stop}"
            )
        pass_numbers, offsets = np.divmod(np.arange(start, stop), len(self))
        indices = np.empty(stop - start, np.int64)
        for number in np.unique(pass_numbers).tolist():
            is_in_pass = pass_numbers == number
            order = _draw_permutation(len(self), seed, number, self._order_seed)
            indices[is_in_pass] = order[offsets[is_in_pass]]
        return indices

    def read_rounds(self, indices: IntArray) -> Any:
        """Return the contexts at these indices; in a subclass, rounds that have these contexts and
        their rewards.
        """
        return self.read(indices)

    def batch(self, start: int, stop: int, *, seed: int) -> AnyArray:
        """Return the contexts of rounds ``start`` to ``stop - 1``; the seed determines
        their order.
        """
        return self.read(self.order(start, stop, seed=seed))

    @property
    def by_name(self) -> Mapping[str | None, Contexts]:
        """The component domains by name; a domain that is not a mixture has the name None."""
        return {None: self}

    def read_by_domain(self, start: int, stop: int, *, seed: int) -> list[tuple[str | None, Any]]:
        """Return the name of each component domain with its part of ``batch``, or of ``rounds`` if
        it has rewards.
        """
        return [(None, self.batch(start, stop, seed=seed))]


class FeedbackDomain(Contexts):
    """Contexts with rewards. ``read_rounds`` returns both."""

    #: Number of arms, K.
    n_arms: int

    def rounds(self, start: int, stop: int, *, seed: int) -> Any:
        """Return rounds ``start`` to ``stop - 1``; the seed determines their order."""
        return self.read_rounds(self.order(start, stop, seed=seed))

    def read_by_domain(self, start: int, stop: int, *, seed: int) -> list[tuple[str | None, Any]]:
        return [(None, self.rounds(start, stop, seed=seed))]


class RewardDomain(FeedbackDomain):
    """Contexts with the reward of a chosen arm.

    >>> source = daband.domains.load("synthetic", tiny=True).source
    >>> rounds = source.rounds(0, 4, seed=0)
    >>> rounds.contexts.shape, rounds.chosen_rewards([0, 1, 2, 0]).shape
    ((4, 8), (4,))
    """

    _order_seed = 1
    #: True if training learns the rewards of all arms of each context ("full" feedback). False if
    #: it plays rounds, and learns the reward of the arm that it chose.
    full_feedback: bool = False

    @abstractmethod
    def read_rewards(self, indices: IntArray) -> tuple[FloatArray, FloatArray | None]:
        """Return the realised rewards (B, K) of these contexts, and the expected rewards if they
        are known.
        """

    def read_rounds(self, indices: IntArray) -> FullRounds:
        return FullRounds(self.read(indices), *self.read_rewards(indices))


class LoggedDomain(FeedbackDomain):
    """The log of another policy: contexts with the chosen arm, its reward and its propensity."""

    _order_seed = 2
    #: Digests of the files that the rounds were read from, as in ``Policy.log_parts``.
    log_parts: frozenset[str] = frozenset()

    @abstractmethod
    def read_rounds(self, indices: IntArray) -> Rounds:
        """Return the rounds at these indices."""

    def read(self, indices: IntArray) -> AnyArray:
        return self.read_rounds(indices).contexts

    def read_log(self, indices: IntArray) -> tuple[IntArray, FloatArray, FloatArray]:
        """Return the arms, rewards and propensities at these indices, each (B,)."""
        rounds = self.read_rounds(indices)
        return rounds.arms, rounds.rewards, rounds.known_propensities


class EvaluationDomain:
    """Contexts with the expected reward of every arm, in a fixed order.

    Args:
        domain: the contexts and rewards. If they have no expected rewards, the rewards are used.

    >>> test = daband.domains.load("synthetic", tiny=True).target_test
    >>> test.read(0, 3).shape, test.read_expected(0, 3).shape
    ((3, 8), (3, 3))
    """

    def __init__(self, domain: RewardDomain) -> None:
        #: The contexts and rewards.
        self.domain = domain
        #: Shape C of one context.
        self.context_shape = domain.context_shape
        #: Number of arms, K.
        self.n_arms = domain.n_arms

    def __len__(self) -> int:
        return len(self.domain)

    def read(self, start: int, stop: int) -> AnyArray:
        """Return contexts ``start`` to ``stop - 1``, (B, *context_shape)."""
        return self.domain.read(np.arange(start, min(stop, len(self))))

    def read_expected(self, start: int, stop: int) -> FloatArray:
        """Return the expected rewards of contexts ``start`` to ``stop - 1``, (B, K)."""
        rewards, expected = self.domain.read_rewards(np.arange(start, min(stop, len(self))))
        return rewards if expected is None else expected

    @property
    def by_name(self) -> Mapping[str | None, EvaluationDomain]:
        """The component domains by name; a domain that is not a mixture has the name None."""
        parts: Mapping[str | None, Any] = self.domain.by_name
        return {name: EvaluationDomain(part) for name, part in parts.items()}

    def batches(self, batch_size: int) -> Iterator[tuple[AnyArray, FloatArray]]:
        """Yield all contexts and expected rewards, at most ``batch_size`` at a time."""
        for start in range(0, len(self), batch_size):
            stop = min(start + batch_size, len(self))
            yield self.read(start, stop), self.read_expected(start, stop)


@dataclass(frozen=True)
class About:
    """A description of a pair for its users."""

    #: What the data are, in one line.
    summary: str
    #: Licence of the data.
    licence: str = "none needed: generated"
    #: The publication to cite.
    citation: str = ""


@dataclass(frozen=True)
class Pair:
    """A source with rewards, a target with contexts, and optional target labels for the evaluator
    only.

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> pair.context_shape, pair.n_arms, pair.feedback
    ((8,), 3, 'bandit')
    """

    #: Name of the pair.
    name: str
    #: Shape C of one context.
    context_shape: Shape
    #: Number of arms, K.
    n_arms: int
    #: Names of the arms, (K,) or empty.
    class_names: tuple[str, ...]
    #: Source contexts with rewards.
    source: RewardDomain | LoggedDomain
    #: Target contexts without rewards.
    target: Contexts
    #: Target contexts with expected rewards, for the evaluator only; None if there are no target
    #: labels.
    target_test: EvaluationDomain | None = None
    #: Target contexts with rewards, for continued training after deployment; not used by ``train``.
    target_labelled: RewardDomain | None = None
    #: Source rounds that training does not use, for validation and estimates.
    source_test: EvaluationDomain | LoggedDomain | None = None
    #: "disjoint": one context per round; "shared": one context per arm.
    arms: str = "disjoint"
    #: "bandit": a reward is informative only about the chosen arm. "one_hot": exactly one arm has
    #: reward 1 and all others 0, without noise, so that a reward of 1 determines the rewards of all
    #: arms.
    feedback: str = "bandit"
    #: Description for users.
    about: About = field(default_factory=lambda: About(summary=""))
    #: The name of each feature of a vector context, (d,) or empty; used in figures and diagnostics.
    feature_names: tuple[str, ...] = ()
    #: The fitted transform that turns a raw row into a context; None if the pair was not made from
    #: tables.
    table: TableTransform | None = None
    #: The arms with their features and the domains that offer them; None if arms have no features.
    catalogue: Catalogue | None = None
    #: The costs of arms, which were subtracted from all rewards; None without costs.
    costs: ArmCosts | None = None
    #: The assumed differences between the domains; by default "style" for images and "covariate"
    #: for vectors.
    shift: Shift = None  # type: ignore[assignment]
    #: The names of the sources and targets. With several sources, ``source`` has the rounds of all
    #: of them, and its ``by_name`` has each one. The same holds for ``target`` and the other
    #: fields.
    domains: DomainNames = field(default_factory=DomainNames)
    #: The ``DataOptions`` that the pair was read from; None if it was not read from files.
    options: Any = None

    def __post_init__(self) -> None:
        shift = as_shift(
            self.shift, context_shape=self.context_shape, feature_names=self.feature_names
        )
        object.__setattr__(self, "shift", shift)

    @property
    def full_feedback(self) -> bool:
        """True if training learns the rewards of all arms of each source context."""
        return isinstance(self.source, RewardDomain) and self.source.full_feedback

    def __repr__(self) -> str:
        names = shorten(", ".join(self.class_names), 60, placeholder=" ...")
        labels_text = (
            f"{len(self.target_test):,} for the evaluator"
            if self.target_test
            else "no target labels"
        )
        sources, targets = map(", ".join, (self.domains.sources, self.domains.targets))
        return (
            f"<Pair {self.name!r}: contexts {self.context_shape}, {self.n_arms} arms ({names}),"
            f" feedback {self.feedback}; {len(self.source):,} source contexts and"
            f" {len(self.source_test or ()):,} held out, {len(self.target):,} target contexts,"
            f" {labels_text}; from {sources} to {targets}; shift {self.shift}>"
        )


def gather_rows(
    part_of_row: IntArray, read: Callable[[int, IntArray], Sequence[AnyArray]]
) -> list[AnyArray]:
    """Return arrays (B, ...) whose rows are read from several parts.

    Args:
        part_of_row: the number of the part from which each row is read, (B,).
        read: ``read(part, rows)`` returns a list of arrays from one part, for these rows of the
            result.
    """
    part_numbers = np.unique(part_of_row) if len(part_of_row) else [0]
    arrays_by_part = [read(int(part), np.flatnonzero(part_of_row == part)) for part in part_numbers]
    ranks = np.argsort(np.argsort(part_of_row, kind="stable"), kind="stable")
    return [np.concatenate(arrays)[ranks] for arrays in zip(*arrays_by_part, strict=True)]


@lru_cache(maxsize=32)  # enough for the sources and targets of ten seeds that are trained together
def _draw_permutation(n: int, seed: int, pass_number: int, order_seed: int) -> IntArray:
    """Return the random order of n contexts in one pass, (n,)."""
    order = np.random.default_rng([seed, pass_number, n, order_seed]).permutation(n)
    order.setflags(write=False)
    return order
