"""The command line, which parses, calls and prints. It has nothing to import."""

__all__: list[str] = []
