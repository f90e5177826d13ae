"""``pl`` is polars, imported on first use, since only tables need it.

Training on arrays and serving do not need polars.
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
