"""``from_callable``: a pair of plain functions, e.g. a simulator, drawn when a round asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from daband._arguments import checked_class_names, share, whole
from daband._arrays import AnyArray, ArrayLike, FloatArray, IntArray, as_numpy
from daband._shift import ShiftLike, as_shift
from daband.domains._contract import About, Contexts, EvaluationDomain, Pair, RewardDomain, gather_rows
from daband.domains._mixtures import takes_several
from daband.domains._splits import EvaluatedRewards
from daband.domains.readers._arrays import ArrayEvaluation, checked_n_arms
from daband.errors import InvalidInput

Draw = Callable[[np.random.Generator, int], ArrayLike]
Pay = Callable[[np.random.Generator, AnyArray, IntArray], ArrayLike]

_BLOCK = 256


class CallableContexts(Contexts):
    """``length`` contexts drawn by ``draw(generator, n)``, a block at a time, the same ones whenever asked."""

    def __init__(self, draw: Draw, *, length: int, data_seed: int, name: str) -> None:
        self._length = whole("length", length, least=1)
        self._name = name
        self._draw = draw
        self._data_seed = data_seed
        self._block = lru_cache(maxsize=16)(self._draw_block)
        self.context_shape = self._block(0).shape[1:]

    def __len__(self) -> int:
        return self._length

    def read(self, indices: IntArray) -> AnyArray:
        return self._gather(indices, self._block)

    def order_of_pass(self, number: int, start: int, stop: int, *, seed: int) -> IntArray:
        """Whole blocks one after the other, so that a batch draws few; the seed fixes their order and that in each."""
        return _block_order(self._length, seed, number)[start:stop]

    def _gather(self, indices: IntArray, block_of: Callable[[int], AnyArray]) -> AnyArray:
        block, place = np.divmod(np.asarray(indices, dtype=np.int64), _BLOCK)
        return gather_rows(block, lambda number, rows: [block_of(number)[place[rows]]])[0]

    def _draw_block(self, block: int) -> AnyArray:
        generator = np.random.default_rng([self._data_seed, block, 0])
        contexts = as_numpy(self._draw(generator, _BLOCK), f"what {self._name}'s draw returned")
        if contexts.ndim < 2 or len(contexts) != _BLOCK:
            raise InvalidInput(f"{self._name}'s draw must return {_BLOCK} contexts (n, *C), got shape {contexts.shape}")
        if contexts.dtype.kind == "f" and not np.isfinite(contexts).all():
            raise InvalidInput(f"{self._name}'s draw returned a NaN or infinite value")
        return contexts


class CallableSource(CallableContexts, RewardDomain):
    """Drawn contexts that ``pay(generator, contexts, arms)`` pays for; it is asked once for every arm."""

    def __init__(self, draw: Draw, pay: Pay, *, n_arms: int, length: int, data_seed: int, name: str = "source") -> None:
        super().__init__(draw, length=length, data_seed=data_seed, name=name)
        self._pay = pay
        self._rewards = lru_cache(maxsize=16)(self._pay_block)
        self.n_arms = n_arms

    def read_rewards(self, indices: IntArray) -> tuple[FloatArray, FloatArray | None]:
        return self._gather(indices, self._rewards), None

    def _pay_block(self, block: int) -> FloatArray:
        contexts = self._block(block)
        rewards = np.empty((_BLOCK, self.n_arms))
        for arm in range(self.n_arms):
            generator = np.random.default_rng([self._data_seed, block, 1 + arm])
            arms = np.full(_BLOCK, arm, dtype=np.int64)
            column = as_numpy(self._pay(generator, contexts, arms), f"what {self._name}'s pay returned")
            if column.shape != (_BLOCK,) or not np.isfinite(column).all():
                raise InvalidInput(
                    f"{self._name}'s pay must return a finite reward a context, got shape {column.shape}"
                )
            rewards[:, arm] = column
        return rewards


def _with_seeds(arguments: dict[str, Any]) -> dict[str, Any]:
    """With a seed for every domain; each uses the two that follow as well."""
    seeds = {
        name: arguments["data_seed"] + 3 * place
        for role in ("source", "target")
        for place, name in enumerate(arguments[f"{role}s"] or [role])
    }
    return {**arguments, "data_seed": seeds}


@takes_several(by_source=("source_test", "data_seed"), by_target=("target_test", "data_seed"), prepare=_with_seeds)
def from_callable(
    *,
    source: tuple[Draw, Pay] | None = None,
    target: Draw | None = None,
    sources: Mapping[str, tuple[Draw, Pay]] | None = None,
    targets: Mapping[str, Draw] | None = None,
    target_test: Any = None,
    source_test: Any = 0.1,
    n_arms: int,
    length: int = 100_000,
    class_names: Sequence[str] | None = None,
    data_seed: int = 0,
    shift: ShiftLike = None,
    units: Sequence[int] | None = None,
    name: str = "callable",
) -> Pair:
    """A pair made of functions, e.g. a simulator.

    Args:
        source: ``draw(generator, n)``, which returns n contexts (n, *C), and ``pay(generator, contexts, arms)``, which
            returns what these arms pay there, (n,). All randomness must come from the generator: a round is the same
            whenever it is asked for. ``pay`` is called once per arm; what an arm pays must not depend on earlier calls.
        target: ``draw`` of the target.
        sources: several sources by name, in the place of ``source``, e.g. three simulators.
        targets: several targets by name, in the place of ``target``; ``target_test`` is then a mapping as well.
        target_test: contexts and labels (t,) or expected rewards (t, K), for the evaluator, or None.
        source_test: source rounds that training does not use: contexts and labels or expected rewards, or how many to
            draw, as a share of ``length``, or None. Drawn ones hold realised rewards in the place of expected ones.
        n_arms: the number of arms.
        length: how many contexts each side has.
        class_names: a name per arm; by default "0", "1", ...
        data_seed: fixes everything that is drawn.
        shift: what may differ between the domains: "covariate", "units", "style", "labels", or several (see
            ``daband._shift``); by default "style" for images and "covariate" for vectors.
        units: the numbers of a context in other units in the target, by position; implies ``shift="units"``.
        name: what reports call the pair.

    The expected rewards of the source are not known, so its regret is not either; its rewards are.

    >>> def draw(generator, n):
    ...     return generator.normal(size=(n, 3))
    >>> def pay(generator, contexts, arms):
    ...     return (contexts[:, 0] > 0) == (arms == 1)
    >>> pair = daband.domains.from_callable(source=(draw, pay), target=draw, n_arms=2, length=1000)
    >>> pair.source.read([0]).shape
    (1, 3)
    """
    if not (isinstance(source, tuple) and len(source) == 2 and all(callable(part) for part in source)):
        raise InvalidInput("source must be a tuple of two functions (draw, pay)")
    if not callable(target):
        raise InvalidInput(f"target must be a function, got {type(target).__name__}")
    n_arms, data_seed = checked_n_arms(n_arms, rows=_BLOCK), whole("data_seed", data_seed, least=0)
    paying = CallableSource(*source, n_arms=n_arms, length=length, data_seed=data_seed)
    stream = CallableContexts(target, length=length, data_seed=data_seed + 1, name="target")
    test = None if target_test is None else ArrayEvaluation(*target_test, n_arms=n_arms)
    held: EvaluationDomain | None = None
    if isinstance(source_test, tuple):
        held = ArrayEvaluation(*source_test, n_arms=n_arms, name="source_test")
    elif source_test is not None and share("source_test", source_test) > 0:
        drawn = max(1, round(source_test * length))
        apart = CallableSource(*source, n_arms=n_arms, length=drawn, data_seed=data_seed + 2, name="source_test")
        held = EvaluatedRewards(apart)
    for what, domain in (("target", stream), ("target_test", test), ("source_test", held)):
        if domain is not None and domain.context_shape != paying.context_shape:
            raise InvalidInput(f"{what} contexts have shape {domain.context_shape}, source's {paying.context_shape}")
    return Pair(
        name=name,
        context_shape=paying.context_shape,
        n_arms=n_arms,
        class_names=checked_class_names(class_names, n_arms),
        source=paying,
        source_test=held,
        target=stream,
        target_test=test,
        about=About(summary="functions given by the user", licence="the user's own"),
        shift=as_shift(shift, context_shape=paying.context_shape, units=units),
    )


@lru_cache(maxsize=8)
def _block_order(length: int, seed: int, pass_number: int) -> IntArray:
    """Positions 0..length - 1, block by block: blocks in random order, and each of them."""
    n_blocks = -(-length // _BLOCK)
    generator = np.random.default_rng([seed, pass_number, n_blocks])
    blocks = generator.permutation(n_blocks)[:, None] * _BLOCK
    inside = generator.permuted(np.tile(np.arange(_BLOCK), (n_blocks, 1)), axis=1)
    everything = (blocks + inside).reshape(-1)
    order: IntArray = everything[everything < length]
    order.setflags(write=False)
    return order
