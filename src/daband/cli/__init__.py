"""The command line: parses, calls and prints. It offers nothing to import."""

__all__: list[str] = []
