"""``pl`` is polars, imported when something of it is first used: tables need it, and nothing else does.

A machine that trains on arrays, or serves, does without it.
"""

from typing import TYPE_CHECKING, Any

from daband.errors import DataError

if TYPE_CHECKING:
    import polars

    pl = polars
else:

    class _Polars:
        def __getattr__(self, name: str) -> Any:
            try:
                import polars
            except ImportError:
                raise DataError("tables and Parquet files are read with polars: pip install polars") from None
            return getattr(polars, name)

    pl = _Polars()
