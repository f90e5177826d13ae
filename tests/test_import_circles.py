"""Check that no two files import each other: directly, through others, in a function, for typing or
by string.
"""

import ast
from pathlib import Path

import pytest

import daband

ROOT = Path(daband.__file__).parent


def module_files(root: Path) -> dict[str, Path]:
    """The files of a package by the name of their module; a package's name stands for its
    ``__init__.py``.
    """
    parts = {
        path: path.relative_to(root.parent).with_suffix("").parts for path in root.rglob("*.py")
    }
    return {
        ".".join(names[:-1] if names[-1] == "__init__" else names): path
        for path, names in parts.items()
    }


def import_graph(root: Path) -> dict[str, set[str]]:
    """Return by module the modules of the package that it imports, also by a string."""
    files = module_files(root)
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        asked: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                asked |= {name.name for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path} has a relative import"
                inside = {f"{node.module}.{name.name}" for name in node.names}
                asked |= (inside & files.keys()) | (
                    {node.module or ""} if inside - files.keys() else set()
                )
            # which imports every public name when it is first used
            elif path != root / "__init__.py":
                asked |= named_by_string(node, files)
        graph[module] = (asked & files.keys()) - {module}
    return graph


def named_by_string(node: ast.AST, files: dict[str, Path]) -> set[str]:
    """Return the modules that a string constant names, or that a call of ``import_module`` can
    name.

    Strings also name packages, as folders of data or of plugins: these count in such a call only.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return (
            {node.value}
            if node.value in files and files[node.value].name != "__init__.py"
            else set()
        )
    if not (
        isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("import_module")
        and node.args
    ):
        return set()
    text = node.args[0]
    if isinstance(text, ast.Constant):
        return {str(text.value)}
    if isinstance(text, ast.JoinedStr) and isinstance(text.values[0], ast.Constant):
        return {name for name in files if name.startswith(str(text.values[0].value))}
    return set()


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """The sets of modules in which each reaches every other one."""
    reached = {module: _reached(graph, module) for module in graph}
    groups = {
        frozenset(other for other in graph if other in reached[m] and m in reached[other])
        for m in graph
    }
    return {group for group in groups if group}


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    ahead = list(graph[start])
    while ahead:
        module = ahead.pop()
        if module not in found:
            found.add(module)
            ahead.extend(graph[module])
    return found


def test_no_two_files_import_each_other() -> None:
    assert circles(import_graph(ROOT)) == set()


@pytest.mark.parametrize(
    "back",
    [
        "import tiny.a",
        "from tiny import a",
        "from tiny.a import x",
        "def f():\n    from tiny.a import x",
        "import_module('tiny.a')",
        "importlib.import_module(f'tiny.a{name}')",
        "WHERE = 'tiny.a'",
    ],
)
def test_a_circle_is_found(tmp_path: Path, back: str) -> None:
    package = tmp_path / "tiny"
    package.mkdir()
    for name, text in {
        "__init__": "",
        "a": "from tiny.b import y",
        "b": "import tiny.c",
        "c": "",
        "d": back,
    }.items():
        (package / f"{name}.py").write_text(text + "\n")
    assert circles(import_graph(package)) == set()
    (package / "c.py").write_text(back + "\n")
    assert circles(import_graph(package)) == {frozenset({"tiny.a", "tiny.b", "tiny.c"})}
