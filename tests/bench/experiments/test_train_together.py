"""Several runs trained together give what each gives alone, on a CPU to the bit."""

import time
from dataclasses import replace

import numpy as np
import pytest
import torch

import daband
from daband.bench._together import train_together
from daband.domains.readers._arrays import ArrayRewards
from daband.errors import InvalidInput
from daband.neural._recipes import recipe_for
from daband.neural.daband import DABand
from daband.neural.neural_linucb import NeuralLinUCB
from daband.policies._ridge import LinUCB
from daband.training._loop import train
from daband.training._phase import build_source_phase

ARMS = 4
EPISODE = 32


def training_of(policy, *, source, target=None, **settings):
    return build_source_phase(policy, source, target, **settings)


def images(n=320, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, ARMS, n)
    pictures = rng.integers(0, 60, (n, 3, 16, 16))
    for row, label in enumerate(labels):
        pictures[row, :, 4 * label : 4 * label + 4] += 150
    return pictures.astype(np.uint8), labels


def vectors(n=320, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, ARMS, n)
    return (np.eye(6)[labels] * 2 + rng.normal(size=(n, 6))).astype(np.float32), labels


def pair_of(make):
    (x, y), (tx, ty) = make(), make(seed=1)
    shifted = 255 - tx if tx.dtype == np.uint8 else tx + 1
    return daband.domains.from_arrays(
        source=(x, y), source_test=None, target=shifted, target_test=(shifted, ty), n_arms=ARMS
    )


def policy_of(kind, pair, seed, recipe, **changes):
    found = recipe_for(recipe, context_shape=pair.context_shape)
    found = found.source_only() if kind is NeuralLinUCB else found
    if pair.context_shape == (3, 16, 16):
        found = replace(
            found,
            encoder=replace(found.encoder, options={**found.encoder.options, "channels": (6,)}),
        )
    found = replace(found, learning=replace(found.learning, **{"steps": 4, "batch": 12, **changes}))
    return kind(
        context_shape=pair.context_shape,
        n_arms=ARMS,
        recipe=found,
        feedback="one_hot",
        device="cpu",
        seed=seed,
    )


CASES = [
    (images, DABand, "default-rpd"),
    (images, NeuralLinUCB, "default"),
    (images, DABand, "paper"),
    (vectors, DABand, "default"),
    (vectors, DABand, "paper"),
]


def assert_alike(run, twin):
    """The runs of one policy, together with others and alone."""
    np.testing.assert_array_equal(run.arm, twin.arm)
    assert run.episodes == twin.episodes


@pytest.mark.parametrize(
    ("make", "kind", "recipe"), CASES, ids=[f"{c[1].name}-{c[2]}-{c[0].__name__}" for c in CASES]
)
def test_runs_together_are_those_of_runs_alone(make, kind, recipe):
    pair = pair_of(make)
    settings = {
        "source": pair.source,
        "target": pair.target,
        "episodes": 2,
        "episode_length": EPISODE,
    }
    alone, together = ([policy_of(kind, pair, seed, recipe) for seed in range(2)] for _ in range(2))
    runs = [train(policy, **settings) for policy in alone]
    twins = train_together([training_of(policy, **settings) for policy in together])
    for one, other, run, twin in zip(alone, together, runs, twins, strict=True):
        assert_alike(run, twin)
        ours, theirs = one.learner.state(), other.learner.state()
        assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def test_what_was_trained_together_goes_on_alone_and_is_saved_alone(tmp_path):
    pair = pair_of(images)
    settings = {"source": pair.source, "target": pair.target, "episode_length": EPISODE}
    policies = [policy_of(DABand, pair, seed, "default") for seed in range(2)]
    folders = [tmp_path / str(seed) for seed in range(2)]
    train_together(
        [
            training_of(p, **settings, episodes=3, directory=f, save_every=0.0)
            for p, f in zip(policies, folders, strict=True)
        ],
    )
    policies[0].save(tmp_path / "p.safetensors")
    again = daband.load(tmp_path / "p.safetensors")
    x = pair.target.batch(0, 16, seed=0)
    np.testing.assert_array_equal(
        again.decide(x, "target").mean, policies[0].decide(x, "target").mean
    )
    for policy in (policies[0], again):
        policy.adapt(steps=3)
    np.testing.assert_array_equal(
        again.decide(x, "target").mean, policies[0].decide(x, "target").mean
    )


def test_a_run_that_is_ahead_waits_for_the_others(tmp_path):
    pair = pair_of(vectors)
    settings = {"source": pair.source, "target": pair.target, "episode_length": EPISODE}
    first = policy_of(DABand, pair, 0, "default")
    train(first, **settings, episodes=4, directory=tmp_path / "0")
    seen = []
    again = [policy_of(DABand, pair, seed, "default") for seed in range(2)]
    runs = train_together(
        [
            training_of(
                policy,
                **settings,
                episodes=4,
                directory=tmp_path / str(seed),
                progress=lambda record, seed=seed: seen.append((seed, record["episode"])),
            )
            for seed, policy in enumerate(again)
        ]
    )
    assert seen == [(1, 1), (1, 2), (1, 3), (1, 4)]
    assert [run.rounds for run in runs] == [128, 128]


def test_a_run_that_fails_leaves_the_others_alone():
    pair = pair_of(vectors)
    settings = {
        "source": pair.source,
        "target": pair.target,
        "episodes": 4,
        "episode_length": EPISODE,
    }
    policies = [policy_of(DABand, pair, seed, "default") for seed in range(3)]
    lonely = policy_of(DABand, pair, 1, "default")
    with torch.no_grad():
        policies[0].learner.parameters[0].fill_(torch.nan)
    broken, *others = train_together([training_of(policy, **settings) for policy in policies])
    assert isinstance(broken, Exception)
    assert "not finite" in str(broken)
    assert_alike(others[0], train(lonely, **settings))


def test_what_does_not_fit_together_is_told():
    pair = pair_of(vectors)
    neural = policy_of(DABand, pair, 0, "default")
    linear = LinUCB(context_shape=(6,), n_arms=ARMS)
    for mixed in ([neural, neural], [neural, linear]):
        with pytest.raises(InvalidInput, match="together"):
            train_together([training_of(policy, source=pair.source) for policy in mixed])


def test_a_run_fails_alone_by_its_data_its_folder_or_its_listener(tmp_path):
    pair = pair_of(vectors)
    settings = {
        "source": pair.source,
        "target": pair.target,
        "episodes": 3,
        "episode_length": EPISODE,
    }

    class Torn(type(pair.source)):
        def order(self, start, stop, *, seed):
            if start == 32:
                raise OSError("torn")
            return super().order(start, stop, seed=seed)

    torn = Torn.__new__(Torn)
    torn.__dict__.update(pair.source.__dict__)
    (tmp_path / "config.json").write_text("{}")

    def deaf(record):
        raise RuntimeError("deaf")

    policies = [policy_of(DABand, pair, seed, "default") for seed in range(4)]
    runs = train_together(
        [
            training_of(policies[0], **{**settings, "source": torn}),
            training_of(policies[1], **settings, directory=tmp_path),
            training_of(policies[2], **settings, progress=deaf),
            training_of(policies[3], **settings),
        ]
    )
    assert [str(run) for run in runs[:1]] == ["torn"]
    assert isinstance(runs[1], InvalidInput)
    assert "other settings" in str(runs[1])
    assert str(runs[2]) == "deaf"
    lonely = train(policy_of(DABand, pair, 3, "default"), **settings)
    assert_alike(runs[3], lonely)


def test_runs_with_and_without_a_target_train_side_by_side():
    pair = pair_of(vectors)
    settings = {"source": pair.source, "episodes": 3, "episode_length": EPISODE}
    targets = [None, pair.target, None]
    beside, alone = (
        [policy_of(DABand, pair, seed, "default") for seed in range(3)] for _ in range(2)
    )
    trainings = [
        training_of(policy, target=target, **settings)
        for policy, target in zip(beside, targets, strict=True)
    ]
    with pytest.warns(UserWarning, match="no target context"):
        runs = train_together(trainings)
    with pytest.warns(UserWarning, match="no target context"):
        twins = [
            train(policy, target=target, **settings)
            for policy, target in zip(alone, targets, strict=True)
        ]
    for run, twin in zip(runs, twins, strict=True):
        assert_alike(run, twin)


@pytest.mark.parametrize("episode", [2, 3])
def test_runs_interrupted_together_go_on_together_or_alone(tmp_path, episode):
    pair = pair_of(vectors)
    settings = {
        "source": pair.source,
        "target": pair.target,
        "episodes": 4,
        "episode_length": EPISODE,
    }

    def stop(record):
        if record["episode"] == episode:
            raise KeyboardInterrupt

    def trainings(progress=None):
        return [
            training_of(
                policy_of(DABand, pair, seed, "default"),
                **settings,
                directory=tmp_path / str(seed),
                save_every=0.0 if progress else 30.0,
                progress=progress if seed == 1 else None,
            )
            for seed in range(3)
        ]

    with pytest.raises(KeyboardInterrupt):
        train_together(trainings(stop))
    # one of them alone, to its end
    train(policy_of(DABand, pair, 2, "default"), **settings, directory=tmp_path / "2")
    runs = train_together(trainings())
    for seed, run in enumerate(runs):
        assert_alike(run, train(policy_of(DABand, pair, seed, "default"), **settings))
    again = train_together(trainings(stop))  # all are over: nothing is played, nobody is told
    for run, twin in zip(runs, again, strict=True):
        np.testing.assert_array_equal(run.arm, twin.arm)


def test_after_training_together_each_goes_on_in_the_target():
    pair = pair_of(vectors)
    settings = {
        "source": pair.source,
        "target": pair.target,
        "episodes": 2,
        "episode_length": EPISODE,
    }
    contexts, labels = vectors(seed=1)
    target = ArrayRewards(contexts + 1, np.eye(ARMS)[labels])
    paying = {"target": target, "rounds": 64, "episode_length": EPISODE}
    together, alone = (
        [policy_of(DABand, pair, seed, "default") for seed in range(2)] for _ in range(2)
    )
    train_together([training_of(policy, **settings) for policy in together])
    for policy in alone:
        train(policy, **settings)
    for one, other in zip(together, alone, strict=True):
        ours = daband.continue_on_target(one, **paying)
        theirs = daband.continue_on_target(other, **paying)
        assert_alike(ours, theirs)
        assert len(one.buffers.rounds[1]) == 64


def test_runs_share_the_time_and_save_as_much_more_seldom(tmp_path, monkeypatch):
    from daband.training import _trainer as trainer

    pair = pair_of(vectors)
    now = 0.0
    saves = []

    def write(path, content):
        nonlocal now
        now += 1.0
        saves.append(path.parent.name)

    def work(record):
        nonlocal now
        now += 20.0

    trainings = [
        training_of(
            policy_of(DABand, pair, seed, "default"),
            source=pair.source,
            target=pair.target,
            episodes=8,
            episode_length=EPISODE,
            directory=tmp_path / str(seed),
            save_every=5.0,
            progress=work if seed == 0 else None,
        )
        for seed in range(4)
    ]
    monkeypatch.setattr(trainer, "write_npz", write)
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    runs = train_together(trainings)
    # The folder's first, one when the time was up, and the last: alone there would be one every
    # twenty seconds.
    assert [saves.count(str(seed)) for seed in range(4)] == [3, 3, 3, 3]
    assert 0.5 * now < sum(run.seconds for run in runs) <= now


def test_transforms_of_runs_together_are_those_of_runs_alone():
    """They are fitted side by side, each on the contexts of its own run."""
    pair = pair_of(vectors)

    def make(seed):
        return NeuralLinUCB(
            context_shape=(6,),
            n_arms=ARMS,
            transform=daband.PCA(3),
            device="cpu",
            seed=seed,
            recipe={"base": "small"},
        )

    alone = [make(seed) for seed in range(3)]
    together = [make(seed) for seed in range(3)]
    for policy in alone:
        train(policy, source=pair.source, target=pair.target, episodes=2, episode_length=EPISODE)
    settings = {
        "source": pair.source,
        "target": pair.target,
        "episodes": 2,
        "episode_length": EPISODE,
    }
    runs = train_together([training_of(policy, **settings) for policy in together])
    assert not any(isinstance(run, Exception) for run in runs)
    axes = [policy.transform.axes for policy in alone]
    assert not np.allclose(axes[0], axes[1])
    for policy, expected in zip(together, axes, strict=True):
        np.testing.assert_allclose(policy.transform.axes, expected, rtol=1e-9, atol=1e-12)
