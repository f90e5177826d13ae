"""A small trained policy of every kind that can be exported, and the contexts it was trained on."""

from __future__ import annotations

import numpy as np

import daband
from daband.policies import policies
from daband.serving._rule import Split, to_state

VECTOR = (6,)
IMAGE = (3, 16, 16)
ARMS = 3
LATENT = {"dimension": 8, "hidden": 10}
STEPS = {"base": "small", "learning": {"steps": 2, "batch": 8}}
SMALL = {**STEPS, "encoder": {"name": "mlp", "options": {"widths": [12, 9]}, "dense": LATENT}}


def _vector(**settings):
    return {"context_shape": VECTOR, "n_arms": ARMS, "seed": 3, **settings}


def _conv(**options):
    encoder = {
        "name": "conv",
        "options": {"channels": [4, 5], **options},
        "dense": LATENT,
    }
    return {
        "context_shape": IMAGE,
        "n_arms": ARMS,
        "seed": 3,
        "recipe": {**STEPS, "encoder": encoder},
    }


def _mixture(**settings):
    """A mixture of a regression, a network and a constant."""
    own = {
        "linear": daband.LinUCB(**settings, transform=daband.Standardise()),
        "constant": daband.Constant(**settings),
    }
    own["network"] = daband.DABand(**settings, recipe=SMALL)
    return daband.Mixture(**settings, members=own)


KINDS = {
    "constant": (daband.Constant, _vector()),
    "constant-shared": (daband.Constant, _vector(arms="shared")),
    "random": (daband.Random, _vector()),
    "linucb": (daband.LinUCB, _vector()),
    "linucb-greedy": (daband.LinUCB, _vector(explore="greedy", epsilon=0.3)),
    "linucb-epsilon": (daband.LinUCB, _vector(alpha=0.8, epsilon=0.1)),
    "linucb-shared": (daband.LinUCB, _vector(arms="shared")),
    "linucb-pca": (daband.LinUCB, _vector(transform=daband.PCA(4))),
    "linucb-standardise": (daband.LinUCB, _vector(transform=daband.Standardise())),
    "linucb-components": (daband.LinUCB, _vector(transform=daband.Standardise(components=3))),
    "linucb-images": (
        daband.LinUCB,
        {"context_shape": IMAGE, "n_arms": ARMS, "transform": daband.PCA(8)},
    ),
    "supervised": (daband.Supervised, _vector()),
    "trees": (daband.Trees, _vector()),
    "trees-shared": (daband.Trees, _vector(arms="shared")),
    "nlinucb": (daband.NeuralLinUCB, _vector(recipe=SMALL)),
    "daband": (daband.DABand, _vector(recipe=SMALL, epsilon=0.2)),
    "daband-shared-pca": (
        daband.DABand,
        _vector(recipe=SMALL, arms="shared", transform=daband.PCA(4)),
    ),
    "log": (daband.LogPolicy, _vector()),
    "self-training": (policies.get("self-training"), _vector(feedback="one_hot")),
    "rules": (
        daband.RulePolicy,
        _vector(tree=to_state(Split("a", "below", 2, False, 1, 2.0, 0, 1))),
    ),
    "mixture": (_mixture, _vector()),
    "daband-paper": (daband.DABand, _vector(recipe={"base": "paper", "learning": {"steps": 2}})),
    "daband-shared": (daband.DABand, _vector(recipe=SMALL, arms="shared")),
    "daband-pca": (daband.DABand, _vector(recipe=SMALL, transform=daband.PCA(4))),
    "daband-images": (daband.DABand, _conv()),
    "daband-images-symmetric": (daband.DABand, _conv(pixels="symmetric")),
    "daband-images-plain": (daband.DABand, _conv(normalise=False)),
    "daband-channels-last": (daband.DABand, {**_conv(), "context_shape": (18, 17, 3)}),
    "daband-grey": (daband.DABand, {**_conv(), "context_shape": (24, 30)}),
    "daband-pooled": (daband.DABand, {**_conv(), "context_shape": (3, 60, 52)}),
}


def contexts_of(settings, n, seed):
    """Contexts for a policy of these settings; images are uint8."""
    rng = np.random.default_rng(seed)
    shape = settings["context_shape"]
    lead = (n, ARMS) if settings.get("arms") == "shared" else (n,)
    if len(shape) > 1:
        return rng.integers(0, 256, (*lead, *shape), np.uint8)
    return 3.0 * rng.normal(size=(*lead, *shape)) + np.arange(shape[0])


def trained(kind, n=150):
    """The policy, and the contexts, rewards and ids it has learned from; it acts in the target."""
    own, settings = KINDS[kind]
    policy = own(**settings)
    contexts = contexts_of(settings, n, seed=1)
    rng = np.random.default_rng(2)
    rewards = 7.0 * rng.random(n) - 2.0 if kind in ("linucb", "trees") else rng.random(n)
    # a reward of 1 reveals a label
    rewards = rewards.round() if kind == "self-training" else rewards
    policy.prepare(contexts)
    policy.observe_target(contexts[: n // 2])
    if kind == "supervised":
        policy.learn_full(contexts, rng.random((n, ARMS)), "source")
    ids = [f"patient-{number:05d}" for number in range(n)]
    policy.update(contexts, rng.integers(0, ARMS, n), rewards, domain="source", ids=ids)
    policy.adapt()
    policy.adapt()
    policy.deploy("target")
    return policy, contexts, rewards, ids


def table_pair():
    """A pair of tables with numbers, categories and gaps."""
    import polars as pl

    rng = np.random.default_rng(0)
    rows = 300
    frame = pl.DataFrame(
        {
            "age": rng.integers(18, 90, rows).astype(float),
            "income": np.where(rng.random(rows) < 0.1, np.nan, rng.lognormal(10, 0.5, rows)),
            "city": [["Oslo", "Rome", "Lima"][at] for at in rng.integers(0, 3, rows)],
            "member": [bool(at) for at in rng.integers(0, 2, rows)],
            "offer": [["none", "mail", "call"][at] for at in rng.integers(0, 3, rows)],
        }
    ).with_columns(pl.col("income").fill_nan(None))
    columns = daband.domains.Columns(
        context=("age", "income", "city", "member"), categorical=("city", "member"), label="offer"
    )
    return daband.domains.from_table(
        source=frame[:150], target=frame[150:].drop("offer"), columns=columns
    )


def table_policy():
    """A policy on that pair."""
    pair = table_pair()
    policy = daband.LinUCB.for_pair(pair, seed=1)
    daband.train(policy, source=pair.source, target=pair.target, episodes=4, episode_length=16)
    policy.deploy("target")
    policy.explore = "greedy"  # a deployed file draws fresh random numbers
    return policy, pair


ROWS = [
    {"age": 41, "income": 20_000.0, "city": "Oslo", "member": True},
    {"age": 73.5, "income": None, "city": "Lima", "member": False},
    {"age": 20, "income": 1e9, "city": "Paris", "member": None},
]
