"""Small made-up data in the shape of the real ones, so that tests and first steps need no file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from daband.arrays import AnyArray, FloatArray, IntArray
from daband.domains.contract import About, Pair
from daband.domains.readers.arrays import from_arrays
from daband.domains.registry import describe

__all__ = ["tiny_image_pair", "tiny_images", "tiny_vectors"]


def tiny_images(*, n_arms: int, per_class: int, side: int, seed: int) -> tuple[tuple[AnyArray, IntArray], ...]:
    """Source, target and target test: images (n, 3, side, side) of uint8 and labels (n,).

    A class is a blotchy pattern. The source shows it in grey on black; the target in colour, with other contrast,
    over a blotchy background.
    """
    generator = np.random.default_rng(seed)
    patterns = _blotches(generator, n_arms, side) > 0
    parts = []
    for domain in ("source", "target", "test"):
        labels = generator.permutation(np.repeat(np.arange(n_arms), per_class))
        ink = patterns[labels]
        strength = generator.uniform(0.6, 1.0, size=(len(labels), 1, 1, 1))
        images = ink[:, None] * strength * np.ones((1, 3, 1, 1))
        if domain != "source":
            background = _blotches(generator, len(labels) * 3, side).reshape(-1, 3, side, side)
            colour = generator.uniform(0.4, 1.0, size=(len(labels), 3, 1, 1))
            images = np.clip(0.35 + 0.15 * background + 0.5 * (images - 0.35) * colour, 0.0, 1.0)
        noisy = np.clip(images + generator.normal(0.0, 0.05, size=images.shape), 0.0, 1.0)
        parts.append((np.round(noisy * 255).astype(np.uint8), labels.astype(np.int64)))
    return tuple(parts)


def tiny_image_pair(
    *,
    name: str,
    class_names: Sequence[str],
    about: About,
    passes: int,
    target_passes: int | None,
    source_test: float | None,
    seed: int,
) -> Pair:
    """A pair of ``tiny_images``, 10 a class and 32 pixels a side: the twin of a pair of photographs."""
    here, seen, held = tiny_images(n_arms=len(class_names), per_class=10, side=32, seed=seed)
    pair = from_arrays(
        source=here,
        target=seen[0],
        target_test=held,
        target_labelled=seen,
        n_arms=len(class_names),
        class_names=class_names,
        source_test=source_test,
        passes=passes,
        target_passes=target_passes,
        name=name,
    )
    return describe(pair, about)


def tiny_vectors(
    *, n_arms: int, dimension: int, n: int, shift: float, seed: int
) -> tuple[tuple[FloatArray, IntArray], ...]:
    """Source, target and target test: non-negative vectors (n, d) with sparse features, and labels (n,)."""
    generator = np.random.default_rng(seed)
    centres = generator.random((n_arms, dimension)) * (generator.random((n_arms, dimension)) < 0.3)
    drift = shift * generator.random(dimension) * (generator.random(dimension) < 0.3)
    parts = []
    for domain in ("source", "target", "test"):
        labels = generator.permutation(np.arange(n) % n_arms)
        vectors = centres[labels] + generator.normal(0.0, 0.15, size=(n, dimension))
        if domain != "source":
            vectors = vectors + drift
        parts.append((np.clip(vectors, 0.0, None), labels.astype(np.int64)))
    return tuple(parts)


def _blotches(generator: np.random.Generator, n: int, side: int) -> FloatArray:
    """Smooth random fields (n, side, side) of mean 0 and deviation about 1."""
    coarse = generator.standard_normal((n, 4, 4))
    grown = np.repeat(np.repeat(coarse, -(-side // 4), axis=1), -(-side // 4), axis=2)[:, :side, :side]
    return np.ascontiguousarray(grown)
