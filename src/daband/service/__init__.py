"""Serve decisions and receive rewards over HTTP, with a durable log (``daband serve``).

The package is installed by ``pip install 'daband[serve]'``. ``_app.py`` has the endpoints,
``_decider.py`` the decisions, ``_writer.py`` writes them to the ledger, ``_worker.py`` is the
process that learns, and ``_server.py`` starts all of them.
"""

from daband.service._app import create_app
from daband.service._log_readers import export_events
from daband.service._server import serve
from daband.service._settings import Settings, Tokens

__all__ = [
    "Settings",
    "Tokens",
    "create_app",
    "export_events",
    "serve",
]
