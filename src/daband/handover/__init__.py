"""The frozen policy that goes into production: one file that decides on one raw row."""

__all__: list[str] = []
