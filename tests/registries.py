"""Members of registries that tests add and remove again, and packages that register members."""

from contextlib import contextmanager


@contextmanager
def temporarily(registry, name, member):
    """Register a member until the block ends."""
    registry.add(name, member)
    try:
        yield
    finally:
        del registry._members[name]


def declare_plugin(folder, module, text):
    """Write a module, and the entry point by which an installed package declares it."""
    (folder / f"{module}.py").write_text(text, encoding="utf-8")
    info = folder / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[daband.plugins]\nmine = {module}\n")
