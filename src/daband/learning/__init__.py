"""How an encoder is trained: settings, replay buffers, gradient steps, and who runs them. Knows no policy.

Here is everything that composes a ``Recipe``; ``daband.policies.recipes`` has the named ones.
"""

from daband.encoders import LatentSettings
from daband.encoders.augmentation import Augmentation
from daband.learning.settings import EncoderSettings, LearningSettings, Recipe, ReplaySettings, recipe_from
from daband.objectives import Weight

__all__ = [
    "Augmentation",
    "EncoderSettings",
    "LatentSettings",
    "LearningSettings",
    "Recipe",
    "ReplaySettings",
    "Weight",
    "recipe_from",
]
