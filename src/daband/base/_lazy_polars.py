"""Provide polars as ``pl``. The package is imported when an attribute of ``pl`` is first used.

Only tables need polars. Training on arrays and serving do not.
"""

from typing import TYPE_CHECKING, Any

from daband.errors import DataError

if TYPE_CHECKING:
    import polars

    pl = polars
else:

    class _Polars:
        """A stand-in for polars that imports it when an attribute is read."""

        def __getattr__(self, name: str) -> Any:
            try:
                import polars
            except ImportError:
                raise DataError(
                    "tables and Parquet files are read with polars: pip install polars"
                ) from None
            return getattr(polars, name)

    pl = _Polars()
