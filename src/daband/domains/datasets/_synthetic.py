"""A pair with known expected rewards, so that regret is exact, and with an adjustable shift.

A round has a hidden unit vector ``u`` near the prototype of one arm. Rewards depend only on ``u``, in both domains.
The domains differ in how ``u`` is observed: the source shows it unchanged; the target shows it rotated, scaled and
moved, and with other frequencies of the best arms. So a policy trained on the source alone is wrong on the target,
while the clusters of the contexts keep their meaning: adaptation is possible.

Prototypes are orthogonal and ``u`` leans towards one and away from none, so ``u . prototype`` is in [0, 1]. With
``rewards="linear"`` that product is the expected reward: on the source, contexts have unit norm and the reward is
exactly ``context . theta`` with a ``theta`` of unit norm, the assumptions under which LinUCB's bound is proved.
"""

from __future__ import annotations

import numpy as np

from daband._arguments import check_int, finite, one_of
from daband._arrays import FloatArray, IntArray
from daband._shift import ShiftLike, as_shift
from daband.domains._contract import About, Pair
from daband.domains._registry import register_pair
from daband.domains.readers._arrays import ArrayContexts, ArrayEvaluation, ArraySource
from daband.errors import InvalidInput

_SPREAD = 0.6  # norm of the noise around a prototype; a prototype has norm 1


@register_pair("synthetic", about=About(summary="known rewards, a shift one can dial, exact regret"))
def synthetic(
    *,
    tiny: bool = False,
    rewards: str = "linear",
    arms: str = "disjoint",
    n_arms: int = 5,
    dimension: int = 16,
    n_contexts: int = 20_000,
    rotation: float = 60.0,
    translation: float = 0.4,
    scale: float = 1.0,
    frequency: float = 1.0,
    shift: ShiftLike = "style",
    noise: float = 0.2,
    data_seed: int = 0,
) -> Pair:
    """Build a pair with known expected rewards.

    Args:
        tiny: a twin of 160 contexts, 3 arms and 8 dimensions; the other options keep their meaning.
        rewards: "linear" (the expected reward is linear in the context) or "labels" (one arm has reward 1, others 0, no
            noise).
        arms: "disjoint": one context (d,) per round; "shared": one context per arm, (K, d).
        n_arms: the number of arms, K.
        dimension: the length d of a context; at least K.
        n_contexts: the number of contexts of the source, and of the target for training; the tests have a fifth.
        rotation: degrees by which the target turns the hidden vector in each of d // 2 fixed random planes.
        translation: the length of a fixed random vector that the target adds to it.
        scale: the factor by which the target multiplies it.
        frequency: makes the best arms unequally frequent in the target: the rarest is exp(-frequency) times as
            frequent as the commonest.
        shift: the shift that a policy may assume; "style" by default, because each domain shows ``u`` differently.
        noise: the fraction of rewards that are drawn as 0 or 1 with the expected reward as probability. The others are
            equal to the expected reward, which is the same for every fraction. Not used with "labels".
        data_seed: fixes all random draws.
    """
    if tiny:
        n_arms, dimension, n_contexts = 3, 8, 160
    one_of("rewards", rewards, ("linear", "labels"))
    one_of("arms", arms, ("disjoint", "shared"))
    check_int("n_arms", n_arms, minimum=2)
    check_int("dimension", dimension, minimum=n_arms)
    check_int("n_contexts", n_contexts, minimum=1)
    check_int("data_seed", data_seed, minimum=0)
    for name, value in (("rotation", rotation), ("translation", translation), ("frequency", frequency)):
        finite(name, value)
    if not finite("scale", scale) > 0:
        raise InvalidInput(f"scale must be positive, got {scale}")
    if not 0.0 <= finite("noise", noise) <= 1.0:
        raise InvalidInput(f"noise must be between 0 and 1, got {noise}")
    # Each part has its own generator, so that changing one option does not change the draws of the others.
    keys = ("world", "source", "target", "test", "source_test")
    draw = dict(zip(keys, np.random.default_rng(data_seed).spawn(len(keys)), strict=True))
    world = _World(draw["world"], rewards=rewards, shared=arms == "shared", n_arms=n_arms, dimension=dimension)
    even = np.full(n_arms, 1.0 / n_arms)
    uneven = np.exp(-frequency * np.linspace(0.0, 1.0, n_arms))
    uneven /= uneven.sum()

    per_arm = arms == "shared"
    hidden, expected = world.rounds(draw["source"], n_contexts, even)
    paid = _realise(draw["source"], expected, 0.0 if rewards == "labels" else noise)
    source = ArraySource(hidden, paid, n_arms=n_arms, expected=expected, per_arm=per_arm)

    hidden, expected = world.rounds(draw["target"], n_contexts, uneven)
    contexts = world.view(hidden, rotation, translation, scale)
    paid = _realise(draw["target"], expected, 0.0 if rewards == "labels" else noise)
    target = ArrayContexts(contexts, per_arm=per_arm)
    later = ArraySource(contexts, paid, n_arms=n_arms, expected=expected, per_arm=per_arm, name="target_labelled")

    hidden, expected = world.rounds(draw["test"], max(n_contexts // 5, 50), uneven)
    test = ArrayEvaluation(world.view(hidden, rotation, translation, scale), expected, n_arms=n_arms, per_arm=per_arm)
    held = ArrayEvaluation(
        *world.rounds(draw["source_test"], max(n_contexts // 5, 50), even),
        n_arms=n_arms,
        per_arm=per_arm,
        name="source_test",
    )
    return Pair(
        name="synthetic",
        context_shape=source.context_shape,
        n_arms=n_arms,
        class_names=tuple(f"arm {arm}" for arm in range(n_arms)),
        source=source,
        source_test=held,
        target=target,
        target_test=test,
        target_labelled=later,
        arms=arms,
        feedback="one_hot" if rewards == "labels" else "bandit",
        about=About(summary=f"{rewards} rewards, rotated by {rotation:g} degrees and moved by {translation:g}"),
        shift=as_shift(shift, context_shape=source.context_shape),
    )


class _World:
    """The data common to both domains: the prototypes, their rewards, and the fixed directions of the shift."""

    def __init__(
        self, generator: np.random.Generator, *, rewards: str, shared: bool, n_arms: int, dimension: int
    ) -> None:
        self.rewards = rewards
        self.shared = shared
        self.prototypes = np.ascontiguousarray(np.linalg.qr(generator.standard_normal((dimension, n_arms)))[0].T)
        self.basis = np.linalg.qr(generator.standard_normal((dimension, dimension)))[0]
        self.direction = _unit(generator.standard_normal(dimension))

    def rounds(self, generator: np.random.Generator, n: int, frequencies: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return hidden vectors, (n, d) or (n, K, d), and expected rewards, (n, K)."""
        n_arms, dimension = self.prototypes.shape
        best = generator.choice(n_arms, size=n, p=frequencies)
        # Shared arms: the best arm shows prototype 0, which is rewarded; the others show the other prototypes.
        kinds = (np.arange(n_arms)[None, :] - best[:, None]) % n_arms if self.shared else best
        around = self.prototypes[kinds]
        noise = generator.standard_normal(around.shape) * (_SPREAD / np.sqrt(dimension))
        leaning = noise @ self.prototypes.T
        noise -= np.minimum(leaning, 0.0) @ self.prototypes  # away from no prototype, so that no reward is negative
        hidden = _unit(around + noise)
        return hidden, self._expected(hidden, best)

    def _expected(self, hidden: FloatArray, best: IntArray) -> FloatArray:
        if self.rewards == "labels":
            return np.eye(len(self.prototypes))[best]
        products = hidden @ (self.prototypes[0] if self.shared else self.prototypes.T)
        return np.clip(products, 0.0, 1.0)  # rounding may leave -1e-17

    def view(self, hidden: FloatArray, rotation: float, translation: float, scale: float) -> FloatArray:
        """Return hidden vectors as the target shows them: rotated, scaled, moved."""
        angle = np.deg2rad(rotation)
        turn = np.eye(self.basis.shape[0])
        for first in range(0, len(turn) - 1, 2):
            turn[first : first + 2, first : first + 2] = [
                [np.cos(angle), -np.sin(angle)],
                [np.sin(angle), np.cos(angle)],
            ]
        rotated = hidden @ (self.basis @ turn @ self.basis.T).T
        return scale * rotated + translation * self.direction


def _unit(vectors: FloatArray) -> FloatArray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def _realise(generator: np.random.Generator, expected: FloatArray, noise: float) -> FloatArray:
    coin = (generator.random(expected.shape) < expected).astype(np.float64)
    return np.where(generator.random(expected.shape) < noise, coin, expected)
