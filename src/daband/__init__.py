"""daband: cross-domain contextual bandits. Learn where feedback is cheap, act where it is dear."""

from daband import domains

__all__ = ["domains"]
