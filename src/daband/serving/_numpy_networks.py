"""Run trained encoders in numpy, for contexts of one domain.

A deployed policy decides on one row at a time. For one row, calling a framework takes longer than
the arithmetic. Batch norms are folded into the layers before them when the policy is frozen
(``freeze_encoder``), and convolutions are matrix products of patches. Nothing here is trained, and
torch is not imported.

``load_network`` returns an ``MlpNetwork``, ``ConvNetwork``, ``TreeNetwork`` or ``OnnxNetwork``. The
functions after it compute convolutions.

Convolutions use the Toom-Cook multiplication of polynomials (Winograd's minimal filtering).
``_TILE_ROWS`` rows of the result, called a tile, are coefficients of a product of two polynomials.
They are computed from the values of both polynomials at side + _TILE_ROWS - 1 points, where side is
the side of the kernel. For a 5 x 5 kernel, this takes 8 products of rows instead of 20. The
rounding error is about three times as large.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from daband.base._arrays import AnyArray, FloatArray

__all__ = [
    "ConvNetwork",
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
#: Maximum number of patches that are multiplied at a time, so that they and their products stay in
#: the cache.
_MAX_PATCHES = 1024
#: The number of rows of a convolution that are computed together.
_TILE_ROWS = 4
#: The points at which polynomials are evaluated, in addition to infinity. More or larger points
#: would increase the rounding error.
_POINTS = np.array([0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5])


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


class _DenseNetwork:
    """Dense layers ``dense.0.weight``, ``dense.0.bias``, ... with ReLU between them.

    Features are scaled to norm 1.
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

    def compute_dense_features(self, rows: Float32Array) -> FloatArray:
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


class MlpNetwork(_DenseNetwork):
    """The encoder ``mlp``: dense layers on flattened contexts, which are standardised if they were
    in training.
    """

    def __init__(self, settings: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> None:
        super().__init__(settings, arrays)
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
        return self.compute_dense_features(rows.astype(np.float32))


class ConvNetwork(_DenseNetwork):
    """The encoder ``conv``: convolutions with ReLU and 2x2 pooling of images (C, H, W), then dense
    layers.
    """

    def __init__(self, settings: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> None:
        super().__init__(settings, arrays)
        #: The size to which maps are averaged after the convolutions; None if they are not
        #: averaged.
        self._pooled_size = (
            tuple(int(size) for size in settings["pooled"]) if settings["pooled"] else None
        )
        if not 1 <= int(settings["convolutions"]) <= len(arrays):
            raise ValueError(
                f"the number of convolutions must be 1 to {len(arrays)}, got"
                f" {settings['convolutions']}"
            )
        #: The evaluated kernel (``_evaluate_kernel``) and the bias of each convolution.
        self._kernels = []
        for index in range(int(settings["convolutions"])):
            weight = arrays[f"convolution.{index}.weight"]
            bias = arrays[f"convolution.{index}.bias"]
            _check_float32(f"convolution {index}", weight, bias)
            is_square = weight.ndim == 4 and weight.shape[2] == weight.shape[3]
            if not is_square or bias.shape != (len(weight),) or not weight.size:
                raise ValueError(
                    f"convolution {index} has weights {weight.shape} and biases {bias.shape}"
                )
            self._kernels.append((_evaluate_kernel(weight), np.ascontiguousarray(bias)))
        # The division of bytes by 255 is folded into the first kernel.
        kernel, bias = self._kernels[0]
        self._byte_kernels = [(kernel / _MAX_BYTE, bias), *self._kernels[1:]]

    def check_inputs(self, shape: tuple[int, ...]) -> None:
        if len(shape) != 3:
            raise ValueError(f"the network takes images, contexts have shape {shape}")
        n_channels, height, width = shape
        for kernel, _ in self._kernels:
            side = len(kernel) - _TILE_ROWS + 1
            if kernel.shape[1] != side * n_channels or min(height, width) <= side:
                n_inputs = kernel.shape[1] // side
                raise ValueError(
                    f"a convolution of {n_inputs} x {side} x {side} does not fit maps of"
                    f" {(n_channels, height, width)}"
                )
            n_channels = kernel.shape[2]
            height = (height - side + 1) // 2
            width = (width - side + 1) // 2
        if self._pooled_size is not None:
            if len(self._pooled_size) != 2 or not all(
                1 <= size <= length
                for size, length in zip(self._pooled_size, (height, width), strict=True)
            ):
                raise ValueError(
                    f"maps of {height} x {width} cannot be averaged to {self._pooled_size}"
                )
            height, width = self._pooled_size
        if n_channels * height * width != self.n_inputs:
            raise ValueError(
                f"maps have {n_channels * height * width} numbers, layers take {self.n_inputs}"
            )

    def __call__(self, contexts: AnyArray) -> FloatArray:
        return self.compute_dense_features(
            np.stack([self.compute_maps(image) for image in contexts])
        )

    def compute_maps(self, image: AnyArray) -> Float32Array:
        """Return the pooled maps (height * width * channels,) of one image (channels, height,
        width).
        """
        maps: Float32Array = np.ascontiguousarray(image.transpose(1, 2, 0), np.float32)
        for kernel, bias in self._byte_kernels if image.dtype == np.uint8 else self._kernels:
            maps = _convolve_and_pool(maps, kernel)
            maps += bias  # after pooling, because the bias is the same for all pooled pixels
            np.maximum(maps, _ZERO, out=maps)
        if self._pooled_size is not None:
            maps = _average_pool(maps, self._pooled_size)
        return maps.reshape(-1)


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
        "conv": ConvNetwork,
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


@functools.cache
def _compute_toom_cook_matrices(side: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the output matrix S (t, n), the kernel matrix G (n, side) and the input matrix B (n,
    n).

    t is _TILE_ROWS, and n is side + t - 1. The t outputs of a convolution of x (n,) by a kernel g
    (side,) are S (G g * B x), where * multiplies element by element.
    """
    n = side + _TILE_ROWS - 1
    if not 1 <= side <= len(_POINTS) - _TILE_ROWS + 2:
        raise ValueError(
            f"a convolution must have kernels of at most 5 x 5, got kernels of {side} x {side}"
        )

    def compute_powers(n_powers: int) -> FloatArray:
        """Return the powers 0..n_powers - 1 of n points, (n, n_powers).

        The last row is for the point at infinity.
        """
        return np.vstack([_POINTS[: n - 1, None] ** np.arange(n_powers), np.eye(n_powers)[-1]])

    output_matrix = compute_powers(_TILE_ROWS).T
    input_matrix = np.linalg.inv(compute_powers(n)).T
    return (
        np.ascontiguousarray(output_matrix),
        compute_powers(side),
        np.ascontiguousarray(input_matrix),
    )


@functools.lru_cache(maxsize=64)
def _build_row_transforms(side: int, height: int) -> tuple[Float32Array, Float32Array]:
    """Return the input matrix for all tiles of maps with this height, (n * tiles, height), and the
    output matrix.

    The input matrix has the matrix B of ``_compute_toom_cook_matrices`` for each tile. The output
    matrix is S, (t, n) with t = _TILE_ROWS.
    """
    output_matrix, _, tile_matrix = _compute_toom_cook_matrices(side)
    n_tiles = -(-(height - side + 1) // _TILE_ROWS)
    input_matrix = np.zeros(
        (len(tile_matrix), n_tiles, n_tiles * _TILE_ROWS + side - 1), np.float32
    )
    for tile in range(n_tiles):
        input_matrix[:, tile, tile * _TILE_ROWS : tile * _TILE_ROWS + len(tile_matrix)] = (
            tile_matrix
        )
    return np.ascontiguousarray(input_matrix[:, :, :height]).reshape(
        -1, height
    ), output_matrix.astype(np.float32)


def _evaluate_kernel(weight: Float32Array) -> Float32Array:
    """Return the values (n, side * C, K) of a kernel (K, C, side, side) at all n points.

    The numbers in a column of the kernel are the coefficients of a polynomial.
    """
    n_outputs, _, side, _ = weight.shape
    kernel = np.tensordot(
        _compute_toom_cook_matrices(side)[1],
        weight.transpose(2, 3, 1, 0).astype(np.float64),
        axes=1,
    )
    return np.ascontiguousarray(kernel.reshape(len(kernel), -1, n_outputs), np.float32)


def _convolve_and_pool(maps: Float32Array, kernel: Float32Array) -> Float32Array:
    """Return the 2x2 max-pooled convolution (H', W', K) of maps (H, W, C) with a kernel from
    ``_evaluate_kernel``.
    """
    height, width, n_channels = maps.shape
    (n_points, patch_length, n_outputs), side = kernel.shape, len(kernel) - _TILE_ROWS + 1
    n_rows = (height - side + 1) // 2
    n_columns = (width - side + 1) // 2  # after pooling
    # a tile has two rows after pooling
    pooled_maps = np.empty((-(-n_rows // 2), 2, n_columns, n_outputs), np.float32)
    tiles_per_step = max(1, _MAX_PATCHES // (2 * _TILE_ROWS * n_columns))
    for start in range(0, len(pooled_maps), tiles_per_step):
        pooled_tiles = pooled_maps[start : start + tiles_per_step]
        n_tiles = len(pooled_tiles)
        rows = maps[_TILE_ROWS * start : _TILE_ROWS * (start + n_tiles) + side - 1].reshape(
            -1, width * n_channels
        )
        input_matrix, output_matrix = _build_row_transforms(side, len(rows))
        strips: Float32Array = input_matrix @ rows
        # A row of a patch is contiguous in memory, because the channels of a pixel and the pixels
        # of a row are.
        shape = (n_points, n_tiles, 2 * n_columns, patch_length)
        strip_bytes = 4 * width * n_channels
        strides = (n_tiles * strip_bytes, strip_bytes, 4 * n_channels, 4)
        patches: Float32Array = np.ndarray(shape, np.float32, strips, 0, strides)
        products = patches.reshape(n_points, -1, patch_length) @ kernel
        convolution = (output_matrix @ products.reshape(n_points, -1)).reshape(
            2, 2, n_tiles, n_columns, 2, n_outputs
        )
        row_maxima = np.maximum(convolution[:, 0], convolution[:, 1])
        np.maximum(row_maxima[:, :, :, 0], row_maxima[:, :, :, 1], out=pooled_tiles.swapaxes(0, 1))
    return pooled_maps.reshape(-1, n_columns, n_outputs)[:n_rows]


def _average_pool(maps: Float32Array, shape: tuple[int, ...]) -> Float32Array:
    """Return maps (H, W, K) averaged to (*shape, K), as torch's adaptive average pooling does."""
    for axis, size in enumerate(shape):
        length = maps.shape[axis]
        weights = np.zeros((size, length), np.float32)
        for index in range(size):
            start = index * length // size
            stop = -(-(index + 1) * length // size)
            weights[index, start:stop] = 1.0 / (stop - start)
        maps = np.moveaxis(np.tensordot(weights, maps, axes=(1, axis)), 0, axis)
    return np.ascontiguousarray(maps)
