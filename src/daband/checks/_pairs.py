"""Checks for every pair of domains; ``check_pair`` runs them."""

from __future__ import annotations

import builtins
import gc
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from daband._arrays import AnyArray
from daband._registry import Checks
from daband.domains._contract import Contexts, EvaluationDomain, LoggedDomain, Pair, RewardDomain
from daband.errors import InvalidInput

# All objects that can be reached from an object, for the leak check.


_ATOMS = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType, types.CodeType, types.FrameType)


def reachable(root: object) -> Iterator[object]:
    """Yield every object reachable from ``root``: attributes, containers, closures, bound methods, caches, array bases.

    Modules, classes and a function's globals are not followed: through them everything is reachable.
    """
    waiting: list[object] = [root]
    seen: dict[int, object] = {}  # keeps the objects alive: an id is unique only while its object lives
    while waiting:
        reached = waiting.pop()
        if id(reached) in seen or isinstance(reached, _ATOMS):
            continue
        seen[id(reached)] = reached
        yield reached
        waiting.extend(_referents(reached))


def _referents(thing: Any) -> list[object]:
    if isinstance(thing, np.ndarray):
        below: list[object] = [thing.base] if thing.base is not None else []
        return [*below, *thing.reshape(-1).tolist()] if thing.dtype == object else below
    referents = gc.get_referents(thing)
    if isinstance(thing, types.FunctionType):
        return [other for other in referents if other is not thing.__globals__ and other is not vars(builtins)]
    return referents


PAIR_CHECKS = Checks()

_SAMPLE = 64
_COMPARED = 20_000


@PAIR_CHECKS.add
def check_names(pair: Pair) -> None:
    """Check that there are at least two arms with unique names, and that every domain has the same number of arms."""
    _require(pair.n_arms >= 2, f"a pair needs two arms or more, got {pair.n_arms}")
    _require(len(pair.class_names) == pair.n_arms, f"{len(pair.class_names)} class names for {pair.n_arms} arms")
    _require(len(set(pair.class_names)) == pair.n_arms, f"class names are not unique: {pair.class_names}")
    for name, domain in _domains(pair):
        arms = getattr(domain, "n_arms", pair.n_arms)
        _require(arms == pair.n_arms, f"{name} has {arms} arms, the pair {pair.n_arms}")
    if pair.feature_names:
        size = int(np.prod(pair.context_shape))
        _require(len(pair.feature_names) == size, f"{len(pair.feature_names)} feature names for {size} numbers")


@PAIR_CHECKS.add
def check_shapes(pair: Pair) -> None:
    """Check that contexts have the pair's shape and one type in every domain; (K, *shape) with shared arms."""
    wanted = (pair.n_arms, *pair.context_shape) if pair.arms == "shared" else pair.context_shape
    kinds = {}
    for name, batch in _batches(pair):
        _require(batch.shape[1:] == wanted, f"{name} contexts have shape {batch.shape[1:]}, the pair says {wanted}")
        floats = batch.dtype == np.uint8 or batch.dtype.kind == "f"
        _require(floats, f"{name} contexts are {batch.dtype}, not uint8 or floats")
        kinds[name] = batch.dtype
    _require(len(set(kinds.values())) == 1, f"contexts are of different types: {kinds}")
    for name, domain in _domains(pair):
        _require(domain.context_shape == pair.context_shape, f"{name}.context_shape is {domain.context_shape}")


@PAIR_CHECKS.add
def check_finite_contexts(pair: Pair) -> None:
    """Check that no context has a NaN or an infinite number."""
    for name, batch in _batches(pair):
        _require(np.isfinite(batch).all(), f"{name} has a context that is not finite")


@PAIR_CHECKS.add
def check_reward_values(pair: Pair) -> None:
    """Check that rewards are finite, and that with one-hot feedback one arm has reward 1 and all others 0."""
    tables: list[tuple[str, AnyArray]] = []
    for name, domain in _domains(pair):
        if isinstance(domain, EvaluationDomain):
            tables.append((name, domain.read_expected(0, min(_SAMPLE, len(domain)))))
        elif isinstance(domain, RewardDomain):
            rounds = domain.rounds(0, min(_SAMPLE, len(domain)), seed=0)
            tables.append((name, rounds.rewards))
            if rounds.expected is not None:
                tables.append((f"{name} expected", rounds.expected))
        elif isinstance(domain, LoggedDomain):
            log = domain.rounds(0, min(_SAMPLE, len(domain)), seed=0)
            _require(((log.propensities > 0) & (log.propensities <= 1)).all(), f"{name} propensities leave (0, 1]")
            _require(((log.arms >= 0) & (log.arms < pair.n_arms)).all(), f"{name} has an arm out of range")
            _require(np.isfinite(log.rewards).all(), f"{name} has a reward that is not finite")
    for name, table in tables:
        _require(table.ndim == 2 and table.shape[1] == pair.n_arms, f"{name} rewards have shape {table.shape}")
        _require(np.isfinite(table).all(), f"{name} has a reward that is not finite")
        if pair.feedback == "one_hot":
            right = np.isin(table, (0.0, 1.0)).all() and (table.sum(axis=1) == 1).all()
            _require(right, f"{name}: one arm should pay 1 and the others 0")


@PAIR_CHECKS.add
def check_order(pair: Pair) -> None:
    """Check that a pass has every context once, in an order set by the seed, and that too many rounds fail."""
    for name, domain in _domains(pair):
        if isinstance(domain, EvaluationDomain):
            continue
        n = len(domain)
        order = domain.order(0, n, seed=0)
        _require((np.sort(order) == np.arange(n)).all(), f"a pass of {name} does not show every context once")
        _require((order == domain.order(0, n, seed=0)).all(), f"{name}: one seed gave two orders")
        if n > 20:
            _require((order != domain.order(0, n, seed=1)).any(), f"{name}: two seeds gave one order")
        some = min(n, _SAMPLE)
        whole = domain.batch(0, some, seed=3)
        pieces = np.concatenate([domain.batch(0, some // 2, seed=3), domain.batch(some // 2, some, seed=3)])
        _require((whole == pieces).all(), f"{name}: a batch differs from its two halves")
        try:
            domain.batch(0, domain.rounds_available + 1, seed=0)
        except InvalidInput:
            continue
        _require(False, f"{name} served more rounds than it has")


@PAIR_CHECKS.add
def check_source_test(pair: Pair) -> None:
    """Check that ``source_test`` holds rounds that training does not use.

    Rounds have no ids, so contexts are compared: at most as many may be common as the source itself repeats.
    """
    if pair.source_test is None:
        return
    used = [hash(row.tobytes()) for row in _first_contexts(pair.source, _COMPARED)]
    held = {hash(row.tobytes()) for row in _first_contexts(pair.source_test, _SAMPLE)}
    repeated = 1.0 - len(set(used)) / len(used)
    common = len(held & set(used)) / len(held)
    text = f"{common:.0%} of source_test's contexts are contexts of source, which repeats {repeated:.0%} of its own"
    _require(common <= 2.0 * repeated + 0.05, text)


@PAIR_CHECKS.add
def check_no_target_rewards_in_reach(pair: Pair) -> None:
    """Check that target rewards cannot be reached from the training data.

    Nothing reachable from ``pair.source``, ``pair.target`` and ``pair.source_test`` may be a labelled domain, an
    evaluator of the target, or an array that repeats the target's rewards or labels or shares memory with them.
    """
    secrets = list(_secrets(pair))
    for side, root in (("source", pair.source), ("target", pair.target), ("source_test", pair.source_test)):
        for thing in reachable(root):
            kind = type(thing).__name__
            forbidden: tuple[type, ...] = (Pair,) if side == "source_test" else (EvaluationDomain, Pair)
            allowed = not isinstance(thing, forbidden) and thing is not pair.target_test
            _require(allowed, f"pair.{side} leads to a {kind}")
            pays = isinstance(thing, (RewardDomain, LoggedDomain))
            pays = pays and (side == "target" or thing is pair.target_labelled)
            _require(not pays, f"pair.{side} leads to a {kind}, which pays for the target")
            array = _as_array(thing)
            if array is None:
                continue
            for what, secret, holders in secrets:
                shared = any(np.may_share_memory(array, one) and np.shares_memory(array, one) for one in holders)
                _require(not shared, f"pair.{side} leads to an array that shares memory with {what}")
                _require(not _repeats(array, secret), f"pair.{side} leads to an array that repeats {what}")


def check_pair(pair: Pair) -> None:
    """Run every check. The first failure raises an ``AssertionError`` that names the problem."""
    PAIR_CHECKS.run(pair)


def _require(condition: bool | np.bool_, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _domains(pair: Pair) -> list[tuple[str, Contexts | EvaluationDomain]]:
    """Return the domains of the pair, by name."""
    names = ("source", "target", "target_test", "target_labelled", "source_test")
    return [(name, domain) for name in names if (domain := getattr(pair, name)) is not None]


def _batches(pair: Pair) -> list[tuple[str, AnyArray]]:
    return [(name, _first_contexts(domain, _SAMPLE)) for name, domain in _domains(pair)]


def _first_contexts(domain: Contexts | EvaluationDomain, n: int) -> AnyArray:
    if isinstance(domain, EvaluationDomain):
        return domain.read(0, min(n, len(domain)))
    return domain.batch(0, min(n, len(domain)), seed=0)


def _secrets(pair: Pair) -> Iterator[tuple[str, AnyArray, list[AnyArray]]]:
    """Yield the target's rewards and labels, each with the arrays inside the domains that hold them."""
    holders: list[tuple[str, Any, AnyArray]] = []
    test, labelled = pair.target_test, pair.target_labelled
    if test is not None:
        holders.append(("target_test", test, test.read_expected(0, len(test))))
    if labelled is not None:
        rewards, expected = labelled.read_rewards(np.arange(len(labelled)))
        holders.append(("target_labelled", labelled, rewards))
        if expected is not None:
            holders.append(("target_labelled", labelled, expected))
    for name, domain, table in holders:
        arrays = [array for array in map(_as_array, reachable(domain)) if array is not None]
        for what, secret in (("rewards", table), ("labels", table.argmax(axis=1))):
            if len(np.unique(secret)) < 2:
                continue  # a constant reveals nothing
            yield f"{name}'s {what}", secret, [array for array in arrays if _repeats(array, secret)]


def _repeats(array: AnyArray, secret: AnyArray) -> bool:
    return array.size == secret.size and bool((array.reshape(-1) == secret.reshape(-1)).all())


def _as_array(thing: object) -> AnyArray | None:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(thing, torch.Tensor):
        thing = thing.detach().cpu().numpy()
    if isinstance(thing, (list, tuple)) and thing and all(isinstance(value, (int, float)) for value in thing):
        thing = np.asarray(thing)
    return thing if isinstance(thing, np.ndarray) and thing.dtype.kind in "biuf" else None
