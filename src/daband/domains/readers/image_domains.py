"""Domains over images on disk."""

from __future__ import annotations

import numpy as np

from daband.arrays import AnyArray, FloatArray, IntArray
from daband.domains.contract import Contexts, EvaluationDomain, RewardDomain
from daband.domains.readers.images import Framing, ImageStore, imagenet_normalise

__all__ = ["ImageContexts", "ImageEvaluation", "ImageSource"]


class ImageContexts(Contexts):
    """Images of a store, (3, H, W): uint8, or float32 normalised as for ImageNet with ``normalise``."""

    prefetches = True

    def __init__(self, store: ImageStore, *, passes: int = 1, normalise: bool = False) -> None:
        self._store = store
        self._normalise = normalise
        self.context_shape = store.framing.shape
        self.passes = passes

    @property
    def framing(self) -> Framing:
        """How an image of any size becomes a context."""
        return self._store.framing

    @property
    def normalises(self) -> bool:
        """Whether contexts are float32, normalised as for ImageNet."""
        return self._normalise

    @property
    def files(self) -> tuple[str, ...]:
        """The file of each context."""
        return self._store.files

    def __len__(self) -> int:
        return len(self._store)

    def read(self, indices: IntArray) -> AnyArray:
        return _read(self._store, indices, self._normalise)


class ImageSource(RewardDomain):
    """Images of a store with labels (n,): the arm equal to the label pays 1, every other 0."""

    prefetches = True

    def __init__(
        self, store: ImageStore, labels: IntArray, *, n_arms: int, passes: int = 1, normalise: bool = False
    ) -> None:
        self._store = store
        self._labels = labels
        self._normalise = normalise
        self.n_arms = n_arms
        self.context_shape = store.framing.shape
        self.passes = passes

    def __len__(self) -> int:
        return len(self._store)

    def read(self, indices: IntArray) -> AnyArray:
        return _read(self._store, indices, self._normalise)

    def read_rewards(self, indices: IntArray) -> tuple[FloatArray, FloatArray | None]:
        rewards = np.eye(self.n_arms)[self._labels[indices]]
        return rewards, rewards


class ImageEvaluation(EvaluationDomain):
    """Images of a store with labels (n,), for the evaluator."""

    def __init__(self, store: ImageStore, labels: IntArray, *, n_arms: int, normalise: bool = False) -> None:
        self._store = store
        self._labels = labels
        self._normalise = normalise
        self.n_arms = n_arms
        self.context_shape = store.framing.shape

    def __len__(self) -> int:
        return len(self._store)

    def read(self, start: int, stop: int) -> AnyArray:
        return _read(self._store, np.arange(start, min(stop, len(self))), self._normalise)

    def read_expected(self, start: int, stop: int) -> FloatArray:
        return np.eye(self.n_arms)[self._labels[start:stop]]


def _read(store: ImageStore, indices: IntArray, normalise: bool) -> AnyArray:
    images = store.read(indices)
    return imagenet_normalise(images) if normalise else images
