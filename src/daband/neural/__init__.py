"""Provide policies with a neural encoder: Neural-LinUCB and DABand. They need torch (extra
"deep").
"""

from daband.neural._daband import DABand
from daband.neural._neural_linucb import NeuralLinUCB
from daband.neural._recipes import recipe_for

# registers itself with daband._input_encoders
from daband.neural.encoders import _pretrained as _pretrained
from daband.neural.encoders._encoder import DenseSettings, FeatureNetwork
from daband.neural.learning._settings import (
    EncoderSettings,
    LearningSettings,
    Recipe,
    ReplaySettings,
)
from daband.neural.objectives._objective import Weight
from daband.neural.objectives._term import Batch, Term, terms

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
