"""Define the decision rule of a policy as arrays, without its training data.

Start with ``FrozenPolicy``, which ``policy.frozen()`` returns. It has one or several ``Member``
objects. Contexts are first transformed by the policy's transform. Every member then computes
features (the context, a transform of it, the features of a network, or a constant) and predicts
rewards by ridge regressions on them. ``Exploration`` chooses an arm by the weighted mean of these
predictions.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from daband.base._arrays import (
    AnyArray,
    Arrays,
    BoolArray,
    FloatArray,
    IntArray,
    Mask,
    Scores,
    Shape,
    add_prefix,
    drop_prefix,
    to_rows,
)
from daband.features._catalogue import Catalogue
from daband.features._fitted_steps import Step
from daband.features._image_layout import (
    ImageLayout,
    to_channels_first,
)
from daband.features._table_transform import TableTransform
from daband.features._transforms import build_step
from daband.linear._draws import DrawFunction, draw_fresh, make_draw_key, make_seeded_draw
from daband.linear._exploration import Exploration
from daband.linear._joint_ridge import (
    append_one,
    compute_arm_heads,
    count_effects,
    score_context,
)
from daband.linear._ridge import compute_ridge_scores
from daband.serving._numpy_networks import Network, load_network

#: The inverse matrices of a member are *large* above this size in bytes. Large ones are written in
#: single precision.
LARGE_INVERSE_BYTES = 8 << 20
#: Maximum number of weights in the regressions of all arms of a catalogue (128 MiB).
_MAX_ARM_WEIGHTS = 1 << 24

__all__ = ["LARGE_INVERSE_BYTES", "FrozenParts", "FrozenPolicy", "Member", "load_frozen"]


@dataclass(frozen=True, eq=False)
class Member:
    """One predictor of a policy.

    It computes features, and predicts rewards by ridge regressions on them.

    There is one regression per arm. If each arm has its own context, or if arms have ``vectors``,
    there is only one regression in total. Features are contexts after ``transform`` and
    ``network``, or a single 1 if ``is_constant``.
    """

    #: The coefficients of the regressions, (heads, d).
    theta: FloatArray
    #: The inverse of the regularised Gram matrix A of each regression, (heads, d, d), or (heads, 0,
    #: 0) without bonuses.
    inverse: FloatArray
    #: The weight of the predicted rewards in the policy's predictions.
    weight: float = 1.0
    #: The weight of the bonus, in units of the policy's alpha.
    bonus_weight: float = 1.0
    #: The transform of contexts; None if there is none.
    transform: Step | None = None
    #: The network that computes features; None if there is none.
    network: Network | None = None
    #: True if the only feature is a constant 1.
    is_constant: bool = False
    #: The feature vectors of the arms, (K, m). The regression is on products of context features
    #: and these.
    vectors: FloatArray | None = None
    #: The factors of each arm's prediction and bonus, (2, K), in a mixture that also has
    #: regressions per arm.
    arm_factors: FloatArray | None = None
    #: The prior variance of the effect of an arm without rounds.
    new_effect_variance: float = 0.0
    #: The coefficients of an arm without rounds, (d,); None if its prediction is 0. It is not used
    #: with arm vectors.
    new_theta: FloatArray | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "inverse", np.ascontiguousarray(self.inverse))

    @property
    def dimension(self) -> int:
        """The number of features."""
        return int(self.theta.shape[1])

    def compute_features(self, rows: AnyArray) -> FloatArray:
        """Return the features (n, d) of contexts (n, *C)."""
        if self.is_constant:
            return np.ones((len(rows), 1))
        if self.transform is None and self.network is not None:
            return self.network(rows)
        features = to_rows(rows)
        if self.transform is not None:
            features = self.transform(features)
        return features if self.network is None else self.network(features)

    def score(self, rows: AnyArray) -> Scores:
        """Return predicted rewards and bonuses of contexts (n, *C), (n, heads) each; (n, K) with
        arm vectors.
        """
        if self.vectors is None:
            has_bonuses = self.inverse.size > 0 or self.bonus_weight > 0.0
            regressions = self.theta, self.inverse if has_bonuses else None
            features = self.compute_features(rows)
        elif self._arm_regressions is None:
            return self.score_arms(rows, np.arange(len(self.vectors)), self.vectors)
        else:
            regressions = self._arm_regressions
            features = append_one(self.compute_features(rows))
        mean, variance = compute_ridge_scores(*regressions, features)
        return mean, np.sqrt(variance)

    @functools.cached_property
    def _arm_regressions(self) -> tuple[FloatArray, FloatArray | None] | None:
        """The regression of each arm of the catalogue, scaled by ``arm_factors``; None if they take
        too much memory.
        """
        assert self.vectors is not None
        n_arms = len(self.vectors)
        n_features = self._n_context_features
        if n_arms * (n_features + 1) ** 2 > _MAX_ARM_WEIGHTS:
            return None
        inverse = self.inverse[0] if self.inverse.size else None
        theta, inverses = compute_arm_heads(
            self.theta[0], inverse, self.vectors, np.arange(n_arms), n_features
        )
        if self.arm_factors is not None:
            theta *= self.arm_factors[0][:, None]
            inverses = (
                None if inverses is None else inverses * self.arm_factors[1][:, None, None] ** 2
            )
        return theta, inverses

    @property
    def _n_context_features(self) -> int:
        """The number of context features in the products with arm features."""
        assert self.vectors is not None
        return (self.dimension - count_effects(len(self.vectors))) // self.vectors.shape[1] - 1

    def with_arms(self, vectors: FloatArray) -> Member:
        """Return the member for K arms with these vectors (K, m).

        The present arms come first; others have no rounds.

        A member without vectors uses ``new_theta`` for arms without rounds, or predicts 0.
        """
        if self.vectors is None:
            n_new = len(vectors) - len(self.theta)
            theta, inverse = (
                np.pad(array, ((0, n_new), *[(0, 0)] * (array.ndim - 1)))
                for array in (self.theta, self.inverse)
            )
            if self.new_theta is not None:
                theta[len(self.theta) :] = self.new_theta
            return replace(self, theta=theta, inverse=inverse)
        n_new = len(vectors) - len(self.vectors)
        n_new_effects = count_effects(len(vectors)) - count_effects(len(self.vectors))
        arm_factors = self.arm_factors
        if arm_factors is not None:
            arm_factors = np.pad(arm_factors, ((0, 0), (0, n_new)), constant_values=1.0)
        theta = np.pad(self.theta, ((0, 0), (0, n_new_effects)))
        inverse = self.inverse
        if inverse.size:
            inverse = np.pad(inverse, ((0, 0), (0, n_new_effects), (0, n_new_effects)))
            new_effects = np.arange(self.dimension, self.dimension + n_new_effects)
            inverse[0, new_effects, new_effects] = self.new_effect_variance
        return replace(self, theta=theta, inverse=inverse, vectors=vectors, arm_factors=arm_factors)

    def score_arms(self, rows: AnyArray, indices: IntArray, vectors: FloatArray) -> Scores:
        """Return predicted rewards and bonuses (n, k) of contexts (n, *C) for k arms.

        ``indices`` (k,) are the indices of the arms, -1 for new arms, and ``vectors`` (k, m) their
        vectors.
        """
        if self.vectors is None:  # a regression per arm
            mean, bonus = self.score(rows)
            new_mean = (
                0.0
                if self.new_theta is None
                else self.compute_features(rows) @ self.new_theta[:, None]
            )
            return np.where(indices < 0, new_mean, mean[:, indices]), np.where(
                indices < 0, 0.0, bonus[:, indices]
            )
        inverse = self.inverse[0] if self.inverse.size else None
        scores = [
            score_context(self.theta[0], inverse, row, vectors, indices, self.new_effect_variance)
            for row in append_one(self.compute_features(rows))
        ]
        mean, variance = (np.stack(column) for column in zip(*scores, strict=True))
        bonus = np.sqrt(variance)
        if self.arm_factors is None:
            return mean, bonus
        factors = np.where(indices < 0, 1.0, self.arm_factors[:, indices])
        return factors[0] * mean, factors[1] * bonus


class FrozenParts(NamedTuple):
    """The result of a policy's ``_freeze``: those fields of a ``FrozenPolicy`` that depend on the
    type of policy.
    """

    members: tuple[Member, ...]
    round_counts: IntArray | None = None
    layout: ImageLayout | None = None
    reference: AnyArray | None = None
    has_seen_target: bool = False


#: The fields that the header of a file contains without a conversion, and their types.
_HEADER_FIELDS: dict[str, Any] = {
    "policy": str,
    "domain": str,
    "arms": str,
    "n_arms": int,
    "max_norm": float,
    "rounds_learned": int,
    "seed": int,
}


@dataclass(frozen=True, eq=False, kw_only=True)
class FrozenPolicy:
    """The decision rule of a policy in one domain. It never changes.

    Its file contains no training contexts.
    """

    #: The registered name of the policy.
    policy: str
    #: The domain that the policy acts in.
    domain: str
    #: The shape C of one context.
    context_shape: Shape
    #: "disjoint", or "shared" if a row has one context per arm.
    arms: str
    #: The number of arms, K.
    n_arms: int
    #: The centre and scale of rewards. Members predict (reward - centre) / scale.
    reward_unit: tuple[float, float]
    #: Contexts with a larger norm are rejected.
    max_norm: float
    #: The number of rounds that the policy has learned.
    rounds_learned: int
    #: The exploration rule.
    exploration: Exploration
    #: The seed of the random draws.
    seed: int
    #: The predictors.
    members: tuple[Member, ...]
    #: The transform of contexts before all members; None if there is none.
    transform: Step | None = None
    #: The layout of images that are transposed to channels first for a network; None for other
    #: contexts.
    layout: ImageLayout | None = None
    #: The transform of raw table rows; None if the policy has no table.
    table: TableTransform | None = None
    #: The arms with their features, and which of them the policy's domain offers; None if arms have
    #: no features.
    catalogue: Catalogue | None = None
    #: The number of rounds that each regression has learned, (heads,). It is not written to the
    #: file.
    round_counts: IntArray | None = None
    #: Contexts of the domain that the policy stores for replay. ``export`` counts them, but does
    #: not write them.
    reference: AnyArray | None = None
    #: True if the policy has seen target contexts. It is not written to the file.
    has_seen_target: bool = False

    def __post_init__(self) -> None:
        make_draw_key(self.seed)  # raises an error if this is not a seed

    @property
    def row_shape(self) -> Shape:
        """The shape of the input of one decision: one context, or one context per arm."""
        return self.context_shape if self.arms == "disjoint" else (self.n_arms, *self.context_shape)

    @functools.cached_property
    def offered(self) -> Mask:
        """True for the arms that the domain offers, (K,); None if it offers all arms."""
        return (
            None
            if self.catalogue is None or self.catalogue.offered[0].all()
            else self.catalogue.offered[0]
        )

    def score(
        self, contexts: AnyArray, indices: IntArray | None = None, vectors: FloatArray | None = None
    ) -> Scores:
        """Return predicted rewards and bonuses (n, K) of contexts (n, *row_shape), in
        ``reward_unit``.

        ``indices`` (k,) selects arms, for results (n, k). The index of a new arm is -1. If there
        are new arms, ``vectors`` (k, m) must have the vectors of all selected arms.
        """
        if indices is not None and vectors is None:
            mean, bonus = self.score(contexts)
            return mean[:, indices], bonus[:, indices]
        rows = contexts if self.arms == "disjoint" else contexts.reshape(-1, *self.context_shape)
        if self.transform is not None:
            rows = self.transform(to_rows(rows))
        if self.layout is not None:
            rows = to_channels_first(rows, self.layout)
        # the error of a weighted mean is at most the weighted mean of the errors, so that of the
        # bonuses is a valid bonus
        means = []
        bonuses = []
        for member in self.members:
            inputs = contexts if member.is_constant else rows
            if vectors is None or indices is None:
                mean, bonus = member.score(inputs)
            else:
                mean, bonus = member.score_arms(inputs, indices, vectors)
            if self.arms == "shared" and not member.is_constant:
                mean = mean.reshape(-1, self.n_arms)
                bonus = bonus.reshape(-1, self.n_arms)
            means.append(mean if member.weight == 1.0 else member.weight * mean)
            bonuses.append(bonus if member.bonus_weight == 1.0 else member.bonus_weight * bonus)
        return functools.reduce(np.add, means), functools.reduce(np.add, bonuses)

    @functools.cached_property
    def random_key(self) -> np.uint64:
        """The key of the random draws."""
        return make_draw_key(self.seed)

    def make_draw(self, round_number: int | None) -> DrawFunction:
        """Return the function that draws random numbers.

        They are the policy's draws in round ``round_number`` and the following rounds. If it is
        None, they come from the operating system, so that processes that serve the same file
        explore independently.
        """
        if round_number is None:
            return draw_fresh
        return make_seeded_draw(self.random_key, round_number)

    def choose(
        self,
        mean: FloatArray,
        bonus: FloatArray,
        available: Mask,
        draw: DrawFunction,
        control: float,
        incumbents: IntArray | None,
    ) -> tuple[IntArray, FloatArray, FloatArray, BoolArray]:
        """Choose an arm for each row of means and bonuses (n, K), or with probability ``control``
        the row's incumbent.

        Return the arms and propensities, (n,) each, which include both groups. Also return the
        probability that each row is in the control group, (n,), and True for the rows that are in
        it, (n,). The probability is 0 if the incumbent of the row is -1 or not available.
        """
        decision = self.exploration.decide(mean, bonus, draw, available)
        n = len(mean)
        controls = np.zeros(n)
        in_control = np.zeros(n, np.bool_)
        if not control or incumbents is None:
            return decision.arm, decision.propensity, controls, in_control
        rows = np.arange(n)
        is_available = incumbents >= 0
        if available is not None:
            is_available &= available[rows, incumbents]
        controls[is_available] = control
        in_control = draw(n, 2)[:, 1] < controls
        arms = np.where(in_control, incumbents, decision.arm)
        probabilities = self.exploration.probabilities(mean, bonus, available=available)
        propensities = (1.0 - controls) * probabilities[rows, arms]
        return arms, propensities + controls * (arms == incumbents), controls, in_control

    def to_user_units(self, mean: FloatArray, bonus: FloatArray) -> Scores:
        """Return means and bonuses, which are in ``reward_unit``, in the user's units."""
        centre, scale = self.reward_unit
        if centre == 0.0 and scale == 1.0:
            return mean, bonus
        return centre + scale * mean, scale * bonus

    def score_in_user_units(self, contexts: AnyArray) -> Scores:
        """Return predicted rewards and bonuses (n, K) of contexts (n, *row_shape), in the user's
        units.
        """
        return self.to_user_units(*self.score(contexts))

    def build_header(self) -> dict[str, Any]:
        """Return the header of a file as a dictionary of JSON types."""
        return {
            **{name: getattr(self, name) for name in _HEADER_FIELDS},
            "context_shape": list(self.context_shape),
            "reward_unit": list(self.reward_unit),
            "exploration": asdict(self.exploration),
            "layout": self.layout,
            "transform": None if self.transform is None else self.transform.kind,
            "table": None if self.table is None else self.table.state(),
            "catalogue": None if self.catalogue is None else self.catalogue.state(),
            "members": [
                {
                    "weight": member.weight,
                    "bonus_weight": member.bonus_weight,
                    "constant": member.is_constant,
                    "joint": member.vectors is not None,
                    "new_variance": member.new_effect_variance,
                    "transform": None if member.transform is None else member.transform.kind,
                    "network": None if member.network is None else dict(member.network.settings),
                }
                for member in self.members
            ],
        }

    def collect_arrays(self) -> Arrays:
        """Return the arrays of a file, by name."""
        arrays: Arrays = {}
        if self.transform is not None:
            arrays |= add_prefix("transform/", self.transform.arrays())
        if self.table is not None:
            arrays |= add_prefix("table/", self.table.arrays())
        for index, member in enumerate(self.members):
            is_large = member.inverse.nbytes > LARGE_INVERSE_BYTES
            inverse = member.inverse.astype(np.float32) if is_large else member.inverse
            member_arrays: Arrays = {"theta": member.theta, "inverse": inverse}
            if member.transform is not None:
                member_arrays |= add_prefix("transform/", member.transform.arrays())
            for name in ("arm_factors", "new_theta"):
                if getattr(member, name) is not None:
                    member_arrays[name] = getattr(member, name)
            if member.network is not None:
                member_arrays |= add_prefix("network/", member.network.arrays)
            arrays |= add_prefix(f"member/{index}/", member_arrays)
        return arrays


def load_frozen(header: Mapping[str, Any], arrays: Arrays) -> FrozenPolicy:
    """Return the policy with this header and these arrays of a file.

    Raise ``ValueError`` or ``KeyError`` if the header and the arrays do not match.
    """
    exploration = header["exploration"]
    transform = header["transform"]
    table = header["table"]
    catalogue = None if header["catalogue"] is None else Catalogue.from_state(header["catalogue"])
    members = []
    for index, fields in enumerate(header["members"]):
        member_arrays = drop_prefix(f"member/{index}/", arrays)
        inverse = member_arrays["inverse"]
        step = fields["transform"]
        network = fields["network"]
        member = Member(
            theta=member_arrays["theta"],
            weight=float(fields["weight"]),
            bonus_weight=float(fields["bonus_weight"]),
            inverse=inverse.astype(np.float64) if inverse.dtype == np.float32 else inverse,
            transform=(
                None if step is None else build_step(step, drop_prefix("transform/", member_arrays))
            ),
            network=(
                None
                if network is None
                else load_network(network, drop_prefix("network/", member_arrays))
            ),
            is_constant=bool(fields["constant"]),
            arm_factors=member_arrays.get("arm_factors"),
            vectors=catalogue.vectors if catalogue is not None and fields["joint"] else None,
            new_effect_variance=float(fields["new_variance"]),
            new_theta=member_arrays.get("new_theta"),
        )
        members.append(member)
    centre, scale = header["reward_unit"]
    return FrozenPolicy(
        **{name: convert(header[name]) for name, convert in _HEADER_FIELDS.items()},
        context_shape=tuple(int(size) for size in header["context_shape"]),
        reward_unit=(float(centre), float(scale)),
        exploration=Exploration(
            str(exploration["rule"]), float(exploration["alpha"]), float(exploration["epsilon"])
        ),
        members=tuple(members),
        transform=(
            None if transform is None else build_step(transform, drop_prefix("transform/", arrays))
        ),
        layout=header["layout"],
        table=(
            None
            if table is None
            else TableTransform.from_state(table, drop_prefix("table/", arrays))
        ),
        catalogue=catalogue,
    )
