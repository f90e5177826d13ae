"""Batches from buffers on the device, and the same batches from buffers on the host."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from daband._domain_names import DomainNames
from daband.neural._daband import DABand
from daband.neural._neural_linucb import adapt_stacked
from daband.neural._recipes import recipe_for
from daband.neural.encoders._augmentation import Augmentation
from daband.neural.learning._batches import STEPS_PER_BLOCK, Batches, BatchSettings
from daband.neural.learning._learner import Learner
from daband.neural.learning._replay_buffer import ReplayBuffer, ReplayBuffers
from daband.neural.learning._settings import ReplaySettings
from daband.neural.learning._stack_trainer import take_steps
from tests.neural.learning.one_step import assert_same_step, copies

SHAPE = (3, 20, 20)
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


def policy(place, device="cpu", seed=1, replay="all", **learning):
    recipe = recipe_for("small", context_shape=SHAPE)
    recipe = replace(recipe, learning=replace(recipe.learning, **learning))
    recipe = replace(recipe, replay=ReplaySettings(sampling=replay, capacity=150))
    made = DABand(
        context_shape=SHAPE, n_arms=4, recipe=recipe, feedback="one_hot", device=device, seed=seed
    )
    return put(made, place)


def put(some, place):
    """Let the buffers store contexts on the host, as they do if a GPU has too little memory."""
    for part in some.buffers.get_buffers_by_segment().values() if place == "host" else ():
        part.is_on_host = True
        part._choose_device = lambda dtype, part=part: part.columns.update(
            contexts=part.contexts.cpu().to(dtype)
        )
    return some


def episode(some, number, steps=5):
    rng = np.random.default_rng(number)
    contexts = rng.integers(0, 256, (64, *SHAPE), dtype=np.uint8)
    some.play(contexts, np.eye(4)[contexts.reshape(64, -1)[:, 0] // 64])
    some.observe_target(255 - contexts)
    if number == 2:
        # a third buffer joins
        some.play(contexts[:20], np.eye(4)[rng.integers(0, 4, 20)], "target")
    return steps


def assert_alike(one, other):
    ours = one.learner.state()
    theirs = other.learner.state()
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("replay", ["all", "last"])
def test_steps_on_contexts_of_the_host_are_those_on_contexts_of_the_device(
    device, replay, monkeypatch
):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    on_device = policy("device", device, replay=replay)
    on_host = policy("host", device, replay=replay)
    for number, steps in enumerate((5, 3, 9, 9)):
        for some in (on_device, on_host):
            episode(some, number)
            measured = some.adapt(steps)
        assert measured["skipped_steps"] == 0
    assert on_host.buffers.rounds[0].contexts.device.type == "cpu"
    assert on_host.buffers.rounds[0].columns["arms"].device.type == device
    if device == "cpu":
        assert_alike(on_device, on_host)
    else:  # which adds up in no fixed order
        images = np.random.default_rng(9).integers(0, 256, (50, *SHAPE), dtype=np.uint8)
        np.testing.assert_allclose(
            on_device.decide(images).mean, on_host.decide(images).mean, atol=5e-3
        )


def test_stacked_runs_with_contexts_on_the_host_take_the_steps_of_runs_on_the_device():
    on_device, on_host = (
        [policy(place, seed=seed) for seed in (1, 2)] for place in ("device", "host")
    )
    for number in range(3):
        for some in (*on_device, *on_host):
            episode(some, number)
        adapt_stacked(on_device)
        adapt_stacked(on_host)
    assert on_host[0].learner.trainer.stack.n_runs == 2
    for one, other in zip(on_device, on_host, strict=True):
        assert_alike(one, other)


def test_a_step_of_stacked_runs_with_contexts_on_the_host_is_that_of_each_alone():
    stacked = [policy("host", seed=seed, steps=1) for seed in (1, 2)]
    for number in range(3):
        for some in stacked:
            episode(some, number)
        alone = copies(stacked)
        adapt_stacked(stacked)
        for one, other in zip(stacked, alone, strict=True):
            other.adapt()
            assert_same_step(one, other)


def numbered_buffers(n_source, n_target=0, *, capacity=40, latest=False, dtype=np.float32):
    settings = ReplaySettings(capacity=capacity, sampling="last" if latest else "all")
    buffers = ReplayBuffers.empty((1,), settings, seed=0, device=torch.device("cpu"))
    for start in range(0, n_source, 21):
        numbers = np.arange(start, min(start + 21, n_source))
        buffers.rounds[0].add_rounds(
            numbers[:, None].astype(np.float32), numbers % 3, numbers / 1000
        )
    if n_target:
        buffers.unlabelled[0].add(np.arange(100, 100 + n_target)[:, None].astype(dtype))
    return buffers


def made(buffers, *, latest=False, uses_target=True, seeds=(0,)):
    shape = BatchSettings(
        rounds_per_segment=16,
        contexts_per_round=1,
        context_shape=(1,),
        augmentation=Augmentation(),
        uses_latest=latest,
        uses_target=uses_target,
    )
    return Batches(buffers, shape, [torch.Generator().manual_seed(seed) for seed in seeds])


def drawn(batches, steps):
    """The batches of ``steps`` steps; their contexts' place is used again, so they are copied."""
    batches.load(steps)
    found = []
    for position in range(steps):
        found.append([tensor.clone() for tensor in batches.get_batch(torch.tensor([position]))])
    return found


@pytest.mark.parametrize(
    ("n", "expected"), [(107, list(range(91, 107))), (9, [0] * 8 + list(range(1, 9)))]
)
def test_the_latest_rounds_are_the_latest_also_when_the_buffer_is_full(n, expected):
    ((contexts, _, arm, reward),) = drawn(made([numbered_buffers(n, latest=True)], latest=True), 1)
    assert contexts.flatten().tolist() == expected
    assert arm.flatten().tolist() == [number % 3 for number in expected]
    np.testing.assert_allclose(reward.flatten(), np.array(expected) / 1000)


def test_arms_and_rewards_are_those_of_the_drawn_contexts():
    batches = made([numbered_buffers(30, 5)])
    assert (batches.count_rows(), batches.n_contexts) == ((16, 16), 32)
    for contexts, augmented, arm, reward in drawn(batches, 7):
        numbers = contexts[0, :16, 0].long()
        assert numbers.max() < 30
        assert torch.equal(arm[0], numbers % 3)
        np.testing.assert_allclose(reward[0], numbers / 1000)
        assert set(contexts[0, 16:, 0].tolist()) <= {100.0, 101.0, 102.0, 103.0, 104.0}
        assert torch.equal(augmented, contexts)  # vectors are left as they are


def test_how_steps_are_cut_into_blocks_changes_no_draw():
    whole = made([numbered_buffers(30, 5)])
    pieces = made([numbered_buffers(30, 5)])
    ours = drawn(whole, 9)
    theirs = [*drawn(pieces, 4), *drawn(pieces, 1), *drawn(pieces, 4)]
    for one, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(mine, yours) for mine, yours in zip(one, other, strict=True))


def test_each_stacked_run_draws_what_it_draws_alone():
    buffers = [numbered_buffers(30), numbered_buffers(17)]
    together = drawn(made(buffers, seeds=(4, 5)), 3)
    for run, seed in enumerate((4, 5)):
        for one, both in zip(drawn(made([buffers[run]], seeds=(seed,)), 3), together, strict=True):
            assert all(
                torch.equal(mine[0], stacked[run]) for mine, stacked in zip(one, both, strict=True)
            )


@pytest.mark.parametrize("place", ["device", "host"])
@pytest.mark.parametrize("runs", [1, 2])
def test_batches_prepared_ahead_are_those_gathered_in_each_step(runs, place, monkeypatch):
    learned = [policy(place, seed=seed) for seed in range(runs)]
    for some in learned:
        episode(some, 2)  # three buffers, one of them of rounds in the target
    shape = BatchSettings(
        8, 1, SHAPE, Augmentation(shift=2, contrast=0.4), uses_latest=False, uses_target=True
    )
    found = []
    for ahead in (False, True):
        monkeypatch.setattr(Batches, "can_gather_ahead", lambda *_, ahead=ahead: ahead)
        generators = [torch.Generator().manual_seed(seed) for seed in range(runs)]
        found.append(drawn(Batches([some.buffers for some in learned], shape, generators), 5))
    for one, other in zip(*found, strict=True):
        assert one[0].dtype == torch.uint8
        assert not torch.equal(one[1], one[0] / 255)
        assert all(torch.equal(mine, yours) for mine, yours in zip(one, other, strict=True))


def test_bytes_beside_floats_are_scaled_to_the_unit_range():
    ((contexts, *_),) = drawn(made([numbered_buffers(30, 5, dtype=np.uint8)]), 1)
    assert contexts.dtype == torch.float32
    assert 100 / 255 <= contexts[0, 16:].min() <= contexts[0, 16:].max() <= 104 / 255


def test_target_contexts_that_no_term_needs_are_not_drawn():
    batches = made([numbered_buffers(30, 5)], uses_target=False)
    assert (batches.count_rows(), batches.n_contexts) == ((16,), 16)


def test_batches_of_several_domains_come_domain_by_domain():
    domains = DomainNames(sources=("a", "b"), targets=("c", "d"))
    buffers = ReplayBuffers.empty(
        (1,), ReplaySettings(), seed=0, device=torch.device("cpu"), domains=domains
    )
    for domain in (0, 1, 3):  # a reward in the last target, too
        buffers.rounds[domain].add_rounds(
            np.full((5, 1), domain, np.float32), np.full(5, domain), np.full(5, domain / 10)
        )
    for target, part in enumerate(buffers.unlabelled):
        part.add(np.full((5, 1), 12 + target, np.float32))
    batches = made([buffers])
    assert (batches.count_rows(), batches.count_rows(batches.unlabelled_indices)) == (
        (16, 16, 16, 32),
        (0, 0, 16, 16),
    )
    ((contexts, _, arm, reward),) = drawn(batches, 1)
    assert contexts[0, ::16, 0].tolist() == [0, 1, 12, 13, 3]
    assert arm[0, ::16].tolist() == [0, 1, 3]
    np.testing.assert_allclose(reward[0, ::16], [0, 0.1, 0.3])
    restored = ReplayBuffers.empty(
        (1,), ReplaySettings(), seed=0, device=torch.device("cpu"), domains=domains
    )
    restored.restore(buffers.state())
    assert {name.partition(".")[0] for name in buffers.state()} == {
        "a",
        "b",
        "c",
        "d",
        "c_rounds",
        "d_rounds",
    }
    assert [len(part) for part in restored.get_buffers_by_segment().values()] == [5, 5, 5, 0, 5, 5]


def test_a_learner_of_several_domains_steps_and_keeps_their_statistics_apart():
    domains = DomainNames(sources=("a", "b"), targets=("c", "d"))
    rng = np.random.default_rng(0)
    recipe = recipe_for("default-rpd", context_shape=(4,)).changed(
        {
            "weights": {"pseudo_labels": 0.1},
            "encoder": {"options": {"statistics": "own"}},
            "learning": {"gate_exponent": 0.0},
        }
    )
    settings = {
        "recipe": recipe,
        "feature_shape": (4,),
        "n_arms": 3,
        "has_shared_arms": False,
        "feedback": "one_hot",
    }
    learners = [
        Learner(**settings, seed=seed, device=torch.device("cpu"), domains=domains)
        for seed in (0, 1)
    ]
    buffers = ReplayBuffers.empty(
        (4,), recipe.replay, seed=0, device=torch.device("cpu"), domains=domains
    )
    for domain in (0, 1, 3):
        contexts = domain + rng.normal(size=(90, 4))
        buffers.rounds[domain].add_rounds(
            contexts, rng.integers(0, 3, 90), rng.integers(0, 2, 90).astype(float)
        )
    for domain, part in enumerate(buffers.unlabelled, start=2):
        part.add(domain + rng.normal(size=(90, 4)))
    alone = copies(learners)[0]
    theta = rng.normal(size=(3, 64))
    for learner in (*learners, alone):
        learner.set_head(theta, np.stack([np.eye(64)] * 3), alpha=0.1)
    take_steps([alone], 1, [buffers])
    first, _ = take_steps(learners, 1, [buffers, buffers])
    assert first["skipped_steps"] == 0
    assert 0 <= first["discriminator_accuracy"] <= 1
    norm = learners[0].encoder.features.normalise_input
    assert norm.batches_seen.tolist() == [1] * 4
    assert norm.running_mean.mean(dim=1).argsort().tolist() == [0, 1, 2, 3]
    one, other = (learner.moments["exp_avg"] for learner in (learners[0], alone))
    np.testing.assert_allclose(one, other, atol=1e-4 * float(other.abs().max()))


def test_rewards_are_standardised_as_they_are_drawn():
    shape = BatchSettings(
        16, 1, (1,), Augmentation(), uses_latest=False, uses_target=False, standardise_rewards=True
    )
    unit = torch.tensor([0.01, 0.002])
    batches = Batches([numbered_buffers(30)], shape, [torch.Generator().manual_seed(0)], [unit])
    ((contexts, _, _, reward),) = drawn(batches, 1)
    np.testing.assert_allclose(reward, (contexts[..., 0] / 1000 - 0.01) / 0.002, atol=1e-4)
    unit.copy_(torch.tensor([0.0, 1.0]))  # steps use the latest moments
    ((contexts, _, _, reward),) = drawn(batches, 1)
    np.testing.assert_allclose(reward, contexts[..., 0] / 1000, rtol=1e-6)


def test_contexts_are_stored_on_the_host_if_they_would_fill_the_device(monkeypatch):
    class Card:
        total_memory = 1000

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Card)
    moved = []
    monkeypatch.setattr(
        torch.Tensor, "to", lambda self, *given: moved.append(str(given[0])) or self
    )
    for capacity, place in ((25, "cuda"), (26, "cpu")):
        buffer = ReplayBuffer(
            context_shape=(10,), capacity=capacity, seed=0, device=torch.device("cpu")
        )
        buffer.device = torch.device("cuda")
        buffer._choose_device(torch.uint8)
        assert (buffer.is_on_host, moved[-1]) == (place == "cpu", place)


def test_more_steps_than_a_block_are_taken():
    one = policy("device")
    episode(one, 0)
    assert one.adapt(STEPS_PER_BLOCK + 1)["skipped_steps"] == 0
    assert one.learner.step_number == STEPS_PER_BLOCK + 1
