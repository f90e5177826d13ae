"""Run trained encoders in numpy, for contexts of one domain.

A deployed policy decides on one row at a time. For one row, calling a framework takes longer than
the arithmetic. Batch norms are folded into the layers before them when the policy is frozen
(``freeze_encoder``). Nothing here is trained, and torch is not imported. Convolutions and custom
networks are ONNX programs, which onnxruntime runs.

``load_part`` returns a predictor of a file with its steps and networks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from daband.base._arrays import (
    AnyArray,
    Arrays,
    FloatArray,
    IntArray,
    Scores,
    drop_prefix,
    to_rows,
)
from daband.features._piecewise import PIECEWISE_ARRAY_NAMES, PiecewiseStep
from daband.features._transforms import build_step
from daband.linear._arm_frequencies import correct_probabilities
from daband.linear._joint_ridge import JointPredictor
from daband.linear._predictor import (
    ContextStep,
    MixturePredictor,
    Predictor,
    RidgePredictor,
    select_arms,
)

__all__ = [
    "EnsembleNetwork",
    "EnsemblePredictor",
    "Float32Array",
    "MlpNetwork",
    "OnnxNetwork",
    "TreeNetwork",
    "load_part",
    "make_empty_trees",
]

Float32Array = npt.NDArray[np.float32]

#: The largest value of a byte. Pixels of type uint8 are divided by it.
_MAX_BYTE = np.float32(255.0)
#: Zero in single precision, the lower limit of ReLU.
_ZERO = np.float32(0.0)


class MlpNetwork:
    """The encoder ``mlp``: dense layers on flattened contexts, which are standardised if they were
    in training.

    The arrays are ``dense.0.weight``, ``dense.0.bias``, ... There is a ReLU between layers, and
    features are scaled to norm 1.
    """

    def __init__(self, settings: Mapping[str, Any], arrays: Arrays) -> None:
        self.settings = settings
        self.arrays = arrays
        #: The weights (inputs, outputs) and biases of each layer. Products with a row read them in
        #: memory order.
        self.layers: list[tuple[Float32Array, Float32Array]] = [
            (
                np.ascontiguousarray(arrays[f"dense.{index}.weight"].T),
                np.ascontiguousarray(arrays[f"dense.{index}.bias"]),
            )
            for index in range(int(settings["layers"]))
        ]
        self._scale = arrays.get("input_scale")
        self._shift = arrays.get("input_shift")

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


class TreeNetwork:
    """Models that are sums of regression trees.

    The features are the sums, and a constant 1 for the bonuses.

    The child of node i is ``children[0, i]`` if feature ``feature[i]`` of the context is at most
    ``threshold[i]``, otherwise ``children[1, i]``. A leaf is its own child and has a ``value``.
    ``roots`` (models, trees) are the first nodes of trees. A root of 0 means no tree, because node
    0 is a leaf with value 0. ``base`` (models,) is added to the sums. A ``value`` (nodes, models)
    means trees that all models share, and ``roots`` is then (1, trees).
    """

    #: The index of the constant feature.
    constant_index = -1

    def __init__(self, settings: Mapping[str, Any], arrays: Arrays) -> None:
        self.settings = settings
        self.arrays = arrays
        self._feature_indices, self._children, self._roots = (
            arrays[name] for name in ("feature", "children", "roots")
        )
        self._thresholds, self._values, self._bases = (
            arrays[name] for name in ("threshold", "value", "base")
        )
        n_nodes = len(self._feature_indices)
        self._max_depth = int(arrays["depth"][0])
        #: The number of sums per row of ``roots``.
        self._sums_shape = self._values.shape[1:]
        self.dimension = len(self._bases) + 1
        # A step is twice the number of a node, plus 1 to go to its right child.
        columns = (self._feature_indices, self._thresholds, 2 * np.arange(n_nodes))
        #: The feature, the threshold and the step of each root, (1, trees).
        self._first_nodes = tuple(column.take(self._roots.reshape(1, -1)) for column in columns)
        #: The same for the node after each step, (2 * nodes,).
        self._next_nodes = tuple(column.take(self._children.T.ravel()) for column in columns)

    @property
    def feature_limits(self) -> tuple[FloatArray, FloatArray]:
        """A lower and an upper limit of each feature, (models + 1,)."""
        limits = []
        first_nodes = np.unique(np.append(0, self._roots))  # the nodes of a tree are contiguous
        positions = np.searchsorted(first_nodes, self._roots)
        for reduce in (np.minimum, np.maximum):
            tree_limits = reduce.reduceat(self._values, first_nodes)[positions]
            limits.append(np.append(self._bases + tree_limits.sum(axis=1), 1.0))
        return limits[0], limits[1]

    def __call__(self, contexts: AnyArray) -> FloatArray:
        rows = to_rows(contexts)
        outputs = np.ones((len(rows), self.dimension))
        for start in range(0, len(rows), _BATCH_ROWS):
            batch = rows[start : start + _BATCH_ROWS]
            values = batch.ravel()
            offsets = np.arange(len(batch))[:, None] * rows.shape[1]
            features, thresholds, steps = self._first_nodes
            for _ in range(self._max_depth):  # ``take`` is faster than indexing
                steps = steps + (values.take(features + offsets) > thresholds)
                features, thresholds, steps = (array.take(steps) for array in self._next_nodes)
            leaf_values = self._values.take(steps // 2, axis=0)
            shape = (len(batch), *self._roots.shape, *self._sums_shape)
            sums = leaf_values.reshape(shape).sum(axis=2).reshape(len(batch), -1)
            outputs[start : start + _BATCH_ROWS, :-1] = self._bases + sums
        return outputs


def make_empty_trees(n_models: int, n_trees: int = 1) -> Arrays:
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


class EnsembleNetwork:
    """A weighted mean of three predictions of the rewards of all arms: by a linear model on
    piecewise features, by boosted trees, and by a forest.

    With the setting
    "probabilities", linear model and boosted trees predict logits, and the softmax of these is the
    probability of each arm to have reward 1. The arrays are ``weights`` (3,), the coefficients
    ``theta`` (K, m + 1), and those of a ``PiecewiseStep`` (``ramps/``) and of two ``TreeNetwork``
    (``boosted/`` and ``forest/``). ``ratios`` (K,), if given, are the frequencies of arms relative
    to the source, by which probabilities are corrected. ``unit`` (2,) has the mean and the standard
    deviation of the rewards that were learned.
    """

    def __init__(self, settings: Mapping[str, Any], arrays: Arrays) -> None:
        self.settings = settings
        self.arrays = arrays
        n_inputs = int(settings["inputs"])
        self._has_probabilities = bool(settings["probabilities"])
        self._weights, self._theta = arrays["weights"], arrays["theta"]
        self._ratios = arrays.get("ratios")
        ramp_arrays = drop_prefix("ramps/", arrays)
        self._ramps = PiecewiseStep(
            **{name: ramp_arrays[name] for name in PIECEWISE_ARRAY_NAMES}, n_inputs=n_inputs
        )
        self._trees = [
            TreeNetwork({"kind": "trees", "inputs": n_inputs}, drop_prefix(f"{name}/", arrays))
            for name in ("boosted", "forest")
        ]
        self.n_arms = len(self._theta)

    def predict(self, rows: FloatArray) -> FloatArray:
        """Return the predictions (3, n, K) of the linear model, the boosted trees and the
        forest.
        """
        linear_predictions = self._ramps(rows) @ self._theta.T
        boosted_predictions, forest_predictions = (trees(rows)[:, :-1] for trees in self._trees)
        if self._has_probabilities:
            linear_predictions = _compute_softmax(linear_predictions)
            boosted_predictions = _compute_softmax(boosted_predictions)
        return np.stack([linear_predictions, boosted_predictions, forest_predictions])

    def mix(self, rows: FloatArray) -> FloatArray:
        """Return the weighted predictions (n, K) for contexts (n, d)."""
        predictions = np.einsum("m,mnk->nk", self._weights, self.predict(rows))
        if self._ratios is None:
            return predictions
        return correct_probabilities(predictions, self._ratios)

    def select_arms(self, predictions: FloatArray, arms: IntArray) -> FloatArray:
        """Return the predictions (n, k) for arms (k,) from those of all arms of the ensemble.

        The prediction for another arm is the mean reward of all arms in the learned rows, or 0 for
        labels.
        """
        is_known = (arms >= 0) & (arms < self.n_arms)
        mean_reward = float(self.arrays["forest/base"].mean())
        return np.where(is_known, predictions[:, np.where(is_known, arms, 0)], mean_reward)

    def join(self, rows: FloatArray, predictions: FloatArray) -> FloatArray:
        """Return contexts (n, d), followed by predictions (n, k) in standard deviations of
        rewards.
        """
        mean, deviation = self.arrays["unit"]
        return np.concatenate([rows, (predictions - mean) / deviation], axis=1)


@dataclass(frozen=True, eq=False, kw_only=True)
class EnsemblePredictor(Predictor):
    """An ensemble, whose predictions are corrected by regressions on contexts and predictions."""

    kind: ClassVar[str] = "corrected"
    #: The ensemble.
    ensemble: EnsembleNetwork
    #: The regressions, on contexts followed by the ensemble's predictions for the first arms in
    #: standard deviations of its rewards.
    corrections: RidgePredictor
    #: The indices of the arms that are predicted, -1 for an arm without rounds.
    arms: IntArray

    def compute_features(self, contexts: AnyArray) -> tuple[FloatArray, FloatArray]:
        """Return the features of the regressions, and the ensemble's predictions (n, K)."""
        rows = to_rows(super().compute_features(contexts))
        predictions = self.ensemble.mix(rows)
        n_predictions = self.corrections.theta.shape[1] - rows.shape[1]
        features = self.ensemble.join(rows, predictions[:, :n_predictions])
        return features, self.ensemble.select_arms(predictions, self.arms)

    def score(self, features: tuple[FloatArray, FloatArray], with_bonuses: bool = True) -> Scores:
        mean, bonus = self.corrections.score(features[0], with_bonuses)
        return mean + features[1], bonus

    def for_arms(self, indices: IntArray, vectors: FloatArray) -> Self:
        corrections = self.corrections.for_arms(indices, vectors)
        return replace(self, corrections=corrections, arms=select_arms(self.arms, indices))

    @property
    def has_bonuses(self) -> bool:
        return self.corrections.has_bonuses

    def without_large_inverses(self) -> Self:
        return replace(self, corrections=self.corrections.without_large_inverses())


def _compute_softmax(logits: FloatArray) -> FloatArray:
    """Return the softmax of each row (n, K). scipy's is not imported, to load a policy quickly."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


class OnnxNetwork:
    """An encoder that onnxruntime runs, such as a pretrained backbone or a custom module."""

    def __init__(self, settings: Mapping[str, Any], arrays: Arrays) -> None:
        from daband.features._input_encoders import OnnxProgram

        self.settings = settings
        self.arrays = arrays
        self._program = OnnxProgram(
            bytes(arrays["program"]), is_single_row=bool(settings["single"])
        )

    def __call__(self, contexts: AnyArray) -> FloatArray:
        rows = contexts / _MAX_BYTE if contexts.dtype == np.uint8 else contexts.astype(np.float32)
        features: FloatArray = self._program(rows).astype(np.float64)
        features /= np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
        return features


#: The classes of networks, by their kind in a file.
_NETWORKS: dict[str, Any] = {
    "mlp": MlpNetwork,
    "trees": TreeNetwork,
    "ensemble": EnsembleNetwork,
    "onnx": OnnxNetwork,
}
#: The classes of predictors and their steps, by their kind in a file.
_PARTS: dict[str, Any] = {
    part.kind: part
    for part in (ContextStep, RidgePredictor, JointPredictor, MixturePredictor, EnsemblePredictor)
}


def load_part(settings: Mapping[str, Any], arrays: Arrays) -> Any:
    """Return the predictor, step or network with the settings and arrays that ``describe``
    returned.
    """
    kind = settings["kind"]
    if kind in _NETWORKS:
        return _NETWORKS[kind](settings, arrays)
    if kind not in _PARTS:
        return build_step(kind, arrays)
    values: dict[str, Any] = {}
    for field in fields(_PARTS[kind]):
        name = field.name
        value = settings.get(name)
        if name in arrays:
            array = arrays[name]
            value = array.astype(np.float64) if array.dtype == np.float32 else array
        elif isinstance(value, Mapping):
            value = load_part(value, drop_prefix(f"{name}/", arrays))
        elif isinstance(value, list):
            value = tuple(
                load_part(element, drop_prefix(f"{name}/{index}/", arrays))
                if isinstance(element, Mapping)
                else element
                for index, element in enumerate(value)
            )
        values[name] = value
    return _PARTS[kind](**values)
