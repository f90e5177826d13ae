"""Serve decisions and receive rewards over HTTP, with a durable log (``daband serve``).

The package is installed by ``pip install 'daband[serve]'``. ``_app.py`` has the endpoints,
``_decider.py`` the decisions, ``_event_log.py`` the log, ``_worker.py`` the process that learns,
and ``_server.py`` starts all of them.
"""

from typing import TYPE_CHECKING, Any

from daband.service._app import create_app
from daband.service._log_readers import export_events
from daband.service._server import serve
from daband.service._settings import Limits, Settings, Tokens

if TYPE_CHECKING:
    from daband.service._client import Client, ServiceDecision, ServiceError

__all__ = [
    "Client",
    "Limits",
    "ServiceDecision",
    "ServiceError",
    "Settings",
    "Tokens",
    "create_app",
    "export_events",
    "serve",
]


def __getattr__(name: str) -> Any:
    # The client is imported on demand, so that a service starts sooner.
    if name in ("Client", "ServiceDecision", "ServiceError"):
        from daband.service import _client

        return getattr(_client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
