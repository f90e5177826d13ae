"""Define DABand: Neural-LinUCB whose encoder also aligns target contexts with source contexts.

The method is from "Towards Domain Adaptive Neural Contextual Bandits" (ICLR 2025). The objective
adds the terms of the target-regret bound to the source regret. With all of these terms at weight 0,
the policy is exactly Neural-LinUCB.
"""

from __future__ import annotations

from daband.neural._neural_linucb import NeuralLinUCB
from daband.policies._registered import policies


@policies.register("daband")
class DABand(NeuralLinUCB):
    """A neural policy that learns in the source, where rewards are observed, and acts in the
    target.

    Pass target contexts to ``observe_target``, and call ``adapt`` after every episode;
    ``daband.train`` does both. The arguments are the same as for ``NeuralLinUCB``. This class uses
    all terms of a named recipe, while ``NeuralLinUCB`` drops the target terms.

    >>> policy = daband.DABand(context_shape=(8,), n_arms=3, recipe="small", seed=0)
    >>> policy.observe_target([[0.5] * 8] * 64)
    >>> _ = policy.update([[1.0] * 8] * 64, [0] * 64, [1.0] * 64)
    >>> metrics = policy.adapt(steps=2)
    >>> policy.deploy("target")
    >>> policy.select([[0.5] * 8]).arm.shape
    (1,)
    """

    source_only = False
