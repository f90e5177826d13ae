"""Rounds: contexts, chosen arms and rewards, in one record for logs, policies and the service."""

from daband.rounds._rounds import Rounds

__all__ = ["Rounds"]
