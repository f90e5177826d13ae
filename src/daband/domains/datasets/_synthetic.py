"""Generate a synthetic pair with known expected rewards, so that regret is exact, and with an
adjustable shift.

A round has a hidden unit vector ``u`` near the prototype of one arm. Rewards depend only on ``u``,
in both domains. The context is ``u`` itself in the source. In the target, ``u`` is rotated, scaled
and translated, and the best arms have other frequencies. A policy that was trained only on the
source is therefore wrong in the target. Adaptation is possible, because contexts near one prototype
still have the same best arm.

Prototypes are orthogonal, and the inner product of ``u`` with each prototype is in [0, 1]. With
``rewards="linear"`` that product is the expected reward. On the source, contexts have unit norm and
the expected reward is exactly ``context . theta`` with a ``theta`` of unit norm. LinUCB's regret
bound is proved under these assumptions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daband.base._arguments import check_finite, check_fraction, check_int, check_one_of
from daband.base._arrays import FloatArray, IntArray
from daband.domains._contract import About, EvaluationDomain, Pair
from daband.domains._registry import register_pair
from daband.domains.readers._arrays import ArrayContexts, ArrayRewards
from daband.errors import InvalidInput
from daband.features._shift import ShiftLike, as_shift

#: Norm of the noise around a prototype, which has norm 1.
_NOISE_NORM = 0.6


@register_pair("synthetic", about=About(summary="known rewards, an adjustable shift, exact regret"))
def _build_synthetic_pair(
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
    """Build a synthetic pair, whose expected rewards are known.

    Args:
        tiny: True for 160 contexts, 3 arms and 8 dimensions.
        rewards: "linear" (the expected reward is linear in the context) or "labels" (one arm has
            reward 1, others 0, no noise).
        arms: "disjoint": one context (d,) per round; "shared": one context per arm, (K, d).
        n_arms: the number of arms, K.
        dimension: the length d of a context; at least K.
        n_contexts: the number of training contexts of the source, and of the target; tests have a
            fifth of it.
        rotation: degrees by which hidden vectors are rotated in the target, in each of d // 2 fixed
            random planes.
        translation: the length of a fixed random vector that is added in the target.
        scale: the factor by which hidden vectors are multiplied in the target.
        frequency: the rarest best arm is exp(-frequency) times as frequent as the most frequent one
            in the target.
        shift: the shift that a policy may assume.
        noise: the fraction of rewards that are drawn as 0 or 1 with the expected reward as
            probability. The others are equal to the expected reward, which is the same for every
            fraction. Not used with "labels".
        data_seed: seed of all random draws.
    """
    if tiny:
        n_arms = 3
        dimension = 8
        n_contexts = 160
    check_one_of("rewards", rewards, ("linear", "labels"))
    check_one_of("arms", arms, ("disjoint", "shared"))
    check_int("n_arms", n_arms, minimum=2)
    check_int("dimension", dimension, minimum=n_arms)
    check_int("n_contexts", n_contexts, minimum=1)
    check_int("data_seed", data_seed, minimum=0)
    for name, value in (
        ("rotation", rotation),
        ("translation", translation),
        ("frequency", frequency),
    ):
        check_finite(name, value)
    if not check_finite("scale", scale) > 0:
        raise InvalidInput(f"scale must be positive, got {scale}")
    check_fraction("noise", noise, allow_one=True)
    # Each part has its own random generator, so that an option of one part does not change the
    # draws of others.
    part_names = ("world", "source", "target", "test", "source_test")
    rngs = dict(
        zip(part_names, np.random.default_rng(data_seed).spawn(len(part_names)), strict=True)
    )
    has_arm_axis = arms == "shared"
    is_one_hot = rewards == "labels"
    world = _World(
        rngs["world"],
        is_one_hot=is_one_hot,
        has_arm_axis=has_arm_axis,
        n_arms=n_arms,
        dimension=dimension,
    )
    source_frequencies = np.full(n_arms, 1.0 / n_arms)
    target_frequencies = np.exp(-frequency * np.linspace(0.0, 1.0, n_arms))
    target_frequencies /= target_frequencies.sum()
    n_test = max(n_contexts // 5, 50)
    noise_fraction = 0.0 if is_one_hot else noise
    options: dict[str, Any] = {"n_arms": n_arms, "has_arm_axis": has_arm_axis}

    source_contexts, source_expected = world.draw_rounds(
        rngs["source"], n_contexts, source_frequencies
    )
    source_rewards = _draw_rewards(rngs["source"], source_expected, noise_fraction)
    source = ArrayRewards(source_contexts, source_rewards, expected=source_expected, **options)
    source_test_rounds = world.draw_rounds(rngs["source_test"], n_test, source_frequencies)
    source_test = EvaluationDomain(ArrayRewards(*source_test_rounds, **options))

    target_vectors, target_expected = world.draw_rounds(
        rngs["target"], n_contexts, target_frequencies
    )
    target_contexts = world.shift_vectors(target_vectors, rotation, translation, scale)
    target_rewards = _draw_rewards(rngs["target"], target_expected, noise_fraction)
    target = ArrayContexts(target_contexts, has_arm_axis=has_arm_axis)
    target_labelled = ArrayRewards(
        target_contexts, target_rewards, expected=target_expected, name="target_labelled", **options
    )
    test_vectors, test_expected = world.draw_rounds(rngs["test"], n_test, target_frequencies)
    test_contexts = world.shift_vectors(test_vectors, rotation, translation, scale)
    target_test = EvaluationDomain(ArrayRewards(test_contexts, test_expected, **options))
    return Pair(
        name="synthetic",
        context_shape=source.context_shape,
        n_arms=n_arms,
        class_names=tuple(f"arm {arm}" for arm in range(n_arms)),
        source=source,
        source_test=source_test,
        target=target,
        target_test=target_test,
        target_labelled=target_labelled,
        arms=arms,
        feedback="one_hot" if is_one_hot else "bandit",
        about=About(
            summary=(
                f"{rewards} rewards, rotated by {rotation:g} degrees and moved by {translation:g}"
            )
        ),
        shift=as_shift(shift, context_shape=source.context_shape),
    )


class _World:
    """The parameters that both domains share: the prototypes, and the directions of the shift."""

    def __init__(
        self,
        rng: np.random.Generator,
        *,
        is_one_hot: bool,
        has_arm_axis: bool,
        n_arms: int,
        dimension: int,
    ) -> None:
        self.is_one_hot = is_one_hot
        self.has_arm_axis = has_arm_axis
        #: A unit vector for each arm, (K, d); the vectors are orthogonal.
        self.prototypes = np.ascontiguousarray(
            np.linalg.qr(rng.standard_normal((dimension, n_arms)))[0].T
        )
        #: An orthonormal basis, (d, d). The target is rotated in the planes of its columns 0 and 1,
        #: 2 and 3, and so on.
        self.basis = np.linalg.qr(rng.standard_normal((dimension, dimension)))[0]
        #: The direction of the translation in the target, a unit vector (d,).
        self.direction = _normalise(rng.standard_normal(dimension))

    def draw_rounds(
        self, rng: np.random.Generator, n: int, frequencies: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return hidden vectors, (n, d) or (n, K, d), and expected rewards, (n, K)."""
        n_arms, dimension = self.prototypes.shape
        best_arms = rng.choice(n_arms, size=n, p=frequencies)
        # Shared arms: the context of the best arm is near prototype 0, which is rewarded; those of
        # other arms are not.
        indices_per_arm = (np.arange(n_arms)[None, :] - best_arms[:, None]) % n_arms
        prototype_indices = indices_per_arm if self.has_arm_axis else best_arms
        centres = self.prototypes[prototype_indices]
        noise = rng.standard_normal(centres.shape) * (_NOISE_NORM / np.sqrt(dimension))
        prototype_products = noise @ self.prototypes.T
        # Remove negative products with prototypes, so that no reward is negative.
        noise -= np.minimum(prototype_products, 0.0) @ self.prototypes
        vectors = _normalise(centres + noise)
        return vectors, self._compute_expected_rewards(vectors, best_arms)

    def _compute_expected_rewards(self, vectors: FloatArray, best_arms: IntArray) -> FloatArray:
        """Return the expected rewards (n, K) of rounds with these hidden vectors and best arms."""
        if self.is_one_hot:
            return np.eye(len(self.prototypes))[best_arms]
        prototype_products = vectors @ (
            self.prototypes[0] if self.has_arm_axis else self.prototypes.T
        )
        return np.clip(prototype_products, 0.0, 1.0)  # rounding may leave -1e-17

    def shift_vectors(
        self, vectors: FloatArray, rotation: float, translation: float, scale: float
    ) -> FloatArray:
        """Return the target contexts: hidden vectors, rotated, scaled and translated."""
        angle = np.deg2rad(rotation)
        plane_rotation = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
        block_rotation = np.eye(self.basis.shape[0])
        for row in range(0, len(block_rotation) - 1, 2):
            block_rotation[row : row + 2, row : row + 2] = plane_rotation
        rotated_vectors = vectors @ (self.basis @ block_rotation @ self.basis.T).T
        return scale * rotated_vectors + translation * self.direction


def _normalise(vectors: FloatArray) -> FloatArray:
    """Return the vectors (..., d), scaled to norm 1."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def _draw_rewards(
    rng: np.random.Generator, expected_rewards: FloatArray, noise_fraction: float
) -> FloatArray:
    """Return rewards: a fraction ``noise_fraction`` of them is drawn as 0 or 1, the others are the
    expected rewards.
    """
    binary_rewards = (rng.random(expected_rewards.shape) < expected_rewards).astype(np.float64)
    return np.where(
        rng.random(expected_rewards.shape) < noise_fraction, binary_rewards, expected_rewards
    )
