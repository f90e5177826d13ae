"""What the base class does for every policy: input is checked, rounds have ids, ``repr``; and sums
of rounds.
"""

import numpy as np
import pytest

from daband.checks._policies import (
    N_ARMS,
    assert_close_predictions,
    create_policy,
    draw_contexts,
    read_saved_bytes,
    reload_policy,
    train_policy,
)
from daband.errors import InvalidInput
from daband.policies import policies

#: A regression, a network, and a policy made of policies: all send their input through the base
#: class.
NAMES = ("linucb", "mixture", "nlinucb")


def assert_refused(policy, call, name):
    """``call`` raises an error that names ``name`` and leaves the policy unchanged, to the bit."""
    before = read_saved_bytes(policy)
    with pytest.raises(InvalidInput, match=name):
        call(policy)
    assert read_saved_bytes(policy) == before, f"the policy changed although {name} was refused"


@pytest.mark.parametrize("name", NAMES)
def test_round_ids_count_once(name):
    """A second update for a round id is rejected, in the same batch, later, and after reloading."""
    policy = train_policy(policies.get(name), "disjoint")
    contexts = draw_contexts(np.random.default_rng(9), 2, "disjoint")
    for candidate in (policy, reload_policy(policy)):
        for ids in (["a", "new"], ["new", "new"], np.array([7, 100])):
            assert_refused(
                candidate, lambda p, ids=ids: p.update(contexts, [0, 1], [0.5, 0.5], ids=ids), "ids"
            )


@pytest.mark.parametrize("name", NAMES)
def test_bad_input_changes_nothing(name):
    """Bad input raises an error that names the argument, and leaves the policy unchanged, to the
    bit.
    """
    nan = float("nan")
    good = draw_contexts(np.random.default_rng(12), 3, "disjoint")

    def spoiled(value):
        contexts = good.copy()
        contexts[1, 2] = value
        return contexts

    rounds = {"contexts": good, "arm": [0, 1, 2], "reward": [0.0, 0.5, 1.0]}
    asked = [
        *(("contexts", {"contexts": spoiled(value)}) for value in (nan, np.inf, 1e200)),
        *(
            ("contexts", {"contexts": wrong})
            for wrong in (good[:, :2], good[0], good[:0], [["x", "y", "z"]])
        ),
        ("contexts", {"contexts": spoiled(nan).astype(np.float32)}),
        ("domain", {"domain": "elsewhere"}),
        *(
            ("available", {"available": mask})
            for mask in ([False] * N_ARMS, [True] * (N_ARMS + 1), [0, 1, 2, 1])
        ),
    ]
    told = [
        ("contexts", {"contexts": spoiled(nan)}),
        ("domain", {"domain": "nowhere"}),
        *(("arm", {"arm": arm}) for arm in ([0, 1, N_ARMS], [0, -1, 1], [0, 1], [0.5, 1.0, 1.0])),
        *(("reward", {"reward": [0.0, reward, 1.0]}) for reward in (nan, np.inf, 1e200)),
        ("reward", {"reward": [0.0, 1.0]}),
        ("weights", {"weights": [0.5, 1.0]}),
        *(("weights", {"weights": [0.5, weight, 1.0]}) for weight in (-1.0, np.inf, nan)),
        *(("ids", {"ids": ids}) for ids in ([1, 2], [1.5, 2.5, 3.5])),
    ]
    cases = [
        *(
            (named, lambda p, wrong=wrong: p.select(**{"contexts": good, **wrong}))
            for named, wrong in asked
        ),
        *((named, lambda p, wrong=wrong: p.update(**{**rounds, **wrong})) for named, wrong in told),
        ("reward", lambda p: p.play(good, np.full((3, N_ARMS), nan))),
        ("reward", lambda p: p.play(good, np.full((3, N_ARMS + 1), 0.5))),
        ("contexts", lambda p: p.observe_target(spoiled(nan))),
        ("steps", lambda p: p.adapt(steps=-1)),
    ]
    policy = train_policy(policies.get(name), "disjoint")
    for named, call in cases:
        assert_refused(policy, call, named)


@pytest.mark.parametrize("name", NAMES)
def test_duplicates_can_be_skipped(name):
    """``on_duplicate="skip"`` ignores and returns rounds that were learned, and learns the
    others.
    """
    contexts = draw_contexts(np.random.default_rng(16), 4, "disjoint")
    policy = create_policy(policies.get(name), "disjoint")
    other = create_policy(policies.get(name), "disjoint")
    assert policy.update(contexts[:2], [0, 1], [0.5, 1.0], ids=["a", "b"]) == []
    skipped = policy.update(
        contexts, [0, 1, 2, 2], [0.5, 1.0, 0.2, 0.2], ids=["a", "b", "c", "c"], on_duplicate="skip"
    )
    assert skipped == ["a", "b", "c"], skipped
    other.update(contexts[:2], [0, 1], [0.5, 1.0], ids=["a", "b"])
    other.update(contexts[2:3], [2], [0.2], ids=["c"])
    assert read_saved_bytes(policy) == read_saved_bytes(other), (
        "the rounds that were not skipped were learned otherwise"
    )
    before = read_saved_bytes(policy)
    assert policy.update(contexts[:1], [0], [0.5], ids=["a"], on_duplicate="skip") == ["a"]
    assert read_saved_bytes(policy) == before, (
        "a batch of nothing but duplicates changed the policy"
    )


@pytest.mark.parametrize("name", NAMES)
def test_repr_says_what_it_is(name):
    """``repr`` names the class, the sizes, and the numbers of decided and learned rounds."""
    policy = create_policy(policies.get(name), "disjoint")
    contexts = draw_contexts(np.random.default_rng(18), 5, "disjoint")
    policy.update(contexts, policy.select(contexts).arm, np.full(5, 0.5))
    for part in (type(policy).__name__, "n_arms=4", "5 rounds decided", "5 learned", "source"):
        assert part in repr(policy), f"{part!r} is not in {policy!r}"


@pytest.mark.parametrize("arms", ["disjoint", "shared"])
@pytest.mark.parametrize("name", ["constant", "linucb"])
def test_sums_teach_what_rounds_teach(name, arms):
    """A policy that learns by sums learns the same from sums of parts, in any order, as by
    ``update``.
    """
    expected = create_policy(policies.get(name), arms)
    policy = create_policy(policies.get(name), arms)
    rng = np.random.default_rng(15)
    contexts = draw_contexts(rng, 40, arms)
    chosen = rng.integers(0, N_ARMS, 40)
    reward = rng.random(40)
    weights = rng.uniform(0.1, 2.0, 40)
    if not policy.prepared:
        policy.prepare(contexts)
        expected.prepare(contexts)
    expected.update(contexts, chosen, reward, weights=weights)
    blank = policy.without_rounds()
    whole = blank.empty_sums()
    for part in (slice(25, 40), slice(0, 10), slice(10, 25)):
        sums = blank.empty_sums()
        blank.add_to_sums(
            sums,
            contexts=contexts[part],
            arm=chosen[part],
            reward=reward[part],
            weights=weights[part],
        )
        whole.merge(sums)
    assert policy.rounds_learned == 0, policy.rounds_learned
    policy.learn_sums(whole, blank)
    assert policy.rounds_learned == 40, policy.rounds_learned
    assert_close_predictions(policy.decide(contexts), expected.decide(contexts), "sums and rounds")
