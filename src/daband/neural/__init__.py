"""Provide policies with a neural encoder: Neural-LinUCB and DABand. They need torch (extra
"deep").

``daband.py`` has Algorithm 1 of the paper and the terms of its objective, and ``neural_linucb.py``
the policy that it is based on. ``_encoder_policy.py`` creates and saves such policies,
``_learner.py`` takes the gradient steps, and ``_replay.py`` stores the rounds for them.
"""

from daband.neural._recipes import recipe_for
from daband.neural._settings import (
    EncoderSettings,
    LearningSettings,
    Recipe,
    ReplaySettings,
    Weight,
)
from daband.neural._term import Batch, Term, terms
from daband.neural.daband import DABand

# registers itself with daband.features._input_encoders
from daband.neural.encoders import _pretrained as _pretrained
from daband.neural.encoders._encoder import DenseSettings, FeatureNetwork
from daband.neural.neural_linucb import NeuralLinUCB

__all__ = [
    "Batch",
    "DABand",
    "DenseSettings",
    "EncoderSettings",
    "FeatureNetwork",
    "LearningSettings",
    "NeuralLinUCB",
    "Recipe",
    "ReplaySettings",
    "Term",
    "Weight",
    "recipe_for",
    "terms",
]
