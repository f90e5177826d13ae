"""Ridge regression with exploration bonuses, estimates from logs, and transforms of contexts, in
numpy.

Start with ``_ridge_head.py``, the regressions of linear policies. ``_primal_ridge.py`` and
``_dual_ridge.py`` compute them, and ``_exploration.py`` chooses arms by their predictions.
``_doubly_robust.py`` and ``_advantages.py`` learn from logs. ``_standardise.py``, ``_pca.py`` and
``_piecewise.py`` are the transforms.
"""

from daband.linear._exploration import Decision, Exploration
from daband.linear._pca import PCA
from daband.linear._piecewise import Piecewise
from daband.linear._standardise import Standardise

__all__ = ["PCA", "Decision", "Exploration", "Piecewise", "Standardise"]
