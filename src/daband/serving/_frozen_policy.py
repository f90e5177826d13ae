"""Define the decision rule of a policy in one domain, without its training data.

``policy.frozen()`` returns a ``FrozenPolicy``: a ``Predictor``, which maps contexts to predicted
rewards and bonuses, and an ``Exploration``, which chooses an arm by them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

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
)
from daband.features._catalogue import Catalogue
from daband.features._table_transform import TableTransform
from daband.linear._draws import (
    DrawFunction,
    draw_fresh,
    make_draw_key,
    make_id_draw,
    make_seeded_draw,
)
from daband.linear._exploration import Exploration
from daband.linear._joint_ridge import MAX_SINGLE_ROWS
from daband.linear._predictor import Predictor, describe
from daband.linear._reward_moments import Scaling
from daband.serving._numpy_networks import load_part

__all__ = ["FrozenPolicy", "load_frozen"]


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
    #: The unit and the number of rewards, relative to which arms are compared.
    scaling: Scaling
    #: Contexts with a larger norm are rejected.
    max_norm: float
    #: The number of rounds that the policy has learned.
    rounds_learned: int
    #: The exploration rule.
    exploration: Exploration
    #: The seed of the random draws.
    seed: int
    #: The function from contexts to predicted rewards and bonuses, in the user's unit.
    predictor: Predictor
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
        """Return predicted rewards and bonuses (n, K) of contexts (n, *row_shape).

        ``indices`` (k,) selects arms, for results (n, k). The index of a new arm is -1. If there
        are new arms, ``vectors`` (k, m) must have the vectors of all selected arms.
        """
        if indices is None:
            return self.predictor(contexts)
        if vectors is not None:
            return self.predictor.for_arms(indices, vectors)(contexts)
        mean, bonus = self.predictor(contexts)
        return mean[:, indices], bonus[:, indices]

    def warm_up(self) -> Scores:
        """Return the scores of contexts of 0, after computing what speeds up later decisions."""
        return self.predictor(np.zeros((MAX_SINGLE_ROWS + 1, *self.row_shape)))

    @functools.cached_property
    def random_key(self) -> np.uint64:
        """The key of the random draws."""
        return make_draw_key(self.seed)

    def make_draw(self, round_number: int | None, ids: Sequence[str] | None = None) -> DrawFunction:
        """Return the function that draws random numbers.

        They are those of the rounds with these ``ids``, or the policy's draws in round
        ``round_number`` and the following rounds. If both are None, they come from the operating
        system, so that processes that serve the same file explore independently.
        """
        if ids is not None:
            return make_id_draw(self.random_key, ids)
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
        decision = self.exploration.decide(mean, bonus, draw, available, self.scaling)
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
        probabilities = self.compute_probabilities(mean, bonus, available)
        propensities = (1.0 - controls) * probabilities[rows, arms]
        return arms, propensities + controls * (arms == incumbents), controls, in_control

    def compute_probabilities(
        self, mean: FloatArray, bonus: FloatArray, available: Mask
    ) -> FloatArray:
        """Return the probability of each arm (n, K) for means and bonuses (n, K)."""
        return self.exploration.probabilities(
            mean, bonus, available=available, scaling=self.scaling
        )

    def summarise_exploration(self, contexts: AnyArray) -> tuple[float, float]:
        """Return the fraction of rows that get another arm than the one with the best score, and
        the largest standard error of an arm's mean reward after one row.

        The mean is over all rows, and is estimated with inverse propensities, in the user's units.
        The error falls with the square root of the number of rows. It is infinite if an arm has a
        propensity of 0.
        """
        mean, bonus = self.score(contexts)
        mask = None if self.offered is None else np.tile(self.offered, (len(mean), 1))
        probabilities = self.compute_probabilities(mean, bonus, mask)
        if self.offered is not None:
            probabilities = probabilities[:, self.offered]
        with np.errstate(divide="ignore"):
            variances = np.mean(1.0 / probabilities, axis=0)
        error = self.scaling.scale * float(np.sqrt(variances.max()))
        return 1.0 - float(probabilities.max(axis=1).mean()), error

    def build_header(self) -> dict[str, Any]:
        """Return the header of a file as a dictionary of JSON types."""
        return {
            **{name: getattr(self, name) for name in _HEADER_FIELDS},
            "context_shape": list(self.context_shape),
            "scaling": list(self.scaling),
            "exploration": asdict(self.exploration),
            "table": None if self.table is None else self.table.state(),
            "catalogue": None if self.catalogue is None else self.catalogue.state(),
            "predictor": describe(self.predictor)[0],
        }

    def collect_arrays(self) -> Arrays:
        """Return the arrays of a file, by name."""
        arrays = add_prefix("predictor/", self.predictor.arrays())
        if self.table is not None:
            arrays |= add_prefix("table/", self.table.arrays())
        return arrays


def load_frozen(header: Mapping[str, Any], arrays: Arrays) -> FrozenPolicy:
    """Return the policy with this header and these arrays of a file.

    Raise ``ValueError`` or ``KeyError`` if the header and the arrays do not match.
    """
    exploration = header["exploration"]
    table = header["table"]
    catalogue = None if header["catalogue"] is None else Catalogue.from_state(header["catalogue"])
    scaling = Scaling(*map(float, header["scaling"]))
    if not (all(map(math.isfinite, scaling)) and scaling.scale > 0 and scaling.certainty >= 0):
        raise ValueError(f"scaling is {scaling}")
    return FrozenPolicy(
        **{name: convert(header[name]) for name, convert in _HEADER_FIELDS.items()},
        context_shape=tuple(int(size) for size in header["context_shape"]),
        scaling=scaling,
        exploration=Exploration(
            str(exploration["rule"]),
            *(float(exploration[name]) for name in ("alpha", "epsilon", "gamma")),
        ),
        predictor=load_part(header["predictor"], drop_prefix("predictor/", arrays)),
        table=(
            None
            if table is None
            else TableTransform.from_state(table, drop_prefix("table/", arrays))
        ),
        catalogue=catalogue,
    )
