"""Turn raw values into features: tables, rows, images, texts and arms.

``_table_transform.py`` converts the columns of a table, ``_row_reader.py`` a single row, and
``_input_encoders.py`` images and texts. ``_standardise.py``, ``_pca.py`` and ``_piecewise.py``
transform contexts. ``_catalogue.py`` has the features of arms.
"""

from daband.features._pca import PCA
from daband.features._piecewise import Piecewise
from daband.features._shift import Shift
from daband.features._standardise import Standardise

__all__ = ["PCA", "Piecewise", "Shift", "Standardise"]
