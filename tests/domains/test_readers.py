"""Logs, torch datasets and plain functions."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from daband.checks._pairs import check_pair
from daband.domains import _registry as registry
from daband.domains.readers._callables import from_callable
from daband.domains.readers._logs import from_log
from daband.domains.readers._torch_datasets import from_datasets
from daband.errors import InvalidInput

N = 30
CONTEXTS = np.random.default_rng(0).random((N, 4))
LABELS = np.random.default_rng(1).integers(0, 3, N)
LABELS[:3] = [0, 1, 2]
LOG = (CONTEXTS, LABELS, (LABELS == 1).astype(float), np.full(N, 0.5))


def test_a_log_keeps_rows_together():
    test = (CONTEXTS + 2, LABELS[::-1])
    pair = from_log(source=LOG, target=CONTEXTS + 1, target_test=test, n_arms=3, passes=2, source_test=0)
    check_pair(pair)
    rounds = pair.source.rounds(0, 2 * N, seed=4)
    order = pair.source.order(0, 2 * N, seed=4)
    np.testing.assert_array_equal(rounds.contexts, CONTEXTS[order])
    np.testing.assert_array_equal(rounds.arms, LABELS[order])
    np.testing.assert_array_equal(rounds.rewards, LABELS[order] == 1)


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (1, LABELS + 0.5, "must be integers"),
        (1, LABELS + 1, r"must lie in 0\.\.2"),
        (1, LABELS[:-1], r"shape \(30,\)"),
        (2, np.full(N, np.nan), "missing or infinite value, first in row 0"),
        (3, np.zeros(N), r"\(0, 1\]"),
        (3, np.full(N, 1.5), r"\(0, 1\]"),
    ],
)
def test_wrong_logs(position, value, message):
    log = list(LOG)
    log[position] = value
    with pytest.raises(InvalidInput, match=message):
        from_log(source=tuple(log), target=CONTEXTS, target_test=(CONTEXTS, LABELS), n_arms=3)


@pytest.mark.parametrize("options", [{"n_arms": "3"}, {"n_arms": 3.0}, {"n_arms": 3, "passes": "2"}])
def test_a_log_needs_whole_numbers(options):
    with pytest.raises(InvalidInput, match=r"(n_arms|passes) must be a whole number >= [0-9], got ('3'|3\.0|'2')"):
        from_log(source=LOG, target=CONTEXTS, target_test=(CONTEXTS, LABELS), **options)


class Bare(Dataset):
    """Contexts without labels."""

    def __len__(self):
        return N

    def __getitem__(self, row):
        return torch.as_tensor(CONTEXTS[row])


class Pictures(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, row):
        return Image.fromarray(np.full((5, 7, 3), row, dtype=np.uint8)), row % 2


def test_datasets_with_and_without_labels():
    labelled = TensorDataset(torch.as_tensor(CONTEXTS), torch.as_tensor(LABELS))
    shuffled = TensorDataset(torch.as_tensor(CONTEXTS[::-1].copy()), torch.as_tensor(LABELS[::-1].copy()))
    pair = from_datasets(source=labelled, target=shuffled, target_test=shuffled, source_test=None)
    assert pair.n_arms == 3
    np.testing.assert_array_equal(pair.source.read(np.arange(N)), CONTEXTS)
    np.testing.assert_array_equal(pair.target_labelled.read_rewards(np.arange(N))[0].argmax(axis=1), LABELS[::-1])
    check_pair(pair)
    assert from_datasets(source=labelled, target=Bare(), target_test=shuffled).target_labelled is None


def test_pillow_images_come_channels_first():
    pair = from_datasets(source=Pictures(), target=Pictures(), target_test=Pictures(), source_test=0)
    assert pair.context_shape == (3, 5, 7)
    np.testing.assert_array_equal(pair.source.read(np.array([4])), np.full((1, 3, 5, 7), 4, dtype=np.uint8))


def test_large_datasets_go_to_a_mapped_file_without_a_name(monkeypatch, tmp_path):
    """So a process that is killed leaves nothing behind either."""
    monkeypatch.setattr(registry, "_IN_MEMORY", 10)
    labelled = TensorDataset(torch.as_tensor(CONTEXTS), torch.as_tensor(LABELS))
    pair = from_datasets(source=labelled, target=Bare(), target_test=labelled)
    np.testing.assert_array_equal(pair.target.read(np.arange(N)), CONTEXTS)
    assert not list((tmp_path / "cache" / "arrays").iterdir())


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Bare(), r"items \(context, label\)"),
        (iter([]), "map-style dataset with a length"),
        ([], "empty"),
        ([(np.zeros(2), 0), (np.zeros(3), 1)], r"source\[1\] has shape \(3,\)"),
        ([(np.zeros(2), 0), (np.zeros(2), 0.5)], "one integer"),
    ],
)
def test_wrong_datasets(source, message):
    with pytest.raises(InvalidInput, match=message):
        from_datasets(source=source, target=Bare(), target_test=Bare())


def draw(generator, n):
    return generator.normal(size=(n, 2))


def pay(generator, contexts, arms):
    centres = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    chance = 1 / (1 + np.exp(-np.sum(contexts * centres[arms], axis=1)))
    return (generator.random(len(contexts)) < chance).astype(float)


def environment(length=1000, **options):
    test = (np.random.default_rng(0).normal(size=(50, 2)), np.random.default_rng(0).random((50, 3)))
    return from_callable(source=(draw, pay), target=draw, target_test=test, n_arms=3, length=length, **options)


def test_functions_make_a_sound_pair():
    pair = environment()
    check_pair(pair)
    rounds = pair.source.rounds(0, 900, seed=0)
    assert rounds.expected is None
    assert np.isnan(rounds.regret(np.zeros(900, dtype=int))).all()
    better = rounds.rewards[rounds.contexts[:, 0] > 1, 0].mean()
    assert better > rounds.rewards[rounds.contexts[:, 0] < -1, 0].mean() + 0.3


def test_a_round_of_functions_is_the_same_whenever_it_is_asked_for():
    one, other = environment(), environment()
    late = other.source.rounds(700, 720, seed=3)
    early = one.source.rounds(0, 1000, seed=3)
    np.testing.assert_array_equal(early.contexts[700:720], late.contexts)
    np.testing.assert_array_equal(early.rewards[700:720], late.rewards)
    assert (one.source.batch(0, 9, seed=0) != one.target.batch(0, 9, seed=0)).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": (draw,)}, "two functions"),
        ({"target": 3}, "target must be a function"),
        ({"target": lambda generator, n: np.zeros((n, 5))}, r"target contexts have shape \(5,\)"),
        ({"target": lambda generator, n: np.zeros((3, 2))}, "must return 256 contexts"),
        ({"target": lambda generator, n: np.full((n, 2), np.nan)}, "NaN"),
        ({"length": 0}, ">= 1, got 0"),
        ({"length": "9"}, "length must be a whole number >= [0-9], got '9'"),
        ({"n_arms": "3"}, "n_arms must be a whole number >= [0-9], got '3'"),
        ({"data_seed": 0.5}, "data_seed must be a whole number >= [0-9], got 0.5"),
        ({"class_names": ["a"]}, "1 names for 3 arms"),
    ],
)
def test_wrong_functions(options, message):
    given = {"source": (draw, pay), "target": draw, "target_test": (np.zeros((2, 2)), np.zeros((2, 3))), "n_arms": 3}
    with pytest.raises(InvalidInput, match=message):
        from_callable(**(given | options))


def test_a_pay_that_returns_nonsense():
    pair = from_callable(
        source=(draw, lambda generator, contexts, arms: np.zeros(3)),
        target=draw,
        target_test=(np.zeros((2, 2)), np.zeros((2, 3))),
        n_arms=3,
    )
    with pytest.raises(InvalidInput, match="finite reward a context"):
        pair.source.rounds(0, 4, seed=0)


def drawn(*, length):
    return from_callable(
        source=(lambda g, n: g.normal(size=(n, 2)), lambda g, x, arms: x[:, 0]),
        target=lambda g, n: g.normal(size=(n, 2)),
        n_arms=2,
        length=length,
        source_test=None,
    )


@pytest.mark.parametrize("length", [50, 256, 700])
def test_the_seed_orders_drawn_contexts_within_a_block_too(length):
    pair = drawn(length=length)
    for domain in (pair.source, pair.target):
        one, two = (domain.order(0, length, seed=seed) for seed in (0, 1))
        np.testing.assert_array_equal(np.sort(one), np.arange(length))
        np.testing.assert_array_equal(one, domain.order(0, length, seed=0))
        inside = [order[order < min(256, length)] for order in (one, two)]  # the first block, as each seed shows it
        assert (inside[0] != inside[1]).any()
        assert (inside[0] != np.arange(len(inside[0]))).any()
        middle = domain.order(20, 45, seed=1)
        np.testing.assert_array_equal(middle, two[20:45])
    few = np.unique(pair.source.order(0, min(64, length), seed=3) // 256)
    assert len(few) <= 2  # a batch still draws few blocks
