"""Estimate how often each arm is right in the target, from predictions that were learned in the
source.

If only the frequencies of labels differ between the domains, the probabilities of the source are
wrong in the target by a factor per arm. Expectation maximisation finds the frequencies for which
the corrected probabilities have these frequencies as their mean, a maximum of the likelihood
(Saerens, Latinne and Decaestecker: "Adjusting the outputs of a classifier to new a priori
probabilities", 2002).
"""

from __future__ import annotations

import numpy as np

from daband.base._arrays import FloatArray

#: The maximum number of steps of expectation maximisation.
_MAX_STEPS = 500
#: Steps end if no frequency changes by more than this.
_TOLERANCE = 1e-6
#: Frequencies in the source are at least this, so that an arm that was never right can become so.
_MIN_FREQUENCY = 1e-3


def estimate_frequencies(probabilities: FloatArray, source_frequencies: FloatArray) -> FloatArray:
    """Return the estimated frequency of each arm in the target, (K,).

    Args:
        probabilities: the probability of each arm to be right for target contexts, (n, K), as
            learned in the source.
        source_frequencies: how often each arm is right in the source, (K,).
    """
    prior = np.maximum(source_frequencies, _MIN_FREQUENCY)
    prior = prior / prior.sum()
    frequencies = prior
    for _ in range(_MAX_STEPS):
        new_frequencies = correct_probabilities(probabilities, frequencies / prior).mean(axis=0)
        change = np.abs(new_frequencies - frequencies).max()
        frequencies = new_frequencies
        if change < _TOLERANCE:
            break
    return frequencies


def correct_probabilities(probabilities: FloatArray, ratios: FloatArray) -> FloatArray:
    """Return probabilities (n, K) for arms whose frequencies are ``ratios`` (K,) times those in the
    source.
    """
    corrected = probabilities * ratios
    return corrected / np.maximum(corrected.sum(axis=1, keepdims=True), 1e-300)
