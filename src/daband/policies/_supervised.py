"""Learn a source whose rewards are known for all arms, by supervised learning.

``learn_full`` stores the rows of the source. Before the next decision, ``_ensemble.py`` fits three
learners to them, and weights the learners by cross-validation. The result does not depend on the
order of rows.

Single rewards that come later, such as target rewards, are learned by a ``LinUCB`` from the
differences between these rewards and the ensemble's predictions. Its contexts are the policy's
contexts and the ensemble's predictions for all arms, so that few rewards can undo predictions that
are wrong in the target. Its confidence bonuses are the policy's bonuses. The score of an arm is the
sum of both predictions.

With ``shift="labels"``, the frequencies of labels in each target are estimated from its contexts
(``linear/_arm_frequencies.py``), and predictions are corrected by them. Without this assumption,
the correction would lower the mean accuracy on 60 tables by 0.017.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from daband.base._arguments import check_one_of
from daband.base._arrays import (
    AnyArray,
    Arrays,
    FloatArray,
    IntArray,
    add_prefix,
    drop_prefix,
    take_chosen,
    to_rows,
)
from daband.errors import InvalidInput
from daband.linear._arm_frequencies import estimate_frequencies
from daband.linear._predictor import Predictor, RidgePredictor
from daband.logs._mean_estimates import MeanEstimate
from daband.policies._checkpoints import collect_arrays, restore_arrays
from daband.policies._ensemble import fit_ensemble, make_ensemble
from daband.policies._policy import Policy, learn_transformed
from daband.policies._registered import policies
from daband.policies._ridge import LinUCB
from daband.policies._trees import MAX_STORED_ROUNDS, sample_rounds
from daband.rounds._rounds import Rounds
from daband.serving._numpy_networks import EnsembleNetwork, EnsemblePredictor

#: Approximate maximum number of contexts from which the frequencies in a target are estimated.
_MAX_TARGET_ROWS = 4096

#: The ridge of the regression that learns later rewards. The larger it is, the more rewards are
#: needed to change the ensemble's predictions. It was chosen among 3, 10, 30 and 100 on 60 tables
#: (benchmarks/full_labels.py).
_CORRECTION_RIDGE = 3.0


@policies.register("supervised")
class Supervised(Policy):
    """A policy that learns the rewards of all arms by an ensemble of supervised learners.

    It is the default of ``choose`` for vectors if the source has labels or the rewards of all arms.
    The ensemble consists of a logistic or ridge regression on piecewise features, boosted trees and
    extremely randomised trees. Rewards that ``update`` gets change the predictions by ridge
    regression. Without ``learn_full`` the policy is ``LinUCB``. At most 131,072 rows are stored; of
    more rows a sample, which does not depend on their order.

    Args:
        feedback: "one_hot" if exactly one arm of each row has reward 1 and all others 0. The
            ensemble then predicts labels, otherwise rewards.
        settings: the settings of every policy (``daband.Policy``).

    >>> policy = daband.Supervised(context_shape=(1,), n_arms=2, feedback="one_hot")
    >>> x = [[i / 200] for i in range(200)]
    >>> policy.learn_full(x, [[i < 100, i >= 100] for i in range(200)])
    >>> policy.select([[0.1], [0.9]]).arm.tolist()
    [0, 1]
    """

    scale_matters = True  # of the regression that learns later rewards
    allows_shared_arms = False
    default_settings: ClassVar = {"alpha": 0.1, "explore": "ucb"}

    def __init__(self, *, feedback: str = "bandit", **settings: Any) -> None:
        super().__init__(**settings)
        self.feedback: str = check_one_of("feedback", feedback, ("bandit", "one_hot"))
        self._n_inputs = math.prod(self.feature_shape)
        #: Blocks of stored rows: the context, and the rewards of all arms.
        self._row_blocks: list[FloatArray] = []
        #: The number of rows that were learned.
        self._n_rows = 0
        #: Learns the differences between rewards and the ensemble's predictions.
        self._corrections = self._make_corrections(self.n_arms)
        self.max_norm = self._corrections.max_norm
        #: The fitted ensemble; None before the first fit.
        self._ensemble: EnsembleNetwork | None = None
        #: The number of rows that had been learned at the last fit.
        self._rows_at_fit = 0
        #: The contexts (n, d) of each target by its index, if frequencies of labels are estimated.
        self._target_rows: dict[int, FloatArray] = {}
        #: The ensemble for each target by its index, with estimated frequencies.
        self._target_ensembles: dict[int, EnsembleNetwork] = {}

    def _make_corrections(self, n_predictions: int) -> LinUCB:
        """Return a regression on contexts and the predictions for the first ``n_predictions``
        arms.
        """
        return LinUCB(
            intercept=False,
            context_shape=(self._n_inputs + n_predictions,),
            n_arms=self.n_arms,
            ridge=_CORRECTION_RIDGE,
            # the expected correction of an ensemble is 0
            standardise_rewards=self.standardise_rewards and self._n_rows == 0,
            seed=self.seed,
            domains=self.domains,
        )

    @property
    def adapts_to_target(self) -> bool:
        return self.shift.has_label_shift and self.feedback == "one_hot"

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "feedback": self.feedback}

    @property
    def counts(self) -> IntArray:
        """The number of rewards of each arm, (K,), in rows and in rounds of ``update``."""
        return self._corrections.counts + self._n_rows

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each learner in the ensemble, by name; empty without ``learn_full``."""
        ensemble = self.fit()
        names = ("linear", "boosted trees", "extra trees")
        weights = [] if ensemble is None else ensemble.arrays["weights"].tolist()
        return dict(zip(names, weights, strict=False))

    @property
    def held_out_error(self) -> MeanEstimate | None:
        """The mean reward of the ensemble's arms minus the mean of their predicted rewards, by
        cross-validation in the source; None without ``learn_full``.
        """
        ensemble = self.fit()
        return None if ensemble is None else MeanEstimate(*ensemble.arrays["held_out_error"])

    # Decisions.

    def _predictor(self, domain: int) -> Predictor:
        corrections = self._corrections
        moments = corrections.reward_moments
        ridge = corrections._head.statistics
        theta, inverse = ridge.compute_coefficients(moments.centre), ridge.A_inv
        ensemble = self._fit(domain)
        if ensemble is None:  # without predictions, the regression is on contexts only
            n = self._n_inputs
            theta, inverse = theta[:, :n], inverse[:, :n, :n]
        scale = corrections._compute_units()
        if ensemble is not None:
            scale = self.reward_moments.scale * scale
        own = RidgePredictor(theta=theta, inverse=inverse, centre=moments.centre, scale=scale)
        if ensemble is None:
            return own
        return EnsemblePredictor(ensemble=ensemble, corrections=own, arms=np.arange(self.n_arms))

    # Learning.

    def _learn_full(self, contexts: AnyArray, rewards: FloatArray, domain: int) -> None:
        if self._corrections.rounds_learned:
            raise InvalidInput(
                "learn_full must come before update: the rounds of update correct the predictions"
                " that are learned from full rows; create a new policy to learn more of them"
            )
        self._row_blocks.append(np.column_stack([to_rows(contexts), rewards]))
        self._n_rows += len(rewards)
        self._corrections = self._make_corrections(self.n_arms)
        self.rounds_learned += len(rewards)
        self.reward_moments.add(rewards.ravel(), np.tile(np.arange(self.n_arms), len(rewards)))
        if sum(map(len, self._row_blocks)) > 2 * MAX_STORED_ROUNDS:
            rows = np.concatenate(self._row_blocks)
            self._row_blocks = [rows[sample_rounds(rows)]]

    def _observe(self, contexts: AnyArray, domain: int) -> None:
        rows = self._target_rows.get(domain, np.empty((0, self._n_inputs)))
        if self.adapts_to_target and len(rows) < _MAX_TARGET_ROWS:
            self._target_rows[domain] = np.concatenate([rows, to_rows(contexts)])
            self._target_ensembles.pop(domain, None)

    def fit(self, like: Supervised | None = None) -> EnsembleNetwork | None:
        """Return the ensemble, or None without rows. Fit it first if rows were learned since the
        last fit.

        If the policy ``like`` has learned the same rows, there is no cross-validation: the weights
        of the learners and the held-out error are those of ``like``. The units of columns may
        differ. They change little more than the rounding of thresholds.
        """
        with self._locks.write, self._locks.state:
            return self._fit(like=None if like is None else like.fit())

    def _fit(self, domain: int = 0, like: EnsembleNetwork | None = None) -> EnsembleNetwork | None:
        """Return the ensemble for a domain, or None without rows.

        Fit it again if rows were learned since the last fit, with ``like`` as in ``fit_ensemble``.
        """
        if self._n_rows > self._rows_at_fit:
            rows = np.concatenate(self._row_blocks)
            rows = rows[sample_rounds(rows)]
            self._ensemble = fit_ensemble(
                rows[:, : self._n_inputs],
                rows[:, self._n_inputs :],
                has_labels=self.feedback == "one_hot",
                like=like,
            )
            self._rows_at_fit = self._n_rows
            self._target_ensembles = {}
        if self._ensemble is None or domain not in self._target_rows:
            return self._target_ensembles.get(domain, self._ensemble)
        if domain not in self._target_ensembles:
            rewards = np.concatenate(self._row_blocks)[:, self._n_inputs :]
            source_frequencies = rewards.mean(axis=0)
            probabilities = self._ensemble.mix(self._target_rows[domain])
            frequencies = estimate_frequencies(probabilities, source_frequencies)
            ratios = frequencies / np.maximum(source_frequencies, 1e-3)
            arrays = {**self._ensemble.arrays, "ratios": ratios}
            self._target_ensembles[domain] = make_ensemble(arrays, self._n_inputs, True)
        return self._target_ensembles[domain]

    def _learn(self, rounds: Rounds, domain: int) -> None:
        predictor = self._predictor(domain)
        features = predictor.compute_features(rounds.contexts)
        differences = rounds.rewards
        if isinstance(predictor, EnsemblePredictor):
            features, predictions = features
            differences = differences - take_chosen(predictions, rounds.arms)
        else:
            n_missing = self._corrections.context_shape[0] - self._n_inputs
            features = np.pad(to_rows(features), ((0, 0), (0, n_missing)))
        rounds = dataclasses.replace(rounds, contexts=features, rewards=differences)
        learn_transformed(self._corrections, rounds, domain)

    def _grow(self) -> None:
        for domain in range(len(self.domains)):
            self._fit(domain)
        self._row_blocks = []  # they have no rewards of the new arm
        self._target_rows = {}
        self._corrections.add_arm()

    # Files.

    def _state(self, *, replay: bool = True) -> Arrays:
        for domain in () if replay else range(len(self.domains)):
            self._fit(domain)
        no_rows = np.empty((0, self._n_inputs + self.n_arms))
        rows = np.concatenate([no_rows, *self._row_blocks])
        state = {
            "kept": rows if replay else no_rows,
            "rows": np.array([self._n_rows, self._rows_at_fit], np.int64),
            "n_features": np.array([*self._corrections.context_shape], np.int64),
        }
        corrections = collect_arrays(self._corrections, replay=replay)
        state |= add_prefix("corrections/", corrections)
        if self._ensemble is not None:
            arrays = self._ensemble.arrays
            state |= add_prefix("ensemble/", arrays)
        for domain, ensemble in self._target_ensembles.items():
            state[f"ratios/{domain}"] = ensemble.arrays["ratios"]
        for domain, target_rows in self._target_rows.items() if replay else ():
            state[f"target/{domain}"] = target_rows
        return state

    def _restore(self, state: Arrays) -> None:
        rows = np.array(state["kept"], np.float64)
        n_rows, rows_at_fit = (int(count) for count in state["rows"])
        arrays = drop_prefix("ensemble/", state)
        has_labels = self.feedback == "one_hot"
        ensemble = make_ensemble(arrays, self._n_inputs, has_labels) if arrays else None
        if (
            rows.shape[1:] != (self._n_inputs + self.n_arms,)
            or not 0 <= rows_at_fit <= n_rows <= self.rounds_learned
            or (ensemble is None) != (rows_at_fit == 0)
            or (ensemble is not None and ensemble.n_arms > self.n_arms)
        ):
            raise ValueError(f"kept has other rows than the {n_rows} learned ones")
        targets = {int(name): rows for name, rows in drop_prefix("target/", state).items()}
        ensembles = {
            int(name): make_ensemble({**arrays, "ratios": ratios}, self._n_inputs, has_labels)
            for name, ratios in drop_prefix("ratios/", state).items()
        }
        if any(rows.shape[1:] != (self._n_inputs,) for rows in targets.values()):
            raise ValueError(f"target contexts must have {self._n_inputs} numbers")
        n_predictions = int(state["n_features"][0]) - self._n_inputs
        if not 0 < n_predictions <= self.n_arms:
            raise ValueError(f"n_features must be at most {self._n_inputs + self.n_arms}")
        self._n_rows = n_rows
        self._corrections = self._make_corrections(n_predictions)
        restore_arrays(self._corrections, drop_prefix("corrections/", state))
        self._target_rows = {domain: np.array(rows) for domain, rows in targets.items()}
        self._target_ensembles = ensembles
        self._row_blocks = [rows]
        self._rows_at_fit = rows_at_fit
        self._ensemble = ensemble
