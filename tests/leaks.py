"""Prove that nothing that training sees of a pair leads to rewards of the target."""

import builtins
import gc
import sys
import types

import numpy as np

from daband.checks import check_pair as check_public
from daband.domains import EvaluationDomain, LoggedDomain, Pair, RewardDomain

_ATOMS = (
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    type(None),
    type,
    types.ModuleType,
    types.CodeType,
    types.FrameType,
)


def reachable(root):
    """Yield every object reachable from ``root``: attributes, containers, closures, bound methods,
    caches, array bases.

    Modules, classes and a function's globals are not followed: through them everything is
    reachable."""
    waiting = [root]
    seen = {}  # keeps the objects alive: an id is unique only while its object lives
    while waiting:
        reached = waiting.pop()
        if id(reached) in seen or isinstance(reached, _ATOMS):
            continue
        seen[id(reached)] = reached
        yield reached
        waiting.extend(_referents(reached))


def _referents(thing):
    if isinstance(thing, np.ndarray):
        below = [thing.base] if thing.base is not None else []
        return [*below, *thing.reshape(-1).tolist()] if thing.dtype == object else below
    referents = gc.get_referents(thing)
    if isinstance(thing, types.FunctionType):
        return [
            other
            for other in referents
            if other is not thing.__globals__ and other is not vars(builtins)
        ]
    return referents


def check_no_target_rewards_in_reach(pair):
    """Check that target rewards cannot be reached from the training data.

    Nothing reachable from ``pair.source``, ``pair.target`` and ``pair.source_test`` may be a
    labelled domain, an evaluator of the target, or an array that repeats the target's rewards or
    labels or shares memory with them."""
    secrets = list(_secrets(pair))
    for side, root in (
        ("source", pair.source),
        ("target", pair.target),
        ("source_test", pair.source_test),
    ):
        for thing in reachable(root):
            kind = type(thing).__name__
            forbidden = (Pair,) if side == "source_test" else (EvaluationDomain, Pair)
            allowed = not isinstance(thing, forbidden) and thing is not pair.target_test
            _require(allowed, f"pair.{side} leads to a {kind}")
            pays = isinstance(thing, (RewardDomain, LoggedDomain))
            pays = pays and (side == "target" or thing is pair.target_labelled)
            _require(not pays, f"pair.{side} leads to a {kind}, which pays for the target")
            array = _as_array(thing)
            if array is None:
                continue
            for what, secret, holders in secrets:
                shared = any(
                    np.may_share_memory(array, one) and np.shares_memory(array, one)
                    for one in holders
                )
                _require(
                    not shared, f"pair.{side} leads to an array that shares memory with {what}"
                )
                _require(
                    not _repeats(array, secret),
                    f"pair.{side} leads to an array that repeats {what}",
                )


def check_pair(pair):
    """Run the public checks, and that no target reward is in reach."""
    check_public(pair)
    check_no_target_rewards_in_reach(pair)


def _require(condition, message):
    if not condition:
        raise AssertionError(message)


def _secrets(pair):
    """Yield the target's rewards and labels, each with the arrays inside the domains that hold
    them.
    """
    holders = []
    test = pair.target_test
    labelled = pair.target_labelled
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


def _repeats(array, secret):
    return array.size == secret.size and bool((array.reshape(-1) == secret.reshape(-1)).all())


def _as_array(thing):
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(thing, torch.Tensor):
        thing = thing.detach().cpu().numpy()
    if (
        isinstance(thing, (list, tuple))
        and thing
        and all(isinstance(value, (int, float)) for value in thing)
    ):
        thing = np.asarray(thing)
    return thing if isinstance(thing, np.ndarray) and thing.dtype.kind in "biuf" else None
