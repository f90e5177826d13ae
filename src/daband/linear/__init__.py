"""Ridge regression with exploration bonuses, in numpy.

Start with ``_ridge_head.py``, the regressions of linear policies. ``_ridge.py`` and
``_dual_ridge.py`` compute them, and ``_exploration.py`` chooses arms by their predictions.
"""

from daband.linear._exploration import Decision, Exploration

__all__ = ["Decision", "Exploration"]
