"""Small made-up data in the shape of the real ones, so that tests and first steps need no file."""

from __future__ import annotations

import numpy as np

from daband.arrays import AnyArray, FloatArray, IntArray
from daband.domains.datasets.builder import Parts

__all__ = ["made_up_images", "made_up_vectors"]


def made_up_images(
    *, n_arms: int, per_class: int, side: int, seed: int, channels: int = 3, n_test: int | None = None
) -> Parts:
    """Source, target and target test: images (n, channels, side, side) of uint8 and labels (n,).

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
        parts.append((np.round(noisy * 255).astype(np.uint8)[:, :channels], labels.astype(np.int64)))
    return _as_parts(parts, n_test)


def made_up_vectors(
    *, n_arms: int, dimension: int, n: int, shift: float, seed: int, n_test: int | None = None
) -> Parts:
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
    return _as_parts(parts, n_test)


def _as_parts(parts: list[tuple[AnyArray, IntArray]], n_test: int | None) -> Parts:
    source, target, (x, y) = parts
    held = (x[:n_test], y[:n_test])
    return Parts({"source": source, "target": target[0], "target_labelled": target, "target_test": held})


def _blotches(generator: np.random.Generator, n: int, side: int) -> FloatArray:
    """Smooth random fields (n, side, side) of mean 0 and deviation about 1."""
    coarse = generator.standard_normal((n, 4, 4))
    grown = np.repeat(np.repeat(coarse, -(-side // 4), axis=1), -(-side // 4), axis=2)[:, :side, :side]
    return np.ascontiguousarray(grown)
