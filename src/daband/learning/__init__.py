"""How an encoder is trained: settings, replay buffers, gradient steps, and who runs them. Knows no policy.

A ``Recipe`` is composed of the settings here, ``daband.encoders.LatentSettings`` and ``Augmentation``, and
``daband.objectives.Weight``; ``daband.policies.recipes`` has the named ones.
"""

from daband.learning.flat_parameters import FlatStatistics
from daband.learning.learner import Learner
from daband.learning.replay_buffer import ContextBuffer, ReplayBuffers, RoundBuffer
from daband.learning.settings import CUSTOM, EncoderSettings, LearningSettings, Recipe, ReplaySettings, recipe_from
from daband.learning.step_runners import encode_ahead, start_steps, take_steps

__all__ = [
    "CUSTOM", "ContextBuffer", "EncoderSettings", "FlatStatistics", "Learner", "LearningSettings", "Recipe",
    "ReplayBuffers", "ReplaySettings", "RoundBuffer", "encode_ahead", "recipe_from", "start_steps",
    "take_steps",
]  # fmt: skip
