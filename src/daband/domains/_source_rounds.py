"""Call a function for the rounds of each source (``apply_by_source``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from daband.base._arrays import AnyArray
from daband.domains._contract import gather_rows


def apply_by_source(
    function: Callable[[AnyArray, str], Sequence[AnyArray]],
    contexts: AnyArray,
    source_names: AnyArray | None,
) -> list[AnyArray]:
    """Call ``function(contexts, source_name)`` for the contexts of each source, and join its
    results.

    ``function`` returns arrays with a row per context. The joined arrays have the rows in the order
    of ``contexts``. ``source_names`` (N,) has the name of each context's source; None if there is
    only one source.
    """
    if source_names is None:
        return list(function(contexts, "source"))
    names, source_indices = np.unique(source_names, return_inverse=True)
    return gather_rows(
        source_indices, lambda index, rows: function(contexts[rows], str(names[index]))
    )
