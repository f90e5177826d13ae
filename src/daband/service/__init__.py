"""Decisions and rewards over HTTP, with a durable log: ``pip install 'daband[serve]'``, ``daband serve``."""

from typing import TYPE_CHECKING, Any

from daband.service._app import create_app
from daband.service._log_readers import export_events
from daband.service._server import serve
from daband.service._settings import Limits, Settings, Tokens

if TYPE_CHECKING:
    from daband.service._client import Client, ServiceDecision, ServiceError

__all__ = [
    "Client", "Limits", "ServiceDecision", "ServiceError", "Settings", "Tokens", "create_app",
    "export_events", "serve",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # The client is imported on demand, so that a service starts sooner.
    if name in ("Client", "ServiceDecision", "ServiceError"):
        from daband.service import _client as client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
