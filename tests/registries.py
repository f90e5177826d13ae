"""Members of registries that tests add, and remove again."""

from contextlib import contextmanager


@contextmanager
def temporarily(registry, name, member):
    """Register a member until the block ends."""
    registry.add(name, member)
    try:
        yield
    finally:
        del registry._members[name]
