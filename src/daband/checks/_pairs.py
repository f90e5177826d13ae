"""Check pairs of domains: ``check_pair`` runs every function that is registered in
``PAIR_CHECKS``.
"""

from __future__ import annotations

import numpy as np

from daband.base._arrays import AnyArray
from daband.base._registry import Checks
from daband.domains._contract import Contexts, EvaluationDomain, LoggedDomain, Pair, RewardDomain
from daband.errors import InvalidInput

#: The checks of a pair, in the order in which they run.
PAIR_CHECKS = Checks()

#: Maximum number of contexts of each domain that are checked.
_MAX_CHECKED_CONTEXTS = 64
#: Maximum number of source contexts that ``source_test`` is compared with.
_MAX_COMPARED_CONTEXTS = 20_000


@PAIR_CHECKS.add
def check_names(pair: Pair) -> None:
    """Check that there are at least two arms with unique names, and that every domain has the same
    number of arms.
    """
    assert pair.n_arms >= 2, f"a pair must have at least two arms, got {pair.n_arms}"
    assert len(pair.class_names) == pair.n_arms, (
        f"{len(pair.class_names)} class names for {pair.n_arms} arms"
    )
    assert len(set(pair.class_names)) == pair.n_arms, (
        f"class names are not unique: {pair.class_names}"
    )
    for name, domain in _list_domains(pair):
        n_arms = getattr(domain, "n_arms", pair.n_arms)
        assert n_arms == pair.n_arms, f"{name} has {n_arms} arms, but the pair has {pair.n_arms}"


@PAIR_CHECKS.add
def check_shapes(pair: Pair) -> None:
    """Check that all contexts have the same type, and the pair's shape, or (K, *shape) with shared
    arms.
    """
    expected_shape = (
        (pair.n_arms, *pair.context_shape) if pair.arms == "shared" else pair.context_shape
    )
    dtypes = {}
    for name, batch in _read_batches(pair):
        assert batch.shape[1:] == expected_shape, (
            f"{name} contexts have shape {batch.shape[1:]}, expected {expected_shape}"
        )
        has_valid_type = batch.dtype == np.uint8 or batch.dtype.kind == "f"
        assert has_valid_type, f"{name} contexts are {batch.dtype}, not uint8 or floats"
        dtypes[name] = batch.dtype
    assert len(set(dtypes.values())) == 1, f"contexts are of different types: {dtypes}"
    for name, domain in _list_domains(pair):
        assert domain.context_shape == pair.context_shape, (
            f"{name}.context_shape is {domain.context_shape}"
        )


@PAIR_CHECKS.add
def check_finite_contexts(pair: Pair) -> None:
    """Check that no context has a NaN or an infinite number."""
    for name, batch in _read_batches(pair):
        assert np.isfinite(batch).all(), f"{name} has a context that is not finite"


@PAIR_CHECKS.add
def check_reward_values(pair: Pair) -> None:
    """Check that rewards are finite, and that with one-hot feedback one arm has reward 1 and all
    others 0.
    """
    reward_tables: list[tuple[str, AnyArray]] = []
    for name, domain in _list_domains(pair):
        if isinstance(domain, EvaluationDomain):
            reward_tables.append(
                (name, domain.read_expected(0, min(_MAX_CHECKED_CONTEXTS, len(domain))))
            )
        elif isinstance(domain, RewardDomain):
            rounds = domain.rounds(0, min(_MAX_CHECKED_CONTEXTS, len(domain)), seed=0)
            reward_tables.append((name, rounds.rewards))
            if rounds.expected is not None:
                reward_tables.append((f"{name} expected", rounds.expected))
        elif isinstance(domain, LoggedDomain):
            log = domain.rounds(0, min(_MAX_CHECKED_CONTEXTS, len(domain)), seed=0)
            assert np.isfinite(log.rewards).all(), f"{name} has a reward that is not finite"
    for name, rewards in reward_tables:
        assert rewards.shape == (len(rewards), pair.n_arms), (
            f"{name} rewards have shape {rewards.shape}"
        )
        assert np.isfinite(rewards).all(), f"{name} has a reward that is not finite"
        if pair.feedback == "one_hot":
            is_one_hot = np.isin(rewards, (0.0, 1.0)).all() and (rewards.sum(axis=1) == 1).all()
            assert is_one_hot, f"{name}: exactly one arm must have reward 1 and the others 0"


@PAIR_CHECKS.add
def check_order(pair: Pair) -> None:
    """Check that a pass shows every context once, and that the order depends only on the seed."""
    for name, domain in _list_domains(pair):
        if isinstance(domain, EvaluationDomain):
            continue
        n_rows = len(domain)
        order = domain.order(0, n_rows, seed=0)
        assert (np.sort(order) == np.arange(n_rows)).all(), (
            f"a pass of {name} does not show every context once"
        )
        assert (order == domain.order(0, n_rows, seed=0)).all(), (
            f"{name}: the same seed gave two different orders"
        )


@PAIR_CHECKS.add
def check_source_test(pair: Pair) -> None:
    """Check that ``source_test`` has rounds that training does not use.

    Rounds have no ids, so contexts are compared. If the source repeats contexts, a similar fraction
    of ``source_test`` may also be in the source.
    """
    if pair.source_test is None:
        return
    source_hashes = [
        hash(row.tobytes()) for row in _read_contexts(pair.source, _MAX_COMPARED_CONTEXTS)
    ]
    test_hashes = {
        hash(row.tobytes()) for row in _read_contexts(pair.source_test, _MAX_CHECKED_CONTEXTS)
    }
    repeated_fraction = 1.0 - len(set(source_hashes)) / len(source_hashes)
    common_fraction = len(test_hashes & set(source_hashes)) / len(test_hashes)
    message = (
        f"{common_fraction:.0%} of source_test's contexts are contexts of source, "
        f"which repeats {repeated_fraction:.0%} of its contexts"
    )
    assert common_fraction <= 2.0 * repeated_fraction + 0.05, message


@PAIR_CHECKS.add
def check_target_has_no_rewards(pair: Pair) -> None:
    """Check that the target that training sees has contexts only."""
    has_rewards = isinstance(pair.target, RewardDomain | LoggedDomain | EvaluationDomain)
    assert not has_rewards, f"pair.target is a {type(pair.target).__name__}, which has rewards"


def check_pair(pair: Pair) -> None:
    """Run every check on a pair.

    The first failure raises an ``AssertionError`` that describes the problem.
    """
    if not isinstance(pair, Pair):
        raise InvalidInput(f"pair must be a daband.domains.Pair, got {pair!r}")
    PAIR_CHECKS.run(pair)


def _list_domains(pair: Pair) -> list[tuple[str, Contexts | EvaluationDomain]]:
    """Return the name and the domain of each field of the pair that is not None."""
    names = ("source", "target", "target_test", "target_labelled", "source_test")
    return [(name, domain) for name in names if (domain := getattr(pair, name)) is not None]


def _read_batches(pair: Pair) -> list[tuple[str, AnyArray]]:
    """Return the name and the first contexts of each domain, (B, *C)."""
    return [
        (name, _read_contexts(domain, _MAX_CHECKED_CONTEXTS))
        for name, domain in _list_domains(pair)
    ]


def _read_contexts(domain: Contexts | EvaluationDomain, max_contexts: int) -> AnyArray:
    """Return the first contexts of a domain, at most ``max_contexts``, (B, *C)."""
    if isinstance(domain, EvaluationDomain):
        return domain.read(0, min(max_contexts, len(domain)))
    return domain.batch(0, min(max_contexts, len(domain)), seed=0)
