"""Define ``Predictor``, which maps contexts to predicted rewards and confidence bonuses.

A policy, an exported file and a service decide by the same predictor. A predictor first applies its
``steps`` to contexts. It then computes scores from the resulting features: by ridge regressions
(``RidgePredictor``), by a regression on products of context and arm features (``JointPredictor`` in
``_joint_ridge.py``), or as a weighted mean of other predictors (``MixturePredictor``).

A predictor is immutable. The arrays of a policy's predictor are views of the learned statistics, so
it must be used before the policy learns more rounds; ``freeze`` copies them. ``describe`` returns
the settings and arrays for a file, from which ``serving/_predictor_files.py`` builds the predictor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from daband.base._arrays import (
    AnyArray,
    Arrays,
    FloatArray,
    IntArray,
    Scores,
    Shape,
    add_prefix,
    to_floats,
    to_rows,
)
from daband.errors import InvalidInput
from daband.features._fitted_steps import Step
from daband.features._image_layout import ImageLayout, to_channels_first

#: The inverse matrices of a predictor are *large* above this size in bytes. Files contain large ones
#: in single precision, or not at all if they are only used for bonuses that do not affect decisions.
LARGE_INVERSE_BYTES = 8 << 20
#: The number of products that are computed at once. They take 1 MB, which fits in the cache.
_BLOCK_VALUES = 131_072


@dataclass(frozen=True, eq=False)
class ContextStep:
    """A step that is applied to every context of a batch, which may have one context per arm."""

    kind: ClassVar[str] = "contexts"
    #: The shape of one context, C.
    shape: Shape
    #: A fitted transform or a network: it maps contexts (n, *C) to features (n, d).
    transform: Callable[[AnyArray], FloatArray]
    #: The layout of images that are transposed to channels first; None for other contexts.
    layout: ImageLayout | None = None

    def __call__(self, contexts: AnyArray) -> FloatArray:
        """Return the features (..., d) of contexts (..., *C)."""
        batch_shape = contexts.shape[: contexts.ndim - len(self.shape)]
        rows = contexts if len(batch_shape) == 1 else contexts.reshape(-1, *self.shape)
        if self.layout is not None:
            rows = to_channels_first(rows, self.layout)
        features = self.transform(to_rows(rows) if isinstance(self.transform, Step) else rows)
        return features if len(batch_shape) == 1 else features.reshape(*batch_shape, -1)


@dataclass(frozen=True, eq=False, kw_only=True)
class Predictor(ABC):
    """A function from contexts to predicted rewards and bonuses, in the user's unit of rewards."""

    #: The name of the class in files.
    kind: ClassVar[str]
    #: The steps that are applied to contexts, in order.
    steps: tuple[ContextStep, ...] = ()

    def __call__(self, contexts: AnyArray, with_bonuses: bool = True) -> Scores:
        """Return predicted rewards and bonuses (n, K) of contexts (n, *C), or (n, K, *C) with a
        context per arm.

        Without ``with_bonuses``, bonuses are 0.
        """
        return self.score(self.compute_features(contexts), with_bonuses)

    def compute_features(self, contexts: AnyArray) -> Any:
        """Return the argument of ``score``. Only this method may take long, for a network."""
        for step in self.steps:
            contexts = step(contexts)
        return contexts

    @abstractmethod
    def score(self, features: Any, with_bonuses: bool = True) -> Scores:
        """Return predicted rewards and bonuses, (n, K) each."""

    @abstractmethod
    def for_arms(self, indices: IntArray, vectors: FloatArray) -> Self:
        """Return a predictor for k arms.

        ``indices`` (k,) are the arms' indices in this predictor, -1 for an arm without rounds, and
        ``vectors`` (k, m) their features.
        """

    def after(self, step: ContextStep) -> Self:
        """Return a predictor whose contexts are first converted by ``step``."""
        predictor = object.__new__(type(self))  # faster than ``replace``
        vars(predictor).update(vars(self), steps=(step, *self.steps))
        return predictor

    @property
    def uses_arm_features(self) -> bool:
        """True if predictions depend on the features of arms."""
        return False

    @property
    def has_bonuses(self) -> bool:
        """True if bonuses are not all 0."""
        return True

    def without_large_inverses(self) -> Predictor:
        """Return a predictor for decisions that do not depend on bonuses.

        It has no large matrices, which are only used for bonuses. Small matrices remain, because
        decisions report bonuses and a monitor counts them.
        """
        return self

    def arrays(self) -> Arrays:
        """Return all arrays by name."""
        return describe(self)[1]


@dataclass(frozen=True, eq=False, kw_only=True)
class RidgePredictor(Predictor):
    """Ridge regressions: the mean is ``centre + z.theta``, and the bonus ``scale sqrt(z'A^-1 z)``.

    There is a regression per arm, or one for all arms if each arm has a context.
    """

    kind: ClassVar[str] = "ridge"
    #: The coefficients of rewards minus ``centre``, (heads, d).
    theta: FloatArray
    #: A^-1 of each regression, (heads, d, d), or the diagonal of A^-1, (heads, d). None for bonuses
    #: of 0.
    inverse: FloatArray | None
    #: The prior mean of rewards.
    centre: float = 0.0
    #: The unit of bonuses, or the unit of each head, (heads,).
    scale: float | FloatArray = 1.0
    #: True if the only feature is a constant 1.
    is_constant: bool = False
    #: The coefficients of an arm without rounds, (d,); None if its prediction is ``centre``.
    new_theta: FloatArray | None = None
    #: The heads of the arms that are predicted, -1 for an arm without rounds; None for all heads.
    arms: IntArray | None = None

    @classmethod
    def constant(cls, mean: FloatArray, bonus: FloatArray) -> Self:
        """Return a predictor of means and bonuses (K,) that do not depend on contexts."""
        return cls(theta=mean[:, None], inverse=np.square(bonus)[:, None], is_constant=True)

    def compute_features(self, contexts: AnyArray) -> FloatArray:
        if self.is_constant:
            return np.ones((len(contexts), 1))
        features: FloatArray = super().compute_features(contexts)
        return features

    def score(self, features: AnyArray, with_bonuses: bool = True) -> Scores:
        is_flat = features.ndim == 2
        rows = to_floats(features if is_flat else features.reshape(-1, self.theta.shape[1]))
        inverse = self.inverse if with_bonuses else None
        if inverse is not None and inverse.ndim == 2:
            mean, variance = rows @ self.theta.T, np.square(rows) @ inverse.T
        else:
            mean, variance = compute_ridge_scores(self.theta, inverse, rows)
        mean += self.centre
        bonus = self.scale * np.sqrt(variance)
        if not is_flat:
            mean, bonus = mean.reshape(len(features), -1), bonus.reshape(len(features), -1)
        if self.arms is None:
            return mean, bonus
        new_theta = np.zeros(rows.shape[1]) if self.new_theta is None else self.new_theta
        is_new = self.arms < 0
        new_mean = self.centre + rows @ new_theta[:, None]
        return (
            np.where(is_new, new_mean, mean[:, self.arms]),
            np.where(is_new, 0.0, bonus[:, self.arms]),
        )

    def for_arms(self, indices: IntArray, vectors: FloatArray) -> Self:  # noqa: ARG002
        return replace(self, arms=select_arms(self.arms, indices))

    @property
    def has_bonuses(self) -> bool:
        return self.inverse is not None

    def without_large_inverses(self) -> Self:
        return replace(self, inverse=None) if is_large(self.inverse) else self


@dataclass(frozen=True, eq=False, kw_only=True)
class MixturePredictor(Predictor):
    """A weighted mean of the predictions of members.

    The error of a weighted mean is at most the weighted mean of the errors, so a weighted mean of
    the bonuses is a valid bonus.
    """

    kind: ClassVar[str] = "mixture"
    #: The predictors.
    members: tuple[Predictor, ...]
    #: The weights of the members' means for each arm, (M, K), or for all arms, (M, 1).
    weights: FloatArray
    #: The weights of their bonuses, (M, K) or (M, 1).
    bonus_weights: FloatArray
    #: Both weights for an arm without rounds, (2, M); None if all arms have the same weights.
    new_weights: FloatArray | None = None

    def compute_features(self, contexts: AnyArray) -> list[Any]:
        contexts = super().compute_features(contexts)
        return [member.compute_features(contexts) for member in self.members]

    def score(self, features: list[Any], with_bonuses: bool = True) -> Scores:
        means, bonuses = 0.0, 0.0
        for index, member in enumerate(self.members):
            bonus_weights = self.bonus_weights[index]
            needs_bonus = with_bonuses and bool(bonus_weights.any())
            mean, bonus = member.score(features[index], needs_bonus)
            means = means + self.weights[index] * mean
            bonuses = bonuses + bonus_weights * bonus
        return means, bonuses  # type: ignore[return-value]

    def for_arms(self, indices: IntArray, vectors: FloatArray) -> Self:
        members = tuple(member.for_arms(indices, vectors) for member in self.members)
        if self.new_weights is None:
            return replace(self, members=members)
        weights, bonus_weights = (
            np.where(indices < 0, new[:, None], own[:, indices])
            for own, new in zip((self.weights, self.bonus_weights), self.new_weights, strict=True)
        )
        return replace(self, members=members, weights=weights, bonus_weights=bonus_weights)

    @property
    def uses_arm_features(self) -> bool:
        return any(member.uses_arm_features for member in self.members)

    @property
    def has_bonuses(self) -> bool:
        return any(member.has_bonuses for member in self.members)

    def without_unused(self) -> Self:
        """Return a mixture without the members that have no weight."""
        is_used = (self.weights + self.bonus_weights > 0).any(axis=1)
        if is_used.all():
            return self
        used = np.flatnonzero(is_used)
        return replace(
            self,
            members=tuple(self.members[index] for index in used),
            weights=self.weights[used],
            bonus_weights=self.bonus_weights[used],
            new_weights=None if self.new_weights is None else self.new_weights[:, used],
        )

    def without_large_inverses(self) -> Self:
        """Return a mixture whose bonuses are those of the remaining matrices, with a larger
        weight.
        """
        members = tuple(member.without_large_inverses() for member in self.members)
        is_kept = np.array([member.has_bonuses for member in members])
        kept = self.bonus_weights * is_kept[:, None]
        total, kept_total = self.bonus_weights.sum(axis=0), kept.sum(axis=0)
        scale = np.divide(total, kept_total, out=np.ones_like(total), where=kept_total > 0)
        return replace(self, members=members, bonus_weights=kept * scale).without_unused()


def compute_ridge_scores(theta: FloatArray, A_inv: FloatArray | None, z: FloatArray) -> Scores:
    """Return means z.theta and variances z'A^-1 z of features z (B, d) under every regression, (B,
    heads) each.

    theta is (heads, d), A_inv (heads, d, d). If A_inv is None, variances are 0.
    """
    mean = z.dot(theta.T)
    if A_inv is None:
        return mean, np.zeros_like(mean)
    variance = np.empty_like(mean)
    block_rows = max(64, _BLOCK_VALUES // theta.size)
    for start in range(0, len(z), block_rows):
        block = z[start : start + block_rows]
        products = np.matmul(block, A_inv).transpose(1, 0, 2)
        np.matmul(products, block[:, :, None], out=variance[start : start + block_rows, :, None])
    return mean, np.maximum(variance, 0.0, out=variance)


def select_arms(arms: IntArray | None, indices: IntArray) -> IntArray:
    """Return the entries of ``arms`` at ``indices``, and -1 for an index of -1."""
    return indices if arms is None else np.where(indices < 0, -1, arms[indices])


def is_large(inverse: FloatArray | None) -> bool:
    """Return True if a matrix takes much memory."""
    return inverse is not None and inverse.nbytes > LARGE_INVERSE_BYTES


# Files.


def _is_part(value: Any) -> bool:
    """Return True for a predictor, a step or a network."""
    return hasattr(value, "settings") or hasattr(value, "kind") or callable(value)


def describe(part: Any) -> tuple[dict[str, Any], Arrays]:
    """Return the settings of a predictor, a step or a network as JSON types, and its arrays.

    Large inverse matrices are in single precision.
    """
    if isinstance(part, Step):
        return {"kind": part.kind}, part.arrays()
    if not isinstance(part, Predictor | ContextStep):
        if not hasattr(part, "settings"):
            raise InvalidInput(
                f"the policy cannot be exported: a step of its predictor is {part!r}, which has no"
                " arrays for a file"
            )
        return dict(part.settings), part.arrays
    settings: dict[str, Any] = {"kind": part.kind}
    arrays: Arrays = {}
    for field in fields(part):
        name, value = field.name, getattr(part, field.name)
        if isinstance(value, np.ndarray):
            is_single = name == "inverse" and is_large(value)
            arrays[name] = value.astype(np.float32) if is_single else value
        elif _is_part(value):
            settings[name], part_arrays = describe(value)
            arrays |= add_prefix(f"{name}/", part_arrays)
        elif isinstance(value, tuple) and all(map(_is_part, value)):
            settings[name] = []
            for index, element in enumerate(value):
                element_settings, part_arrays = describe(element)
                settings[name].append(element_settings)
                arrays |= add_prefix(f"{name}/{index}/", part_arrays)
        else:
            settings[name] = value
    return settings, arrays


PartT = TypeVar("PartT")


def freeze(part: PartT) -> PartT:
    """Return a copy of a predictor that never changes: with copies of arrays, and with networks that
    files can contain.
    """
    frozen: Any = part
    if isinstance(part, Predictor | ContextStep):
        values = {field.name: freeze(getattr(part, field.name)) for field in fields(part)}
        frozen = replace(part, **values)
    elif isinstance(part, tuple):
        frozen = tuple(map(freeze, part))
    elif isinstance(part, np.ndarray):
        frozen = part.copy()
    elif hasattr(part, "freeze"):
        frozen = part.freeze()
    return frozen
