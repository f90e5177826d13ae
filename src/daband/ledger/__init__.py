"""Remember what was exported, what was decided, and what came of it, in the folder of a market.

``_store.py`` has the tables, in SQLite or in Postgres. ``_market.py`` has ``Market``, which exports,
decides, learns and reports. ``_log_import.py`` checks a log before it enters the ledger,
``_versions.py`` learns versions of the policy from the ledger, ``_evidence.py`` estimates what they
gain, and ``_pilots.py`` has the pilot.
"""

from typing import Any

__all__ = ["open_market"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, because a service needs only ``_store.py``."""
    if name in __all__:
        from daband.ledger import _market

        return getattr(_market, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
