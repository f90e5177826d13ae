"""Which target contexts to ask for: drawn in a way that is fixed before the first reward is seen.

Contexts are asked for more often where the predicted reward is uncertain. Predictions decide how narrow the interval
gets, never whether it holds.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from daband._arrays import FloatArray, IntArray
from daband.trust._confidence_intervals import Interval, WeightedDraws, confidence_sequence, counted, score_interval

_MOST_STRATA, _PER_STRATUM = 10, 10
_EVEN = 0.5
"""The part of the questions that is drawn evenly, so that confident mistakes are found."""


@dataclass(frozen=True)
class Plan:
    """The questions of one audit in their order. ``ids`` are the positions of contexts in the target.

    With ``strata`` (n,) and ``shares`` (H,), the shares of the strata among all contexts, the interval comes from all
    answers together; with ``draws``, from those so far.
    """

    ids: IntArray
    n_contexts: int
    strata: IntArray | None = None
    shares: FloatArray | None = None
    draws: WeightedDraws | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def anytime(self) -> bool:
        """Whether there is an interval after any number of answers."""
        return self.draws is not None

    def interval(self, rewards: FloatArray, *, confidence: float) -> Interval:
        """The mean reward and its limits, by answers (t,) scaled to [0, 1], in the order of the questions.

        All n answers, or, with ``draws``, those to the first t questions.
        """
        if self.draws is not None:
            return confidence_sequence(self.draws, rewards, confidence=confidence)
        assert self.strata is not None
        assert self.shares is not None
        assert len(rewards) == len(self.ids)
        parts = [rewards[self.strata == stratum] for stratum in range(len(self.shares))]
        return score_interval(counted(parts), self.shares, n_contexts=self.n_contexts, confidence=confidence)

    def as_dict(self) -> dict[str, Any]:
        """The plan as JSON can hold it."""
        draws = None if self.draws is None else {name: _listed(value) for name, value in asdict(self.draws).items()}
        return {
            "ids": self.ids.tolist(),
            "n_contexts": self.n_contexts,
            "strata": None if self.strata is None else self.strata.tolist(),
            "shares": None if self.shares is None else self.shares.tolist(),
            "draws": draws,
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Plan:
        """The plan that ``as_dict`` wrote; KeyError, TypeError or ValueError where it is none."""
        draws = fields["draws"]
        if draws is not None:
            arrays = {name: np.array(draws[name], np.float64) for name in ("predicted", "probability")}
            draws = WeightedDraws(**{**draws, **arrays})
        return cls(
            ids=np.array(fields["ids"], np.int64),
            n_contexts=int(fields["n_contexts"]),
            strata=None if fields["strata"] is None else np.array(fields["strata"], np.int64),
            shares=None if fields["shares"] is None else np.array(fields["shares"], np.float64),
            draws=draws,
        )


def plan_strata(predicted: FloatArray, *, budget: int, seed: int) -> Plan:
    """``budget`` contexts, drawn evenly without replacement from strata of similar predictions.

    Strata are consecutive in the order of predictions. Each gets about as many questions as the others, so strata are
    small where predictions are uncertain.

    Args:
        predicted: the predicted reward of each context, (N,), scaled to [0, 1].
        budget: how many, at most N.
        seed: fixes the draw.
    """
    n = len(predicted)
    generator = np.random.default_rng(seed)
    n_strata = int(np.clip(budget // _PER_STRATUM, 1, _MOST_STRATA))
    order = np.lexsort((generator.random(n), predicted))  # equal predictions in a random order
    reached = np.cumsum(_density(predicted, budget)[order])
    stratum = np.empty(n, np.int64)
    stratum[order] = np.minimum((n_strata * (reached - reached[0]) / reached[-1]).astype(np.int64), n_strata - 1)
    _, stratum = np.unique(stratum, return_inverse=True)  # a stratum may be empty where contexts are few
    sizes = np.bincount(stratum)
    asked = _allotted(sizes, budget)
    ids = np.concatenate(
        [generator.permutation(np.flatnonzero(stratum == row))[:k] for row, k in enumerate(asked) if k]
    )
    ids = generator.permutation(ids)  # so that the answers that come first are not those of one stratum
    return Plan(ids=ids, n_contexts=n, strata=stratum[ids], shares=sizes / n)


def plan_draws(predicted: FloatArray, *, budget: int, seed: int) -> Plan:
    """``budget`` contexts in an order whose answers give an interval at any time: see ``confidence_sequence``.

    Args: as for ``plan_strata``.
    """
    generator = np.random.default_rng(seed)
    probability = _density(predicted, budget)
    probability /= probability.sum()
    # The largest of log pi + Gumbel first: draws without replacement, each in proportion to what is left.
    ids = np.argsort(-(np.log(probability) + generator.gumbel(size=len(predicted))), kind="stable")[:budget]
    draws = WeightedDraws(
        predicted=predicted[ids],
        probability=probability[ids],
        predicted_total=float(predicted.sum()),
        n_contexts=len(predicted),
        deepest=float((predicted / probability).max()),
        highest=float(((1.0 - predicted) / probability).max()),
    )
    return Plan(ids=ids.astype(np.int64), n_contexts=len(predicted), draws=draws)


def _density(predicted: FloatArray, budget: int) -> FloatArray:
    """How often to ask for each context, (N,), relative to an even draw."""
    # No context counts as more certain than a sample of this size could show: a failure rate of 2 / budget.
    least = min(np.sqrt(2.0 / budget), 0.5)
    deviation = np.maximum(np.sqrt(predicted * (1.0 - predicted)), least)
    return _EVEN + (1.0 - _EVEN) * deviation / deviation.mean()


def _allotted(sizes: IntArray, budget: int) -> IntArray:
    """Questions a stratum, (H,): as even as the strata's sizes allow, at least one each, ``budget`` in all."""
    asked = np.zeros(len(sizes), np.int64)
    while asked.sum() < budget:
        open_strata = np.flatnonzero(asked < sizes)
        more = max((budget - int(asked.sum())) // len(open_strata), 1)
        for row in open_strata[: budget - int(asked.sum())]:
            asked[row] += min(more, sizes[row] - asked[row])
    return asked


def _listed(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
