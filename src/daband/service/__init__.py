"""Decisions and rewards over HTTP, with a log that loses nothing: ``pip install 'daband[serve]'``, ``daband serve``."""

from daband.service.app import create_app
from daband.service.client import Client, ServiceDecision, ServiceError
from daband.service.export_events import export_events
from daband.service.process import serve
from daband.service.settings import Clock, Limits, Settings, Tokens
from daband.service.store import Store

__all__ = [
    "Client",
    "Clock",
    "Limits",
    "ServiceDecision",
    "ServiceError",
    "Settings",
    "Store",
    "Tokens",
    "create_app",
    "export_events",
    "serve",
]
