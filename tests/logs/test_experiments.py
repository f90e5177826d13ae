"""The movement of effects between domains, and limits that follow from it."""

import json
from pathlib import Path

import pytest

from daband.logs import _experiments
from daband.logs._mean_estimates import MeanEstimate

RECORD = Path(__file__).parents[2] / "benchmarks" / "records" / "verdicts.json"


def test_the_constants_are_the_recorded_fit():
    fit = json.loads(RECORD.read_text())["movement"]["all"]
    for name, value in fit.items():
        assert getattr(_experiments, name) == pytest.approx(value, rel=0.02)


def test_the_target_limit_is_never_above_the_log_s_limit():
    for value in (-0.3, 0.0, 0.05, 1.0):
        for n_contenders in (1, 4):
            estimate = MeanEstimate(value, 0.1)
            limits = [
                _experiments.compute_target_limit(
                    estimate,
                    between_deviation=_experiments.compute_between_deviation(value, fraction, 1.0),
                    n_contenders=n_contenders,
                )
                for fraction in (0.0, 0.5, 1.0)
            ]
            source_limit = _experiments.compute_target_limit(estimate, n_contenders=n_contenders)
            assert limits == sorted(limits, reverse=True)
            assert limits[0] <= source_limit < value
