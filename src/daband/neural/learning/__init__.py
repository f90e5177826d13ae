"""How an encoder is trained: settings, replay buffers, gradient steps, and who runs them. Knows no policy.

A ``Recipe`` is composed of the settings here, ``daband.neural.encoders.LatentSettings`` and ``Augmentation``, and
``daband.neural.objectives.Weight``; ``daband.neural._recipes`` has the named ones.
"""

from daband.neural.learning._flat_parameters import FlatStatistics
from daband.neural.learning._learner import Learner
from daband.neural.learning._replay_buffer import ContextBuffer, ReplayBuffers, RoundBuffer
from daband.neural.learning._settings import (
    CUSTOM,
    EncoderSettings,
    LearningSettings,
    Recipe,
    ReplaySettings,
    recipe_from,
)
from daband.neural.learning._step_runners import encode_ahead, start_steps, take_steps

__all__ = [
    "CUSTOM", "ContextBuffer", "EncoderSettings", "FlatStatistics", "Learner", "LearningSettings", "Recipe",
    "ReplayBuffers", "ReplaySettings", "RoundBuffer", "encode_ahead", "recipe_from", "start_steps",
    "take_steps",
]  # fmt: skip
