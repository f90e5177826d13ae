"""Pairs of whose target nobody has a label: every reader makes one, it trains, and what needs
labels says so.
"""

import numpy as np
import polars as pl
import pytest

import daband
from daband.domains import Columns, from_arrays, from_images, from_log, from_table
from daband.errors import InvalidInput
from tests.leaks import check_pair

N = 200
GENERATOR = np.random.default_rng(0)
LABELS = np.arange(N) % 3
X = np.eye(3)[LABELS].repeat(2, axis=1) + 0.1 * GENERATOR.normal(size=(N, 6))
X_TARGET = X[::-1] + 0.2


def table(*, labelled):
    columns = {f"x{i}": X[:, i] for i in range(6)} | {
        "city": np.array(["Oslo", "Rome"])[LABELS % 2]
    }
    extra = {
        "offer": LABELS,
        "shown": LABELS,
        "paid": (LABELS == 1) * 1.0,
        "chance": np.full(N, 0.5),
    }
    return pl.DataFrame(columns | (extra if labelled else {}))


CONTEXT = Columns(
    context=[*(f"x{i}" for i in range(6)), "city"], categorical=["city"], label="offer"
)
LOGGED = Columns(
    context=[f"x{i}" for i in range(6)], arm="shown", reward="paid", propensity="chance"
)


def by_arrays():
    return from_arrays(source=(X, LABELS), target=X_TARGET)


def by_rewards_in_euros():
    return from_arrays(source=(X, np.eye(3)[LABELS] * 17.0 - 5.0), target=X_TARGET)


def by_table():
    return from_table(source=table(labelled=True), target=table(labelled=False), columns=CONTEXT)


def by_logged_table():
    return from_table(source=table(labelled=True), target=table(labelled=False), columns=LOGGED)


def by_log():
    return from_log(
        source=(X, LABELS, (LABELS == 1) * 1.0, np.full(N, 0.5)), target=X_TARGET, n_arms=3
    )


READERS = [by_arrays, by_rewards_in_euros, by_table, by_logged_table, by_log]


@pytest.mark.parametrize("made", READERS)
def test_every_reader_makes_a_sound_pair_that_trains(made):
    pair = made()
    check_pair(pair)
    assert pair.target_test is None
    assert pair.target_labelled is None
    is_log = isinstance(pair.source, daband.domains.LoggedDomain)
    assert (0 if is_log else 1) <= len(pair.source_test or ()) <= (0 if is_log else N // 3)
    policy = daband.LinUCB.for_pair(pair, seed=0)
    run = daband.train(
        policy, source=pair.source, target=pair.target, episodes=2, episode_length=64
    )
    assert run.rounds == (len(pair.source) if pair.full_feedback else 128)
    arms = policy.select(pair.target.batch(0, 9, seed=0), domain="target").arm
    assert arms.shape == (9,)


def test_what_needs_labels_says_so():
    pair = by_arrays()
    policy = daband.Random.for_pair(pair)
    with pytest.raises(InvalidInput, match=r"None: .*labels.*target_test="):
        daband.evaluate(policy, pair.target_test)
    with pytest.raises(InvalidInput, match=r"pair\.target_labelled, .*NoneType: "):
        daband.continue_on_target(policy, target=pair.target_labelled)


def test_a_policy_is_judged_on_held_out_source_rounds():
    pair = by_arrays()
    policy = daband.LinUCB.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target, episodes=2, episode_length=90)
    assert daband.evaluate(policy, pair.source_test, as_domain="source").accuracy > 0.9


def test_a_flat_folder_of_photographs(tmp_path, write_images):
    write_images(tmp_path / "drawn", ["cup", "pen"], 10)
    write_images(tmp_path / "flat", ["."], 7, seed=1)
    pair = from_images(source=tmp_path / "drawn", target=tmp_path / "flat", framing=8)
    check_pair(pair)
    assert (len(pair.source), len(pair.source_test), len(pair.target), pair.target_test) == (
        18,
        2,
        7,
        None,
    )
    given = from_images(
        source=tmp_path / "drawn",
        target=tmp_path / "flat",
        source_test=tmp_path / "drawn",
        framing=8,
    )
    assert (len(given.source), len(given.source_test)) == (20, 20)


def test_a_log_without_labels_has_no_test_to_give():
    with pytest.raises(InvalidInput, match=r"target_test .*columns\.label .*columns\.rewards"):
        from_table(
            source=table(labelled=True),
            target=table(labelled=False),
            target_test=table(labelled=True),
            columns=LOGGED,
        )
