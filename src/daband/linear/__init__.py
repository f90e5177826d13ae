"""Ridge regression with exploration bonuses, in numpy.

Start with ``_ridge.py``, one regression: ``Ridge.add_rows`` updates A and b. ``_ridge_head.py`` has
the regressions of a linear policy, one per arm. ``_predictor.py`` maps contexts to predicted
rewards and bonuses, by which ``_exploration.py`` chooses arms. ``_source_worth.py`` learns how much
a source round counts in a target.
"""

from daband.linear._exploration import Decision, Exploration
from daband.linear._predictor import RidgePredictor

__all__ = ["Decision", "Exploration", "RidgePredictor"]
