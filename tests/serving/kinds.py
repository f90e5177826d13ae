"""A small trained policy of every kind that can be exported, and the contexts it was trained on."""

from __future__ import annotations

import numpy as np

import daband

VECTOR, IMAGE, ARMS = (6,), (3, 16, 16), 3
LATENT = {"dimension": 8, "hidden": 10}
STEPS = {"base": "small", "learning": {"steps": 2, "batch": 8, "linear_weight": 0.0}}
BESIDE = {"base": "small", "learning": {"steps": 2, "batch": 8, "linear_weight": 0.4}}
SMALL = {**STEPS, "encoder": {"name": "mlp", "options": {"widths": [12, 9], "statistics": "gated"}, "latent": LATENT}}


def _vector(**settings):
    return {"context_shape": VECTOR, "n_arms": ARMS, "seed": 3, **settings}


def _conv(**options):
    encoder = {
        "name": "conv",
        "options": {"channels": [4, 5], **options},
        "latent": {**LATENT, "normalise_hidden": True},
    }
    return {"context_shape": IMAGE, "n_arms": ARMS, "seed": 3, "recipe": {**STEPS, "encoder": encoder}}


KINDS = {
    "constant": (daband.Constant, _vector()),
    "constant-shared": (daband.Constant, _vector(arms="shared")),
    "random": (daband.Random, _vector()),
    "linucb": (daband.LinUCB, _vector(reward_range=(-2.0, 5.0))),
    "linucb-greedy": (daband.LinUCB, _vector(explore="greedy", epsilon=0.3)),
    "linucb-thompson": (daband.LinUCB, _vector(explore="thompson", alpha=0.8, epsilon=0.1)),
    "linucb-dual": (daband.LinUCB, _vector(form="dual")),
    "linucb-shared": (daband.LinUCB, _vector(arms="shared")),
    "linucb-pca": (daband.LinUCB, _vector(transform=daband.PCA(4))),
    "linucb-standardise": (daband.LinUCB, _vector(transform=daband.Standardise())),
    "linucb-components": (daband.LinUCB, _vector(transform=daband.Standardise(components=3))),
    "linucb-images": (daband.LinUCB, {"context_shape": IMAGE, "n_arms": ARMS, "transform": daband.PCA(8)}),
    "trees": (daband.Trees, _vector(reward_range=(-2.0, 5.0))),
    "trees-shared": (daband.Trees, _vector(arms="shared")),
    "nlinucb": (daband.NeuralLinUCB, _vector(recipe=SMALL)),
    "daband": (daband.DABand, _vector(recipe=SMALL, epsilon=0.2)),
    "daband-linear": (daband.DABand, _vector(recipe=BESIDE)),
    "daband-linear-shared": (daband.DABand, _vector(recipe=BESIDE, arms="shared", transform=daband.PCA(4))),
    "daband-linear-images": (daband.DABand, {"context_shape": (17, 16), "n_arms": ARMS, "recipe": BESIDE}),
    "daband-paper": (daband.DABand, _vector(recipe={"base": "paper", "learning": {"steps": 2}})),
    "daband-shared": (daband.DABand, _vector(recipe=SMALL, arms="shared")),
    "daband-pca": (daband.DABand, _vector(recipe=SMALL, transform=daband.PCA(4))),
    "daband-images": (daband.DABand, _conv()),
    "daband-images-symmetric": (daband.DABand, _conv(pixels="symmetric")),
    "daband-images-imagenet": (daband.DABand, _conv(pixels="imagenet", normalise_image=True)),
    "daband-channels-last": (daband.DABand, {**_conv(), "context_shape": (18, 17, 3)}),
    "daband-grey": (daband.DABand, {**_conv(), "context_shape": (24, 30)}),
    "daband-pooled": (daband.DABand, {**_conv(pooled_side=3), "context_shape": (3, 29, 26)}),
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
    low, high = policy.reward_range
    rng = np.random.default_rng(2)
    rewards = low + (high - low) * rng.random(n)
    policy.prepare(contexts)
    policy.observe_target(contexts[: n // 2])
    ids = [f"patient-{number:05d}" for number in range(n)]
    policy.update(contexts, rng.integers(0, ARMS, n), rewards, domain="source", ids=ids)
    policy.adapt()
    policy.adapt()
    policy.deploy("target")
    return policy, contexts, rewards, ids
