"""Decisions and rewards over HTTP, with a log that loses nothing: ``pip install 'daband[serve]'``, ``daband serve``."""

from typing import TYPE_CHECKING, Any

from daband.service._app import create_app, serve
from daband.service._event_log import Store, export_events
from daband.service._settings import Clock, Limits, Settings, Tokens

if TYPE_CHECKING:
    from daband.service._client import Client, ServiceDecision, ServiceError

__all__ = [
    "Client", "Clock", "Limits", "ServiceDecision", "ServiceError", "Settings", "Store", "Tokens", "create_app",
    "export_events", "serve",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # A service that starts, perhaps after a crash, does not wait for what it does not need.
    if name in ("Client", "ServiceDecision", "ServiceError"):
        from daband.service import _client as client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
