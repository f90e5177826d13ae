"""Run trained encoders in numpy, for contexts of one domain.

A deployed policy decides on one row at a time. For one row, calling a framework takes longer than
the arithmetic. Batch norms are folded into the layers before them when the policy is frozen
(``freeze_encoder``). Nothing here is trained, and torch is not imported. Convolutions and custom
networks are ONNX programs, which onnxruntime runs.

``load_network`` returns an ``MlpNetwork``, ``TreeNetwork`` or ``OnnxNetwork``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from daband.base._arrays import AnyArray, FloatArray

__all__ = [
    "Float32Array",
    "MlpNetwork",
    "Network",
    "OnnxNetwork",
    "TreeNetwork",
    "load_network",
    "make_empty_trees",
]

Float32Array = npt.NDArray[np.float32]

#: The largest value of a byte. Pixels of type uint8 are divided by it.
_MAX_BYTE = np.float32(255.0)
#: Zero in single precision, the lower limit of ReLU.
_ZERO = np.float32(0.0)


class Network(Protocol):
    """A trained network from contexts (n, *C) to features (n, d).

    A file contains its ``settings`` and ``arrays``.
    """

    #: The number of features, d.
    dimension: int

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings in JSON types, with the kind of network."""

    @property
    def arrays(self) -> Mapping[str, AnyArray]:
        """The weights, by name."""

    def __call__(self, contexts: AnyArray) -> FloatArray:
        """Return the features (n, d) of contexts (n, *C), as float64."""

    def check_inputs(self, shape: tuple[int, ...]) -> None:
        """Raise ``ValueError`` if the network does not take contexts of this shape."""


class MlpNetwork:
    """The encoder ``mlp``: dense layers on flattened contexts, which are standardised if they were
    in training.

    The arrays are ``dense.0.weight``, ``dense.0.bias``, ... There is a ReLU between layers, and
    features are scaled to norm 1.
    """

    def __init__(self, settings: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> None:
        self.settings = settings
        self.arrays = arrays
        n_layers = int(settings["layers"])
        if not 1 <= n_layers <= len(arrays):
            raise ValueError(f"the number of layers must be 1 to {len(arrays)}, got {n_layers}")
        #: The weights (inputs, outputs) and biases of each layer. Products with a row read them in
        #: memory order.
        self.layers: list[tuple[Float32Array, Float32Array]] = []
        for index in range(n_layers):
            weight = arrays[f"dense.{index}.weight"]
            bias = arrays[f"dense.{index}.bias"]
            _check_float32("a layer", weight, bias)
            if weight.ndim != 2 or bias.shape != (len(weight),) or 0 in weight.shape:
                raise ValueError(f"a layer has weights {weight.shape} and biases {bias.shape}")
            if self.layers and len(self.layers[-1][1]) != weight.shape[1]:
                n_outputs = len(self.layers[-1][1])
                raise ValueError(
                    f"a layer takes {weight.shape[1]} numbers, the layer before it returns"
                    f" {n_outputs}"
                )
            self.layers.append((np.ascontiguousarray(weight.T), np.ascontiguousarray(bias)))
        self.n_inputs, self.dimension = len(self.layers[0][0]), len(self.layers[-1][1])
        self._scale = arrays.get("input_scale")
        self._shift = arrays.get("input_shift")
        for name, array in (("input_scale", self._scale), ("input_shift", self._shift)):
            if array is not None and (
                array.shape != (self.n_inputs,) or not np.isfinite(array).all()
            ):
                raise ValueError(
                    f"{name} has shape {array.shape}, expected ({self.n_inputs},), or is not finite"
                )

    def check_inputs(self, shape: tuple[int, ...]) -> None:
        if math.prod(shape) != self.n_inputs:
            raise ValueError(
                f"the network takes {self.n_inputs} numbers, contexts have shape {shape}"
            )

    def __call__(self, contexts: AnyArray) -> FloatArray:
        rows = contexts.reshape(len(contexts), -1)
        if rows.dtype == np.uint8:
            rows = rows / _MAX_BYTE
        if self._scale is not None and self._shift is not None:
            # in double precision, because raw columns may have large offsets
            rows = rows * self._scale
            rows += self._shift
        return self._compute_features(rows.astype(np.float32))

    def _compute_features(self, rows: Float32Array) -> FloatArray:
        """Return features (n, d) of norm 1 for inputs of the first layer, (n, inputs)."""
        # Products with a vector are faster than with a matrix of one row.
        activations = rows[0] if len(rows) == 1 else rows
        for index, (weight, bias) in enumerate(self.layers):
            if index:
                np.maximum(activations, _ZERO, out=activations)
            activations = activations.dot(weight)
            activations += bias
        features: FloatArray = activations.astype(np.float64)
        if len(rows) == 1:
            features /= max(math.sqrt(features.dot(features)), 1e-12)
            return features[None]
        features /= np.maximum(np.sqrt(np.einsum("nd,nd->n", features, features)), 1e-12)[:, None]
        return features


#: The number of contexts on which trees are evaluated at a time.
_BATCH_ROWS = 1024
#: Maximum depth of a tree.
_MAX_DEPTH = 64


class TreeNetwork:
    """Models that are sums of regression trees.

    The features are the sums, and a constant 1 for the bonuses.

    The child of node i is ``children[0, i]`` if feature ``feature[i]`` of the context is at most
    ``threshold[i]``, otherwise ``children[1, i]``. A leaf is its own child and has a ``value``.
    ``roots`` (models, trees) are the first nodes of trees. A root of 0 means no tree, because node
    0 is a leaf with value 0. ``base`` (models,) is added to the sums.
    """

    def __init__(self, settings: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> None:
        self.settings = settings
        self.arrays = arrays
        self._n_inputs = int(settings["inputs"])
        self._feature_indices, self._children, self._roots = (
            arrays[name] for name in ("feature", "children", "roots")
        )
        self._thresholds, self._values, self._bases = (
            arrays[name] for name in ("threshold", "value", "base")
        )
        n_nodes = len(self._feature_indices)
        self._max_depth = int(arrays["depth"][0])
        limits = {"feature": self._n_inputs, "children": n_nodes, "roots": n_nodes}
        for name, limit in limits.items():
            array = arrays[name]
            if array.dtype != np.int64 or (
                array.size and not 0 <= array.min() <= array.max() < limit
            ):
                raise ValueError(f"{name} of the trees must be in 0..{limit - 1}")
        for name in ("threshold", "value", "base"):
            if arrays[name].dtype != np.float64 or not np.isfinite(arrays[name]).all():
                raise ValueError(f"{name} of the trees must be finite numbers")
        shapes = (
            self._feature_indices.shape,
            self._thresholds.shape,
            self._values.shape,
            self._children.shape[1:],
        )
        if set(shapes) != {(n_nodes,)} or len(self._children) != 2 or not n_nodes:
            raise ValueError(
                f"the arrays of the trees must have the same number of nodes, got shapes {shapes}"
            )
        if not 0 < self._max_depth <= _MAX_DEPTH:
            raise ValueError(
                f"the depth of the trees must be 1 to {_MAX_DEPTH}, got {self._max_depth}"
            )
        if self._roots.ndim != 2 or self._bases.shape != (len(self._roots),):
            raise ValueError(f"roots have shape {self._roots.shape}, base {self._bases.shape}")
        self.dimension = len(self._roots) + 1

    def check_inputs(self, shape: tuple[int, ...]) -> None:
        if math.prod(shape) != self._n_inputs:
            raise ValueError(
                f"the trees take {self._n_inputs} numbers, contexts have shape {shape}"
            )

    def __call__(self, contexts: AnyArray) -> FloatArray:
        rows = contexts.reshape(len(contexts), -1)
        if rows.dtype == np.uint8:
            rows = rows / 255.0
        features = np.ones((len(rows), self.dimension))
        for start in range(0, len(rows), _BATCH_ROWS):
            batch = rows[start : start + _BATCH_ROWS]
            row_indices = np.arange(len(batch))[:, None]
            nodes = np.broadcast_to(self._roots.ravel(), (len(batch), self._roots.size))
            for _ in range(self._max_depth):
                goes_right = (
                    batch[row_indices, self._feature_indices[nodes]] > self._thresholds[nodes]
                )
                nodes = self._children[goes_right.astype(np.int64), nodes]
            sums = self._values[nodes].reshape(len(batch), *self._roots.shape).sum(axis=2)
            features[start : start + _BATCH_ROWS, :-1] = self._bases + sums
        return features


def make_empty_trees(n_models: int, n_trees: int = 1) -> dict[str, AnyArray]:
    """Return the arrays of a ``TreeNetwork`` whose trees are all missing, so that its models
    predict 0.5.

    ``n_trees`` is the number of trees per model.
    """
    return {
        "feature": np.zeros(1, np.int64),
        "threshold": np.zeros(1),
        "children": np.zeros((2, 1), np.int64),
        "value": np.zeros(1),
        "roots": np.zeros((n_models, n_trees), np.int64),
        "base": np.full(n_models, 0.5),
        "depth": np.ones(1, np.int64),
    }


class OnnxNetwork:
    """An encoder that onnxruntime runs, such as a pretrained backbone or a custom module."""

    def __init__(self, settings: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> None:
        from daband.features._input_encoders import OnnxProgram

        self.settings = settings
        self.arrays = arrays
        #: The shape of one context.
        self._shape = tuple(int(size) for size in settings["context_shape"])
        self._program = OnnxProgram(
            bytes(arrays["program"]), is_single_row=bool(settings["single"])
        )
        input_shapes = [shape[1:] for _, shape in self._program.inputs]
        if input_shapes != [list(self._shape)]:  # checked before arrays of this size are allocated
            raise ValueError(
                f"the program must take contexts of shape {self._shape}, but it takes"
                f" {input_shapes}"
            )
        self.dimension = self(np.zeros((1, *self._shape))).shape[1]

    def check_inputs(self, shape: tuple[int, ...]) -> None:
        if shape != self._shape:
            raise ValueError(f"the encoder takes {self._shape}, contexts have shape {shape}")

    def __call__(self, contexts: AnyArray) -> FloatArray:
        rows = contexts / _MAX_BYTE if contexts.dtype == np.uint8 else contexts.astype(np.float32)
        features: FloatArray = self._program(rows).astype(np.float64)
        features /= np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
        return features


def load_network(settings: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> Network:
    """Return the network with the ``settings`` in a file's header and these ``arrays``."""
    network_classes: dict[str, Callable[..., Network]] = {
        "mlp": MlpNetwork,
        "trees": TreeNetwork,
        "onnx": OnnxNetwork,
    }
    return network_classes[settings["kind"]](settings, arrays)


def _check_float32(name: str, *arrays: AnyArray) -> None:
    """Raise ``ValueError`` unless all arrays are float32 and finite.

    ``name`` is the name of the layer.
    """
    for array in arrays:
        if array.dtype != np.float32 or not np.isfinite(array).all():
            raise ValueError(f"{name} has numbers that are not finite, or of type {array.dtype}")
