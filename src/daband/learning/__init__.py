"""How an encoder is trained: settings, replay buffers, gradient steps, and who runs them. Knows no policy.

Here is everything that composes a ``Recipe``; ``daband.policies.recipes`` has the named ones.
"""

from daband.encoders import Augmentation, LatentSettings
from daband.learning.flat_parameters import FlatStatistics
from daband.learning.learner import Learner
from daband.learning.replay_buffer import ContextBuffer, ReplayBuffers, RoundBuffer
from daband.learning.settings import CUSTOM, EncoderSettings, LearningSettings, Recipe, ReplaySettings, recipe_from
from daband.learning.stepper import take_steps
from daband.objectives import Weight

__all__ = [
    "CUSTOM", "Augmentation", "ContextBuffer", "EncoderSettings", "FlatStatistics", "LatentSettings", "Learner",
    "LearningSettings", "Recipe", "ReplayBuffers", "ReplaySettings", "RoundBuffer", "Weight", "recipe_from",
    "take_steps",
]  # fmt: skip
