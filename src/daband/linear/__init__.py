"""Ridge regression with exploration bonuses, in numpy.

Start with ``_ridge.py``, one regression: ``Ridge.add_rows`` updates A and b. ``_ridge_head.py`` has
the regressions of a linear policy, one per arm. ``_exploration.py`` chooses arms by their
predictions. ``_source_worth.py`` learns how much a source round counts in a target.
"""

from daband.linear._exploration import Decision, Exploration

__all__ = ["Decision", "Exploration"]
