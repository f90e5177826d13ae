"""The data that training and evaluation may read from a domain.

Three types keep the data apart, because the project depends on the difference:

* ``Contexts``: a stream of contexts only. Training gets nothing else from the target.
* ``RewardDomain``: contexts with the reward of a chosen arm. The source, and the target once its rewards may be seen.
* ``EvaluationDomain``: contexts with the expected reward of every arm. Only the evaluator takes it.

A domain has no cursor. ``batch(start, stop, seed=...)`` is a pure function of its arguments, so a killed run resumes
from a round number, and two methods with one seed see the same contexts in the same order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from daband._arrays import AnyArray, BoolArray, FloatArray, IntArray
from daband._domain_names import DomainNames
from daband._shift import Shift, as_shift
from daband.errors import InvalidInput

if TYPE_CHECKING:
    from daband._table_transform import TableTransform
    from daband.linear._catalogue import Catalogue


@dataclass(frozen=True)
class Rounds:
    """Some rounds of a reward domain: contexts, and the reward of each arm.

    ``rewards`` (B, K) are the realised rewards. They are drawn once for all arms, so that methods are compared on the
    same draws. Only the training loop holds them; a policy observes the reward of the arm it chose. ``expected`` (B, K)
    are the expected rewards if they are known (then regret is exact), else None.
    """

    contexts: AnyArray
    rewards: FloatArray
    expected: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.contexts)

    def pay(self, arms: IntArray) -> FloatArray:
        """Return the reward of one arm per round, (B,)."""
        return self.rewards[np.arange(len(self.rewards)), arms]

    def regret(self, arms: IntArray) -> FloatArray:
        """Return the expected regret of each choice against the best arm, (B,); NaN if it is not known."""
        if self.expected is None:
            return np.full(len(self.contexts), np.nan)
        rows = np.arange(len(self.expected))
        return self.expected.max(axis=1) - self.expected[rows, arms]


@dataclass(frozen=True)
class LoggedRounds:
    """Rounds of a logging policy: the arm is given, and only its reward is known."""

    contexts: AnyArray
    arms: IntArray
    rewards: FloatArray
    propensities: FloatArray
    #: The arms that could be chosen, (B, K); None if all could.
    offered: BoolArray | None = None

    def __len__(self) -> int:
        return len(self.contexts)


class Contexts(ABC):
    """A finite collection of contexts, served in an order that a seed fixes.

    A subclass defines ``context_shape``, ``__len__`` and ``read``. ``passes`` is the number of times that each context
    may be shown; every pass has its own order.

    >>> target = daband.domains.load("synthetic", tiny=True).target
    >>> target.batch(0, 4, seed=0).shape
    (4, 8)
    """

    context_shape: tuple[int, ...]
    passes: int = 1
    #: For contexts read from image files: the side in pixels after resizing, and the side of the centre crop.
    framing: tuple[int, int] | None = None
    #: Columns (n,) that identify the contexts for people, such as ids or files; for audits, never for a policy.
    row_names: Mapping[str, Sequence[object]] = MappingProxyType({})
    #: The rows (a polars frame) without labels and rewards, if the contexts come from a user's table.
    table: Any = None
    _order_key: int = 0  # differs by kind of domain, so that source and target have different orders

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of different contexts."""

    @abstractmethod
    def read(self, indices: IntArray) -> AnyArray:
        """Return the contexts at these indices, (B, *context_shape), or (B, K, *context_shape) for shared arms."""

    def as_given(self, indices: IntArray) -> Any:
        """Return the contexts at these indices as the user gave them: rows of ``table``, else from ``read``."""
        return self.read(indices) if self.table is None else self.table[indices]

    @property
    def rounds_available(self) -> int:
        """The number of rounds that can be served: every context, ``passes`` times."""
        return len(self) * self.passes

    def check_rounds(self, start: int, stop: int) -> None:
        """Raise if these rounds do not exist."""
        if not 0 <= start <= stop:
            raise InvalidInput(f"rounds must satisfy 0 <= start <= stop, got start={start}, stop={stop}")
        if stop > self.rounds_available:
            raise InvalidInput(
                f"round {stop} was asked for, but {len(self)} contexts shown {self.passes} time(s) give "
                f"{self.rounds_available} rounds; ask for fewer rounds or set passes={-(-stop // max(len(self), 1))}"
            )

    def order(self, start: int, stop: int, *, seed: int) -> IntArray:
        """Return the indices of the contexts shown in rounds ``start`` to ``stop - 1``."""
        self.check_rounds(start, stop)
        pieces = []
        while start < stop:
            pass_number, offset = divmod(start, len(self))
            until = min(stop - pass_number * len(self), len(self))
            pieces.append(self.order_of_pass(pass_number, offset, until, seed=seed))
            start = pass_number * len(self) + until
        return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)

    def order_of_pass(self, number: int, start: int, stop: int, *, seed: int) -> IntArray:
        """Return the indices of contexts ``start`` to ``stop - 1`` of a pass, in the order that the seed fixes."""
        return _permutation(len(self), seed, number, self._order_key)[start:stop]

    def read_rounds(self, indices: IntArray) -> Any:
        """Return all data of the rounds at these indices: contexts here, with rewards in a subclass."""
        return self.read(indices)

    def batch(self, start: int, stop: int, *, seed: int) -> AnyArray:
        """Return the contexts of rounds ``start`` to ``stop - 1`` in the order that ``seed`` fixes."""
        return self.read(self.order(start, stop, seed=seed))

    @property
    def by_name(self) -> Mapping[str | None, Contexts]:
        """The component domains by name; a domain that is not a mixture has the name None."""
        return {None: self}

    def by_domain(self, start: int, stop: int, *, seed: int) -> list[tuple[str | None, Any]]:
        """Return, for each component domain, its name and its part of ``batch``, or of ``rounds`` if it has rewards."""
        return [(None, self.batch(start, stop, seed=seed))]


class PlayedDomain(Contexts):
    """Contexts whose rounds have more data than a context: ``read_rounds`` returns it."""

    n_arms: int

    def rounds(self, start: int, stop: int, *, seed: int) -> Any:
        """Return rounds ``start`` to ``stop - 1`` in the order that ``seed`` fixes."""
        return self.read_rounds(self.order(start, stop, seed=seed))

    def by_domain(self, start: int, stop: int, *, seed: int) -> list[tuple[str | None, Any]]:
        return [(None, self.rounds(start, stop, seed=seed))]


class RewardDomain(PlayedDomain):
    """Contexts with the reward of a chosen arm.

    >>> source = daband.domains.load("synthetic", tiny=True).source
    >>> rounds = source.rounds(0, 4, seed=0)
    >>> rounds.contexts.shape, rounds.pay([0, 1, 2, 0]).shape
    ((4, 8), (4,))
    """

    _order_key = 1

    @abstractmethod
    def read_rewards(self, indices: IntArray) -> tuple[FloatArray, FloatArray | None]:
        """Return the realised rewards (B, K) of these contexts, and the expected rewards if they are known."""

    def read_rounds(self, indices: IntArray) -> Rounds:
        return Rounds(self.read(indices), *self.read_rewards(indices))


class LoggedDomain(PlayedDomain):
    """Contexts with the chosen arm, its reward and its propensity: the log of another policy."""

    _order_key = 2

    @abstractmethod
    def read_log(self, indices: IntArray) -> tuple[IntArray, FloatArray, FloatArray]:
        """Return the arms, rewards and propensities at these indices, each (B,)."""

    def read_rounds(self, indices: IntArray) -> LoggedRounds:
        return LoggedRounds(self.read(indices), *self.read_log(indices), offered=self.read_offered(indices))

    def read_offered(self, indices: IntArray) -> BoolArray | None:  # noqa: ARG002
        """Return the arms that could be chosen at these indices, (B, K); None if all could."""
        return None


class EvaluationDomain(ABC):
    """Contexts with the expected reward of every arm, in a fixed order.

    >>> held = daband.domains.load("synthetic", tiny=True).target_test
    >>> held.read(0, 3).shape, held.read_expected(0, 3).shape
    ((3, 8), (3, 3))
    """

    context_shape: tuple[int, ...]
    n_arms: int

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of contexts."""

    @abstractmethod
    def read(self, start: int, stop: int) -> AnyArray:
        """Return contexts ``start`` to ``stop - 1``, (B, *context_shape)."""

    @abstractmethod
    def read_expected(self, start: int, stop: int) -> FloatArray:
        """Return the expected rewards of contexts ``start`` to ``stop - 1``, (B, K)."""

    @property
    def by_name(self) -> Mapping[str | None, EvaluationDomain]:
        """The component domains by name; a domain that is not a mixture has the name None."""
        return {None: self}

    def batches(self, size: int) -> Iterator[tuple[AnyArray, FloatArray]]:
        """Yield all contexts and expected rewards, at most ``size`` at a time."""
        for start in range(0, len(self), size):
            stop = min(start + size, len(self))
            yield self.read(start, stop), self.read_expected(start, stop)


@dataclass(frozen=True)
class About:
    """A description of a pair for its users."""

    summary: str
    licence: str = "none needed: generated"
    citation: str = ""


@dataclass(frozen=True)
class Pair:
    """A source with rewards, contexts of a target, and the available target labels, for the evaluator only.

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> pair.context_shape, pair.n_arms, pair.feedback
    ((8,), 3, 'bandit')
    """

    name: str
    context_shape: tuple[int, ...]
    n_arms: int
    class_names: tuple[str, ...]
    source: RewardDomain | LoggedDomain
    target: Contexts
    #: Target contexts with expected rewards, for the evaluator only; None if there are no target labels.
    target_test: EvaluationDomain | None = None
    #: The target contexts with their rewards, for continued training after deployment; ``train`` never gets it.
    target_labelled: RewardDomain | None = None
    #: Source rounds that training does not use, for validation and estimates: an
    #: ``EvaluationDomain``, or rounds of the log if the source is a log.
    source_test: EvaluationDomain | LoggedDomain | None = None
    #: "disjoint": one context per round; "shared": one context per arm.
    arms: str = "disjoint"
    #: "bandit": a reward is informative only about the chosen arm. "one_hot": exactly one arm has reward 1 and all
    #: others 0, without noise, so that a reward of 1 determines the rewards of all arms.
    feedback: str = "bandit"
    about: About = field(default_factory=lambda: About(summary=""))
    #: A name per number of a flat context, or empty; used in figures and diagnostics.
    feature_names: tuple[str, ...] = ()
    #: The fitted transform that turns a raw row into a context, if the pair was made from tables.
    table: TableTransform | None = None
    #: The arms with their features, and which domain has which; None if arms are names only.
    catalogue: Catalogue | None = None
    #: The assumed differences between the domains; by default "style" for images and "covariate" for vectors.
    shift: Shift = None  # type: ignore[assignment]
    #: The names of the sources and targets. With several sources, ``source`` has the rounds of all of them, and its
    #: ``by_name`` has each one. The same holds for ``target`` and the other fields.
    domains: DomainNames = field(default_factory=DomainNames)

    def __post_init__(self) -> None:
        shift = as_shift(self.shift, context_shape=self.context_shape, feature_names=self.feature_names)
        object.__setattr__(self, "shift", shift)

    def __repr__(self) -> str:
        few = 6
        names = [*self.class_names[:few], *(["..."] if len(self.class_names) > few else [])]
        arms = f"{self.n_arms} arms" + (f" ({', '.join(names)})" if names else "")
        held = 0 if self.source_test is None else len(self.source_test)
        labelled = "no labels of the target"
        if self.target_test is not None:
            labelled = f"{len(self.target_test):,} for the evaluator"
        several = f"; from {', '.join(self.domains.sources)} to {', '.join(self.domains.targets)}"
        several = "" if len(self.domains) == 2 else several
        return (
            f"<Pair {self.name!r}: contexts {self.context_shape}, {arms}, feedback {self.feedback}; "
            f"{len(self.source):,} source contexts and {held:,} held out, {len(self.target):,} "
            f"target contexts, {labelled}; shift {self.shift}{several}>"
        )

    def require_target_test(self) -> EvaluationDomain:
        """Return ``target_test``; without target labels, raise an error that lists what cannot be done."""
        if self.target_test is None:
            raise InvalidInput(
                f"the pair {self.name!r} has no target_test: without labels of the target a policy can be trained but "
                "not evaluated there; build the pair with target_test=(contexts, labels or expected rewards)"
            )
        return self.target_test


def gather_rows(parts: IntArray, read: Callable[[int, IntArray], Sequence[AnyArray]]) -> list[AnyArray]:
    """Return the columns of rows from several parts, in the order of ``parts`` (B,), the part index of each row.

    ``read(part, rows)`` returns the columns of one part for these rows of the result. A column that one part lacks is
    dropped, and so are the columns after it.
    """
    numbers = np.unique(parts) if len(parts) else [0]
    pieces = [read(int(number), np.flatnonzero(parts == number)) for number in numbers]
    order = np.argsort(np.argsort(parts, kind="stable"), kind="stable")
    return [np.concatenate(column)[order] for column in zip(*pieces, strict=False)]


@lru_cache(maxsize=32)  # of ten stacked seeds, the source and the target of each
def _permutation(n: int, seed: int, pass_number: int, key: int) -> IntArray:
    order = np.random.default_rng([seed, pass_number, n, key]).permutation(n)
    order.setflags(write=False)
    return order
