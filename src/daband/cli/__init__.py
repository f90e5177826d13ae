"""The command line: it parses options, calls the library and prints results.

It has no public names.
"""

__all__: list[str] = []
