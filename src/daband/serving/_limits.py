"""Keep limits on the use of arms while deciding row by row.

``fit_limits`` finds the price of each limit on contexts of the target. ``Limiter`` subtracts price
times use from the predicted rewards of each row, and counts the use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from daband.base._arguments import check_finite, check_fraction
from daband.base._arrays import BoolArray, FloatArray, IntArray, Mask
from daband.errors import InvalidInput
from daband.linear._draws import DrawFunction

#: Number of decisions over which use above or below the limit is compensated by the price.
_WINDOW = 500
#: Maximum number of prices in the table of a limit.
_MAX_PRICES = 256
#: Number of times that the price of each limit is fitted, given the others' prices.
_N_SWEEPS = 10


class Limit(NamedTuple):
    """A limit on the mean use per decision, with the price of a unit of use.

    Arrays are tuples, so that limits can be compared and written as JSON.
    """

    #: The use of each arm, (K,): 1 for an arm whose fraction is limited, or the cost of the arm.
    use: tuple[float, ...]
    #: The largest mean use per decision.
    rate: float
    #: Prices, (J,), ascending, in the unit of the rewards per unit of use.
    prices: tuple[float, ...] = (0.0,)
    #: The mean use on target contexts at each price, (J,), descending.
    uses: tuple[float, ...] = (0.0,)

    def mix_prices(self, rate: float) -> list[tuple[float, float]]:
        """Return at most two prices with their probabilities, whose mean use is ``rate``.

        Two prices are needed because a price decides for all rows with equal predictions at once.
        """
        index = int(np.searchsorted(-np.array(self.uses), -rate))
        if index in (0, len(self.uses)):
            return [(self.prices[min(index, len(self.uses) - 1)], 1.0)]
        high, low = self.uses[index - 1], self.uses[index]
        weight = (rate - low) / (high - low)
        return [(self.prices[index - 1], weight), (self.prices[index], 1.0 - weight)]


def fit_limits(scores: FloatArray, limits: Sequence[Limit]) -> list[Limit]:
    """Return the limits with tables of prices, for the scores (n, K) of target contexts.

    The prices are the Lagrange multipliers of the policy that has the largest mean score under the
    limits.
    """
    uses = np.array([limit.use for limit in limits])
    prices = np.zeros(len(limits))
    fitted = list(limits)
    for _ in range(_N_SWEEPS if len(limits) > 1 else 1):
        for index, limit in enumerate(limits):
            others = np.where(np.arange(len(limits)) == index, 0.0, prices) @ uses
            fitted[index] = _fit_limit(scores - others, limit)
            prices[index] = sum(p * weight for p, weight in fitted[index].mix_prices(limit.rate))
    return fitted


def _fit_limit(scores: FloatArray, limit: Limit) -> Limit:
    """Return a limit with the mean use at a table of prices."""
    use = np.array(limit.use)
    pairs = [(a, b) for a in range(len(use)) for b in range(len(use)) if use[a] > use[b]]
    # an arm is no longer better than another one from this price on
    with np.errstate(invalid="ignore"):  # arms that are not offered
        ratios = np.concatenate(
            [(scores[:, a] - scores[:, b]) / (use[a] - use[b]) for a, b in pairs]
        )
    ratios = ratios[np.isfinite(ratios) & (ratios > 0.0)]
    if not len(ratios):
        return limit
    steps = np.unique(np.quantile(ratios, np.linspace(0.0, 1.0, _MAX_PRICES), method="nearest"))
    prices = np.array([0.0, *(steps[1:] + steps[:-1]) / 2.0, steps[-1] * (1.0 + 1e-9)])
    mean_uses = [use[(scores - price * use).argmax(axis=1)].mean() for price in prices]
    monotone = np.minimum.accumulate(mean_uses)
    return limit._replace(prices=tuple(prices.tolist()), uses=tuple(monotone.tolist()))


def parse_limits(
    at_most: Mapping[str, float] | None,
    max_cost: float | None,
    costs: Sequence[float] | None,
    arm_names: Sequence[str],
    offered: Mask = None,
) -> list[Limit]:
    """Return the limits in the arguments of ``export``.

    ``offered`` (K,) is True for arms that can be chosen; None if all can. Raise an error if no mix
    of them keeps all limits.
    """
    limits = []
    largest = np.ones(len(arm_names)) if offered is None else offered.astype(np.float64)
    for name, value in (at_most or {}).items():
        if name not in arm_names:
            raise InvalidInput(
                f"at_most has {name!r}, which is not an arm ({', '.join(arm_names)})"
            )
        fraction = check_fraction(f"at_most of {name!r}", value, allow_one=True)
        arm = list(arm_names).index(name)
        largest[arm] = min(largest[arm], fraction)
        limits.append(Limit(tuple(float(other == name) for other in arm_names), fraction))
    if largest.sum() < 1.0 - 1e-9:
        raise InvalidInput(
            f"at_most leaves decisions without an arm: the fractions of all arms that can be chosen"
            f" add up to {largest.sum():g}, which must be at least 1"
        )
    if max_cost is not None:
        check_finite("max_cost", max_cost)
        if costs is None or min(costs) < 0.0:
            raise InvalidInput(
                f"max_cost={max_cost!r} needs costs of arms that are at least 0; the costs are"
                f" {costs}"
            )
        cheapest_first = np.argsort(costs)
        filled = np.minimum(largest[cheapest_first].cumsum(), 1.0)
        least = float(np.diff(filled, prepend=0.0) @ np.array(costs)[cheapest_first])
        if max_cost < least * (1.0 - 1e-9):
            raise InvalidInput(
                f"max_cost={max_cost!r} cannot be kept: the cheapest mix of arms that keeps at_most"
                f" costs {least:g} per decision; the costs are {costs}"
            )
        limits.append(Limit(tuple(map(float, costs)), float(max_cost)))
    return limits


@dataclass
class Usage:
    """The number of decisions and their use. Threads may share it."""

    #: The number of decisions.
    decisions: int = 0
    #: The use of each limit by these decisions, (L,).
    used: FloatArray = field(default_factory=lambda: np.zeros(0))
    lock: Any = field(default_factory=threading.Lock, repr=False)


class Limiter:
    """Chooses arms within limits, and counts their use.

    After n decisions the use of a limit is at most n times its rate plus the use of one decision.
    ``usage`` are the counts of an earlier limiter, to continue with.
    """

    def __init__(self, limits: Sequence[Limit], usage: Usage | None = None) -> None:
        self.limits = tuple(limits)
        self.usage = usage or Usage(used=np.zeros(len(limits)))

    def continue_from(self, other: Limiter | None) -> Limiter:
        """Return this limiter with the counts of another one with as many limits."""
        if other is None or len(other.limits) != len(self.limits):
            return self
        return Limiter(self.limits, other.usage)

    def record_use(self, arm: int, use: float, limit: int = 0) -> None:
        """Replace the expected use of a decision for ``arm`` by the actual one, e.g. its cost."""
        with self.usage.lock:
            self.usage.used[limit] += use - self.limits[limit].use[arm]

    def choose(
        self,
        compute_probabilities: Callable[[FloatArray, FloatArray, Mask], FloatArray],
        mean: FloatArray,
        bonus: FloatArray,
        available: Mask,
        draw: DrawFunction,
        *,
        indices: IntArray | None,
        control: float,
        incumbents: IntArray | None,
    ) -> tuple[IntArray, FloatArray, FloatArray, BoolArray]:
        """Choose as ``FrozenPolicy.choose`` does, row by row within the limits.

        ``compute_probabilities`` are the probabilities of arms without limits. ``indices`` (K,) are
        the indices of the arms among all arms, -1 for new ones; None for all arms.
        """
        n, n_arms = mean.shape
        uses = np.zeros((len(self.limits), n_arms))
        for use, limit in zip(uses, self.limits, strict=True):
            if indices is None:
                use[: len(limit.use)] = limit.use
            else:
                is_known = (indices >= 0) & (indices < len(limit.use))
                use[is_known] = np.array(limit.use)[indices[is_known]]
        mask = np.ones((n, n_arms), np.bool_) if available is None else available
        draws = draw(n, 2)
        arms = np.zeros(n, np.int64)
        propensities, controls = np.zeros((2, n))
        with self.usage.lock:
            for row in range(n):
                allowed = self._find_allowed(uses, mask[row])
                probabilities = np.zeros(n_arms)
                for weight, charge in self.mix_charges(uses):
                    scores = mean[[row]] - charge, bonus[[row]]
                    probabilities += weight * compute_probabilities(*scores, allowed[None])[0]
                incumbent = -1 if incumbents is None else int(incumbents[row])
                controls[row] = control if incumbent >= 0 and allowed[incumbent] else 0.0
                arm = int(np.searchsorted(probabilities.cumsum(), draws[row, 1], side="right"))
                arm = min(arm, int(np.flatnonzero(probabilities)[-1]))
                if draws[row, 0] < controls[row]:
                    arm = incumbent
                arms[row] = arm
                propensities[row] = (1.0 - controls[row]) * probabilities[arm]
                propensities[row] += controls[row] * (arm == incumbent)
                self.usage.decisions += 1
                self.usage.used += uses[:, arm]
        return arms, propensities, controls, draws[:, 0] < controls

    def _find_allowed(self, uses: FloatArray, available: BoolArray) -> BoolArray:
        """Return the available arms that keep the limits, (K,); those with the least use if there
        are none.
        """
        rates = np.array([limit.rate for limit in self.limits])
        left = rates * (self.usage.decisions + 1) + uses.max(axis=1) - self.usage.used
        allowed = available & ((uses <= left[:, None]) | (uses == 0.0)).all(axis=0)
        if not allowed.any():
            total = np.where(available, (uses / np.maximum(rates, 1e-300)[:, None]).sum(0), np.inf)
            allowed = total == total.min()
        return allowed

    def mix_charges(self, uses: FloatArray) -> list[tuple[float, FloatArray]]:
        """Return probabilities, each with the sum of price times use of every arm, (K,).

        ``uses`` (L, K) are the uses of the arms by each limit.
        """
        charges = [(1.0, np.zeros(uses.shape[1]))]
        for limit, use, used in zip(self.limits, uses, self.usage.used, strict=True):
            left = limit.rate * self.usage.decisions - used
            prices = limit.mix_prices(limit.rate + left / _WINDOW)
            charges = [
                (weight * price_weight, charge + price * use)
                for weight, charge in charges
                for price, price_weight in prices
            ]
        return charges
