"""DABand: Neural-LinUCB whose encoder also aligns the target's contexts with the source's.

"Towards Domain Adaptive Neural Contextual Bandits" (ICLR 2025). The objective adds the terms of the target-regret bound
to the source regret; with all of those at weight 0 it is Neural-LinUCB, to the bit.
"""

from __future__ import annotations

from daband.policies.contract import policies
from daband.policies.neural_linucb import NeuralLinUCB

__all__ = ["DABand"]


@policies.register("daband")
class DABand(NeuralLinUCB):
    """Learns where rewards are seen, acts where they are not.

    Show it the target with ``observe_target`` and call ``adapt`` now and then (``daband.train`` does both). Its
    arguments are those of ``NeuralLinUCB``; a recipe's name means all of its terms.

    >>> policy = daband.DABand(context_shape=(8,), n_arms=3, recipe="small", seed=0)
    >>> policy.observe_target([[0.5] * 8] * 64)
    >>> skipped = policy.update([[1.0] * 8] * 64, [0] * 64, [1.0] * 64)
    >>> measured = policy.adapt(steps=2)
    >>> policy.deploy("target")
    >>> policy.select([[0.5] * 8]).arm.shape
    (1,)
    """

    source_terms_only = False
