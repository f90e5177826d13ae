"""Check arguments and arrays, read and write files, and register members by name."""

__all__: list[str] = []
