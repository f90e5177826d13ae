"""Check the size and the layout of the package: each limit may fall, and should not rise."""

import ast
import importlib
from collections import defaultdict
from pathlib import Path

import daband

ROOT = Path(daband.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
TREES = {path: ast.parse(path.read_text()) for path in FILES}
PUBLIC_MODULES = {"__init__.py", "__main__.py", "errors.py", "sklearn.py", "weights.py"}
MAX_CODE_LINES = 26_000
MAX_FILES = 170
MAX_METHODS = 30
MAX_PUBLIC_NAMES = 120
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def code_lines(text: str) -> int:
    """Return the number of lines that are not blank, a comment or part of a docstring."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstrings |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(1 for n, line in lines if line.strip() and not line.strip().startswith("#") and n not in docstrings)


def public_names() -> list[str]:
    """Return every name in the ``__all__`` of the package, its packages and its public modules."""
    modules = ["daband", "daband.bench.report", *(f"daband.{path.parent.name}" for path in ROOT.glob("*/__init__.py"))]
    modules += [f"daband.{path.stem}" for path in ROOT.glob("*.py") if not path.name.startswith("_")]
    return [
        f"{module}.{name}" for module in modules for name in getattr(importlib.import_module(module), "__all__", ())
    ]


def test_lines_without_code_do_not_count():
    assert (
        code_lines('"""Text\nof two lines."""\n\n# a comment\nx = 1\n\n\ndef f():\n    """Text."""\n    return x\n')
        == 3
    )


def test_the_package_stays_small():
    assert sum(code_lines(path.read_text()) for path in FILES) <= MAX_CODE_LINES
    assert len(FILES) <= MAX_FILES


def test_a_module_that_is_not_public_starts_with_an_underscore():
    private = [path.relative_to(ROOT) for path in FILES if path.name[0] != "_" or path.name == "__main__.py"]
    assert {path.name for path in private} <= PUBLIC_MODULES, private


def test_no_class_has_too_many_methods():
    large = {
        f"{path.relative_to(ROOT)}: {node.name}": count
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and (count := sum(isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) for one in node.body)) > MAX_METHODS
    }
    assert not large


def test_the_public_api_stays_small():
    names = public_names()
    assert len({name.rpartition(".")[2] for name in names}) <= MAX_PUBLIC_NAMES, names


def test_a_public_name_is_listed_by_one_package():
    listed = defaultdict(set)
    for name in public_names():
        if name.count(".") > 1:
            listed[name.rpartition(".")[2]].add(name)
    assert {name: places for name, places in listed.items() if len(places) > 1} == {}
