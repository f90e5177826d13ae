"""A package's users import its face: what a package offers others stands in its ``__init__``, and each name once."""

import ast
from collections import defaultdict
from pathlib import Path

import daband

ROOT = Path(daband.__file__).parent
PACKAGES = {path.parent.name for path in ROOT.glob("*/__init__.py")}
MOST_BYPASSES = 7
"""The entry point, and functions called like their module, which a type checker would take for the module."""


def cross_package_imports(root: Path) -> list[tuple[str, str]]:
    """(file, module of another package that it imports), for every import statement."""
    imports = []
    for path in sorted(root.rglob("*.py")):
        own = path.relative_to(root).parts
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules = [name.name for name in node.names] if isinstance(node, ast.Import) else modules
            for module in modules:
                parts = module.split(".")
                if parts[0] == root.name and len(parts) > 1 and parts[1] in PACKAGES and parts[1] != own[0]:
                    imports.append(("/".join(own), module))
    return imports


def definitions(root: Path) -> dict[str, list[str]]:
    """Where each public class and function of a module is defined; twins of kernels have one interface."""
    places = defaultdict(list)
    for path in sorted(root.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            public = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_"
            if public and not path.name.startswith("kernels") and node.name != "main":
                places[node.name].append(str(path.relative_to(root)))
    return places


def test_packages_are_imported_by_their_face():
    bypasses = [(file, module) for file, module in cross_package_imports(ROOT) if module.count(".") > 1]
    assert len(bypasses) <= MOST_BYPASSES, bypasses


def test_a_name_means_one_thing():
    assert {name: places for name, places in definitions(ROOT).items() if len(set(places)) > 1} == {}


def test_a_name_is_offered_by_one_package():
    faces = defaultdict(list)
    for path in ROOT.glob("*/__init__.py"):
        for node in ast.parse(path.read_text()).body:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(target, ast.Name) and target.id == "__all__":
                for element in node.value.elts:
                    faces[element.value].append(path.parent.name)
    assert {name: packages for name, packages in faces.items() if len(packages) > 1} == {}
