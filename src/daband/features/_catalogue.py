"""Define the catalogue: the names and features of arms.

A pair has a catalogue if its reader got the argument ``arms``. Policies that are trained on the
pair, and their files, contain it. ``Catalogue.look_up`` finds the arms of a request to a deployed
policy.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from daband.base._arrays import BoolArray, FloatArray, as_numpy
from daband.errors import InvalidInput, did_you_mean
from daband.features._table_transform import TableTransform

#: Maximum number of principal components of arm features. Each is multiplied by every context
#: feature.
_MAX_COMPONENTS = 32
#: A feature with a smaller standard deviation counts as constant.
_MIN_DEVIATION = 1e-9
#: If the squared distance of two arm vectors is smaller, the arms have the same features. Norms are
#: about 1.
_MIN_SQUARED_DISTANCE = 1e-12
#: Arm features are clipped at this many standard deviations, like context features.
_MAX_DEVIATIONS = 5.0
#: The types of the arrays of a catalogue.
_ARRAY_TYPES: dict[str, Any] = {
    "vectors": np.float64,
    "offered": np.bool_,
    "mean": np.float64,
    "deviation": np.float64,
    "axes": np.float64,
}


@dataclass(frozen=True, eq=False, repr=False)
class Catalogue:
    """The arms of a pair, with their names and features.

    Policies use ``vectors``. These are the features of the arms, standardised and divided by
    sqrt(m), so that the norm of a vector is about 1. More than 32 features are replaced by at most
    32 principal components. In shapes, f is the number of features, and m the number of features or
    components in a vector.
    """

    #: The names of the arms, (K,).
    names: tuple[str, ...]
    #: The scaled features of the arms, (K, m + 1). The last column is the constant 1.
    vectors: FloatArray
    #: True for the arms that the source (row 0) and the target (row 1) have, (2, K).
    offered: BoolArray
    #: The transform of an arm's table row to features; None if features are arrays.
    table: TableTransform | None
    #: The mean of each feature, (f,).
    mean: FloatArray
    #: The standard deviation of each feature, or 1 for a constant feature, (f,).
    deviation: FloatArray
    #: The principal axes, (m, f); None if features are not replaced by components.
    axes: FloatArray | None = None

    def __post_init__(self) -> None:
        if not all(np.isfinite(array).all() for array in (self.vectors, self.mean, self.deviation)):
            raise ValueError("vectors, mean and deviation must be finite")
        if len(self.index_by_name) != len(self.names):
            raise InvalidInput("arms must have different names, but two are equal")

    @classmethod
    def fit(
        cls,
        names: Sequence[str],
        features: FloatArray,
        *,
        table: TableTransform | None = None,
        offered: Any = None,
    ) -> Catalogue:
        """Return a catalogue for arms with these names and features (K, f).

        ``table`` is the transform that computed the features, if any. ``offered`` (2, K) is as in
        ``Catalogue``.
        """
        mean = features.mean(axis=0)
        deviation = features.std(axis=0)
        deviation = np.where(deviation > _MIN_DEVIATION, deviation, 1.0)
        scaled_features = np.clip((features - mean) / deviation, -_MAX_DEVIATIONS, _MAX_DEVIATIONS)
        axes = None
        if scaled_features.shape[1] > _MAX_COMPONENTS:
            axes = np.ascontiguousarray(
                np.linalg.svd(scaled_features, full_matrices=False)[2][:_MAX_COMPONENTS]
            )
        is_offered = np.ones((2, len(names)), np.bool_) if offered is None else offered
        n_features = len(mean if axes is None else axes)
        catalogue = cls(
            tuple(names),
            np.ones((len(names), n_features + 1)),
            is_offered,
            table,
            mean,
            deviation,
            axes,
        )
        return replace(catalogue, vectors=catalogue._to_vectors(features))

    @functools.cached_property
    def index_by_name(self) -> dict[str, int]:
        """The index of every arm by name."""
        return {name: index for index, name in enumerate(self.names)}

    def _to_vectors(self, features: FloatArray) -> FloatArray:
        """Return features (n, f) standardised, projected and scaled, with a 1 appended."""
        scaled_features = features - self.mean
        with np.errstate(over="ignore"):  # infinite features are clipped
            scaled_features /= self.deviation
        np.clip(scaled_features, -_MAX_DEVIATIONS, _MAX_DEVIATIONS, out=scaled_features)
        if self.axes is not None:
            scaled_features = scaled_features @ self.axes.T
        vectors = np.ones((len(scaled_features), scaled_features.shape[1] + 1))
        np.divide(scaled_features, np.sqrt(max(1, scaled_features.shape[1])), out=vectors[:, :-1])
        return vectors

    def compute_arm_vectors(self, features: Sequence[Any]) -> FloatArray:
        """Return the vectors (n, m + 1) of arms with these features.

        The features of an arm are a mapping from column to value, or an array (f,) if the catalogue
        has no table.
        """
        if self.table is not None:
            invalid = [
                row for row in features if not (type(row) is dict or isinstance(row, Mapping))
            ]
            if invalid:
                raise InvalidInput(
                    f"features of an arm must be a mapping from column to value, got {invalid[0]!r}"
                )
            return self._to_vectors(self.table.contexts(features))
        array = as_numpy(features, "features").astype(np.float64)
        if array.shape != (len(array), len(self.mean)) or not np.isfinite(array).all():
            raise InvalidInput(
                f"features of an arm must be {len(self.mean)} finite numbers, got shape"
                f" {array.shape[1:]}"
            )
        return self._to_vectors(array)

    def with_arms(self, names: Sequence[str], features: Sequence[Any]) -> Catalogue:
        """Return the catalogue with further arms, which are offered in both domains."""
        duplicate_name = next((name for name in names if name in self.index_by_name), None)
        if duplicate_name is not None:
            raise InvalidInput(f"name must be new, but {duplicate_name!r} is already an arm")
        vectors = np.concatenate([self.vectors, self.compute_arm_vectors(features)])
        offered = np.concatenate([self.offered, np.ones((2, len(names)), np.bool_)], axis=1)
        return replace(self, names=(*self.names, *names), vectors=vectors, offered=offered)

    def look_up(self, arms: Sequence[Any]) -> tuple[list[str], list[int], FloatArray | None]:
        """Return the names, the indices (-1 for a new arm) and the vectors (n, m + 1) of the n arms
        of a request.

        An arm is an id, or a mapping with its "id" and its features. An arm is new if the catalogue
        does not have its id. The vectors are None if no arm has features.
        """
        rows = [arm if isinstance(arm, Mapping) else {"id": arm} for arm in arms]
        names = [
            str(row["id"]) if isinstance(arm, Mapping) and "id" in row else arm
            for arm, row in zip(arms, rows, strict=True)
        ]
        invalid = next((name for name in names if not isinstance(name, str)), None)
        if invalid is not None:
            raise InvalidInput(
                f'arms must be ids, or mappings with an "id" and features, got {repr(invalid)[:80]}'
            )
        if len(set(names)) < len(names):
            raise InvalidInput("arms must have different ids, but one is given twice")
        indices = [self.index_by_name.get(name, -1) for name in names]
        featured_positions = [position for position, row in enumerate(rows) if len(row) > 1]
        unknown_positions = {i for i, index in enumerate(indices) if index < 0}.difference(
            featured_positions
        )
        if unknown_positions:
            unknown_name = names[min(unknown_positions)]
            columns = "" if self.table is None else f" ({', '.join(self.table.names)})"
            raise InvalidInput(
                f"arms: {unknown_name!r} is not in the"
                f" catalogue{did_you_mean(unknown_name, list(self.names)[:1000])}; a new arm needs"
                f" its features{columns}"
            )
        if not featured_positions:
            return names, indices, None
        features: list[Any] = [rows[position] for position in featured_positions]
        if self.table is None:
            features = [row.get("features") for row in features]
        vectors = self.vectors[indices]
        vectors[featured_positions] = self.compute_arm_vectors(features)
        return names, indices, vectors

    def compute_distances(self, is_known: BoolArray) -> FloatArray:
        """Return the distance of each arm to the nearest known arm, (K,).

        ``is_known`` (K,) is True for known arms.

        The unit is the median distance of a known arm to the nearest known arm with other features,
        so a typical distance is 1. An arm may differ in a feature in which all known arms are
        equal, e.g. by a category that no known arm has. The effect of this feature is then not
        known, and the distance is infinite.
        """
        if is_known.sum() < 2:
            return np.full(len(self.names), np.inf)
        known_vectors = self.vectors[is_known]
        known_squared_norms = np.square(known_vectors).sum(axis=1)
        nearest_distances = []
        other_distances = []  # squared; the second to the nearest arm with other features
        for vector in self.vectors:
            squared_distances = (
                known_squared_norms - 2.0 * (known_vectors @ vector) + vector @ vector
            )
            squared_distances[squared_distances < _MIN_SQUARED_DISTANCE] = 0.0
            nearest_distances.append(squared_distances.min())
            other_distances.append(squared_distances[squared_distances > 0.0].min(initial=np.inf))
        known_distances = np.array(other_distances)[is_known]
        is_finite = np.isfinite(known_distances)
        squared_unit = np.median(known_distances[is_finite]) if is_finite.any() else 1.0
        has_other_value = np.square(self.vectors - known_vectors[0]) > _MIN_SQUARED_DISTANCE
        has_unknown_effect = has_other_value[:, ~has_other_value[is_known].any(axis=0)].any(axis=1)
        return np.where(
            has_unknown_effect, np.inf, np.sqrt(np.array(nearest_distances) / squared_unit)
        )

    def state(self) -> dict[str, Any]:
        """Return the catalogue in JSON types. ``from_state`` reads them."""
        arrays = {name: getattr(self, name) for name in _ARRAY_TYPES}
        lists = {name: None if array is None else array.tolist() for name, array in arrays.items()}
        table = None if self.table is None else self.table.state()
        return {"names": list(self.names), "table": table, **lists}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Catalogue:
        """Return the catalogue with this ``state``."""
        arrays: dict[str, Any] = {
            name: None if state[name] is None else np.array(state[name], dtype)
            for name, dtype in _ARRAY_TYPES.items()
        }
        table = None if state["table"] is None else TableTransform.from_state(state["table"])
        return cls(tuple(map(str, state["names"])), table=table, **arrays)

    def __repr__(self) -> str:
        return f"<Catalogue of {len(self.names)} arms with {len(self.mean)} features>"
