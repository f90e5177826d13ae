"""Learn from target rewards how much a source round counts, and how fast target rounds expire.

An *expert* is a ridge regression in which a source round counts as w target rounds, and the weight
of a target round halves after h further target rounds:

    A_e = P + w S + T_h         S sums z z' over source rounds, T_h over weighted target rounds
    theta_e = A_e^-1 b_e        b_e has the same weights

With w = 0 it is a start without the source. Every expert predicts a target reward before it learns
this reward. Its weight p_e falls with its squared errors. Before that, a small fraction of the
weight is redistributed, so that the best expert may change:

    p_e <- (1 - a) p_e + a prior_e                                  a = 0.002 for each round
    p_e <- p_e exp(-error_e^2 / (2 v)), scaled to a sum of 1

v is the variance of the noise, the running mean of the smallest squared errors. The regression that
decides has the coefficients sum_e p_e theta_e, so its predictions are the weighted mean of the
experts' predictions. Its A, and with it the confidence bonus, is that of the *base*. The base is the
source in full (w = 1) until target rewards reject it: some expert with h = infinity has a p_e / prior_e
above 20 times that of the source in full. From then on, the base is the expert with the largest
weight among those with h = infinity. For one expert, with the right v and a = 0, a rejection has a
probability of at most 1 / 20 if the source in full is right (Ville's inequality). With half-lives in
A, a policy would never stop exploring.

**Guarantee.** This is the fixed-share forecaster (Herbster and Warmuth, 1998). If v is the variance
of the noise, the loss L = -2 v log sum_e p_e exp(-error_e^2 / (2 v)) is bounded. For any sequence of
experts with k changes in n rounds and a smallest prior weight q,

    sum_t L_t  <=  sum_t error_t^2  +  2 v ((k + 1) log(1 / q) + k log(1 / a) + n log(1 / (1 - a)))

A start without the source (w = 0) and the source in full (w = 1) are among the experts.

Experts are fitted every few rounds. In between, the deciding regression learns every round. If there
are more than 64 features, weights and differences between experts are computed on the 64 principal
axes of the source's features, and the base on all features.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from daband.base._arrays import Arrays, FloatArray, IntArray, Weights, read_array
from daband.linear._reward_moments import RewardMoments
from daband.linear._ridge import Ridge, RidgeSums

#: Each expert: the worth of a source round, the half-life of target rounds in rounds, and the number
#: of tables on which it had the smallest squared error over 2,000 target rounds, plus 1. Prior
#: weights are proportional to these numbers. They were counted once, on 30 tables of half 0 of
#: benchmarks/target_streams.py, by a study outside this repository: ridge regressions on columns and
#: ramps, one seed. A sixth expert with a worth of 0.1 and a half-life of 500 rounds was best on one
#: table, and was left out. The benchmark counts the same for the policies themselves ("best expert").
EXPERTS = (
    (1.0, math.inf, 9),
    (0.1, math.inf, 15),
    (0.01, math.inf, 7),
    (0.0, math.inf, 2),
    (0.0, 150.0, 1),
)
#: The fraction of the weight that is redistributed in each round.
_SHARE = 0.002
#: The smallest likelihood ratio against the source in full that changes the base.
_MIN_EVIDENCE = 20.0
#: The number of rounds for which the variance of source rewards counts in the variance of the noise.
_N_PRIOR_ROUNDS = 20.0
#: The half-life of errors in the variance of the noise, in rounds. After a change of the target, all
#: experts have large errors for a while.
_NOISE_HALF_LIFE = 250.0
#: Maximum number of axes.
_MAX_AXES = 64
#: The number of steps of the subspace iteration that finds the axes.
_N_AXES_STEPS = 6
#: The number of rounds between two fits of the experts is a multiple of this one. It is about the
#: number of features, because a fit takes as long as an update, times the number of features.
_MIN_STEP = 16
#: The maximum number of rounds between two fits of the experts.
_MAX_STEP = 64


class WorthEstimate(NamedTuple):
    """How much the source counts in a policy that learns in a target."""

    #: The number of target rounds as which a source round counts.
    worth: float
    #: The number of target rounds as which the source counts in all.
    rounds: float

    def __str__(self) -> str:
        return (
            f"a source round counts as {self.worth:.2g} target rounds; the source counts as"
            f" {self.rounds:,.0f} in all"
        )


class SourceWorth:
    """The worth of source rounds in the regressions of ``ridge``, learned from target rounds.

    Args:
        ridge: regressions that have learned the source rounds only. ``start`` and ``fit`` change
            them into the deciding regressions.
        moments: the moments of the source's rewards.
        fixed_worth: the worth of a source round; None to learn it.
    """

    #: The attributes of a saved state that are arrays.
    _ARRAYS = (
        "source_gram",
        "source_b",
        "source_counts",
        "target_gram",
        "target_b",
        "b_shift",
        "axes",
        "axes_gram",
        "theta",
        "log_weights",
        "total_errors",
    )
    #: The attributes of a saved state that are numbers.
    _NUMBERS = (
        "centre",
        "base",
        "n_rounds",
        "n_fitted_rounds",
        "new_weight",
        "new_squares",
        "noise_sum",
        "noise_weight",
        "loss",
    )

    def __init__(
        self, ridge: Ridge, moments: RewardMoments, fixed_worth: float | None = None
    ) -> None:
        worths, self._half_lives, prior = np.array(EXPERTS).T
        self._worths = worths if fixed_worth is None else np.full(len(worths), fixed_worth)
        self._log_prior = np.log(prior / prior.sum())
        #: 1 / half-life without repetitions, (H,), and the index of each expert's rate, (E,).
        self._rates, self._rate_indices = np.unique(1.0 / self._half_lives, return_inverse=True)
        #: The prior mean of rewards in the experts' predictions.
        self.centre = moments.centre
        #: The index of the base.
        self.base = 0
        #: S, the sums of source rounds: Z'Z (heads, d, d) and Z'[r, 1] (heads, 2, d).
        self.source_gram: FloatArray = ridge.gram.copy()
        self.source_b: FloatArray = ridge.b.copy()
        #: The number of source rounds of each head, (heads,).
        self.source_counts: IntArray = ridge.counts.copy()
        #: The sums of target rounds up to the last fit for each half-life, (H, heads, d, d) and (H,
        #: heads, 2, d).
        self.target_gram: FloatArray = np.zeros((len(self._rates), *ridge.gram.shape))
        self.target_b: FloatArray = np.zeros((len(self._rates), *ridge.b.shape))
        #: The difference between the deciding regression's b and the base's b, (heads, 2, d).
        self.b_shift: FloatArray = np.zeros_like(ridge.b)
        #: The logarithms of the experts' weights p, (E,).
        self.log_weights: FloatArray = self._log_prior.copy()
        #: The sums of the experts' squared errors before the last fit, (E,).
        self.total_errors: FloatArray = np.zeros(len(worths))
        #: The sum of the losses L before the last fit. ``LogPolicy`` sets it to 0 when it has compared
        #: two regressions.
        self.loss = 0.0
        #: The number of target rounds, and this number at the last fit.
        self.n_rounds = self.n_fitted_rounds = 0.0
        #: The weight of the target rounds since the last fit.
        self.new_weight = 0.0
        #: The weighted sum of the squares of their rewards minus ``centre``.
        self.new_squares = 0.0
        #: The sum of the smallest squared errors, and its weight. Their ratio is v.
        self.noise_sum = _N_PRIOR_ROUNDS * moments.squared_differences / (moments.total_weight or 1)
        self.noise_weight = _N_PRIOR_ROUNDS if self.noise_sum else 0.0
        self._set_axes(_find_axes(ridge))

    def start(self, ridge: Ridge) -> None:
        """Fit the experts and the deciding regression ``ridge`` before the first target round."""
        if self.base_worth != 1.0:
            ridge.set_sums(*self._compute_sums(self.base))
        self._fit_experts(ridge)

    def _set_axes(self, axes: FloatArray) -> None:
        """Set the axes before the first target round."""
        n_heads = len(self.source_counts)
        n_axes = axes.shape[1]
        #: The axes, (d, m).
        self.axes: FloatArray = axes
        #: ``target_gram`` on the axes, (H, heads, m, m).
        self.axes_gram: FloatArray = np.zeros((len(self._rates), n_heads, n_axes, n_axes))
        #: The coefficients of the experts on the axes, (E, heads, 2, m).
        self.theta: FloatArray = np.zeros((len(self._worths), n_heads, 2, n_axes))
        self._project_source()

    def _project_source(self) -> None:
        """Compute S on the axes."""
        self._axes_source_gram = self._project(self.source_gram)
        self._axes_source_b = self.source_b @ self.axes

    def _project(self, grams: FloatArray) -> FloatArray:
        """Return grams (..., d, d) on the axes, (..., m, m)."""
        if self.axes.shape[0] == self.axes.shape[1]:  # the axes are the features
            return grams
        return self.axes.T @ grams @ self.axes

    @property
    def estimate(self) -> WorthEstimate:
        """The mean of the experts' worths, and the number of rounds as which the source counts."""
        worth = float(np.exp(self.log_weights) @ self._worths)
        return WorthEstimate(worth, worth * float(self.source_counts.sum()))

    @property
    def noise_variance(self) -> float:
        """The variance of the noise, v; 0 if rewards do not differ."""
        return self.noise_sum / (self.noise_weight or 1.0)

    @property
    def rounds_to_fit(self) -> int:
        """The number of target rounds until the experts are fitted again."""
        step = min(max(len(self.axes) // _MIN_STEP, 1) * _MIN_STEP, _MAX_STEP)
        return int(self.n_fitted_rounds + step - self.n_rounds)

    @property
    def base_worth(self) -> float:
        """The worth of a source round in the deciding regression's A."""
        return float(self._worths[self.base])

    def add_source(self, sums: RidgeSums) -> None:
        """Add source rounds by their sums.

        The deciding regression must learn them with the weight ``base_worth``.
        """
        self.source_gram += sums.gram
        self.source_b += sums.b
        self.source_counts += sums.counts
        self._project_source()

    def add_target(self, rewards: FloatArray, weights: Weights) -> None:
        """Add the rewards and weights (B,) of at most ``rounds_to_fit`` target rounds.

        The deciding regression must learn the rounds.
        """
        round_weights = np.ones(len(rewards)) if weights is None else weights
        self.new_squares += float(np.square(rewards - self.centre) @ round_weights)
        self.new_weight += float(round_weights.sum())
        self.n_rounds += len(rewards)

    def fit(self, ridge: Ridge) -> None:
        """Update the weights, the experts and the deciding regression ``ridge``."""
        age = self.n_rounds - self.n_fitted_rounds
        old_gram, old_b = self._compute_sums(self.base)
        new_gram = ridge.gram - old_gram
        new_b = ridge.b - old_b - self.b_shift
        new_axes_gram = self._project(new_gram)
        errors = self._compute_errors(new_axes_gram, new_b @ self.axes)
        for index, rate in enumerate(self._rates):
            kept_fraction = 2.0 ** (-age * rate)
            for sums, new_sums in (
                (self.target_gram, new_gram),
                (self.target_b, new_b),
                (self.axes_gram, new_axes_gram),
            ):
                sums[index] *= kept_fraction
                sums[index] += new_sums
        self._update_weights(age, errors)
        self.n_fitted_rounds = self.n_rounds
        # rounded, because experts with the same predictions are equal up to rounding errors
        weights = np.where(np.isinf(self._half_lives), np.round(self.log_weights, 6), -np.inf)
        base = int(np.argmax(weights))
        ratios = self.log_weights - self._log_prior
        if ratios[base] - ratios[0] <= math.log(_MIN_EVIDENCE):
            base = 0
        if base == self.base or ridge.set_sums(*self._compute_sums(base)):
            self.base = base
        self._fit_experts(ridge)

    def _compute_errors(self, gram: FloatArray, b: FloatArray) -> FloatArray:
        """Return the sums of the experts' squared errors (E,) in the rounds since the last fit, from
        the sums of these rounds on the axes: Z'Z (heads, m, m) and Z'[r, 1] (heads, 2, m).
        """
        signs = np.array([1.0, -self.centre])
        theta = signs @ self.theta  # of rewards minus the centre, (E, heads, m)
        products = 2.0 * signs @ b - np.einsum("ehm,hmn->ehn", theta, gram)
        return np.maximum(self.new_squares - np.einsum("ehm,ehm->e", theta, products), 0.0)

    def _update_weights(self, age: float, errors: FloatArray) -> None:
        """Update the experts' weights by their errors (E,) in the rounds since the last fit."""
        kept_fraction = 2.0 ** (-age / _NOISE_HALF_LIFE)
        self.noise_sum = kept_fraction * self.noise_sum + float(errors.min())
        self.noise_weight = kept_fraction * self.noise_weight + self.new_weight
        kept = age * math.log1p(-_SHARE)
        self.log_weights = np.logaddexp(
            kept + self.log_weights, math.log(-math.expm1(kept)) + self._log_prior
        )
        if self.noise_sum > 0.0:
            self.log_weights -= errors / (2.0 * self.noise_variance)
        log_sum = float(np.logaddexp.reduce(self.log_weights))
        self.log_weights -= log_sum
        self.loss -= 2.0 * self.noise_variance * log_sum
        self.total_errors += errors
        self.new_weight = self.new_squares = 0.0

    def _compute_sums(self, expert: int) -> tuple[FloatArray, FloatArray]:
        """Return the sums of an expert: Z'Z (heads, d, d) and Z'[r, 1] (heads, 2, d)."""
        worth = self._worths[expert]
        rate_index = self._rate_indices[expert]
        return (
            worth * self.source_gram + self.target_gram[rate_index],
            worth * self.source_b + self.target_b[rate_index],
        )

    def _fit_experts(self, ridge: Ridge) -> None:
        """Compute the experts' coefficients, and set the coefficients of the deciding regression to
        their weighted mean.
        """
        axes = self.axes
        A = self.axes_gram[self._rate_indices]
        A += self._project(np.diag(ridge.penalties))
        for expert in np.flatnonzero(self._worths):
            A[expert] += self._worths[expert] * self._axes_source_gram
        worths = self._worths[:, None, None, None]
        b = worths * self._axes_source_b + (self.target_b @ axes)[self._rate_indices]
        # in the order of a restored array, so that sums over it have the same rounding errors
        self.theta = np.ascontiguousarray(np.linalg.solve(A, b.swapaxes(2, 3)).swapaxes(2, 3))
        mean_theta = np.tensordot(np.exp(self.log_weights), self.theta, 1)
        theta_shift = (mean_theta - self.theta[self.base]) @ axes.T
        self.b_shift = theta_shift @ ridge.gram + theta_shift * ridge.penalties
        ridge.set_b(self._compute_sums(self.base)[1] + self.b_shift)

    def pad(self, n_heads: int, n_features: int) -> None:
        """Append heads without rounds, and features that were 0 in every round."""
        heads = (0, n_heads)
        features = (0, n_features)
        none = (0, 0)
        for name, widths in {
            "source_gram": (heads, features, features),
            "source_b": (heads, none, features),
            "source_counts": (heads,),
            "target_gram": (none, heads, features, features),
            "target_b": (none, heads, none, features),
            "b_shift": (heads, none, features),
            "axes": (features, none),
            "axes_gram": (none, heads, none, none),
            "theta": (none, heads, none, none),
        }.items():
            setattr(self, name, np.pad(getattr(self, name), widths))
        self._project_source()

    def state(self) -> Arrays:
        """Return all arrays needed to continue bit for bit."""
        numbers = np.array([getattr(self, name) for name in self._NUMBERS], np.float64)
        return {**{name: getattr(self, name) for name in self._ARRAYS}, "numbers": numbers}

    def restore(self, state: Arrays) -> None:
        """Restore the arrays that ``state`` returned."""
        # features that were added later have no axes
        n_axes = min(self.axes.shape[1], state["axes"].shape[1])
        self._set_axes(np.zeros((len(self.axes), n_axes)))
        for name in self._ARRAYS:
            setattr(self, name, read_array(state, name, getattr(self, name)))
        numbers = read_array(state, "numbers", np.zeros(len(self._NUMBERS)))
        if (numbers[1:-1] < 0).any() or numbers[1] >= len(self._worths):
            raise ValueError(f"the worth of source rounds cannot have the numbers {numbers}")
        for name, number in zip(self._NUMBERS, numbers.tolist(), strict=True):
            setattr(self, name, number)
        self.base = int(self.base)
        self._project_source()


def _find_axes(ridge: Ridge) -> FloatArray:
    """Return axes (d, m) of the features of all rounds: all features if there are at most 64,
    otherwise approximate principal axes, by subspace iteration.
    """
    if ridge.dim <= _MAX_AXES:
        return np.eye(ridge.dim)
    A = ridge.gram.sum(axis=0) + np.diag(ridge.penalties)
    axes = np.random.default_rng(0).standard_normal((ridge.dim, _MAX_AXES))
    for _ in range(_N_AXES_STEPS):
        axes = np.linalg.qr(A @ axes)[0]
    return axes
