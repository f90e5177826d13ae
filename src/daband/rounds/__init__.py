"""Rounds: contexts, chosen arms and rewards, in one record for logs, policies and the service."""

__all__: list[str] = []
