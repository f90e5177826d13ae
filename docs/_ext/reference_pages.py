"""Write the reference before Sphinx reads it: a page for every package, the command line, and all
registered names.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import command_pages
from public_names import Public, public_names, rooms

__all__ = ["setup"]

TITLES = {
    "policies": "Policies",
    "domains": "Domains and readers",
    "training": "Training and evaluation",
    "logs": "Logs",
    "trust": "Trust",
    "ledger": "Ledger",
    "serving": "Serving",
    "service": "Service",
    "neural": "Neural policies",
    "features": "Features",
    "linear": "Linear core",
    "bench": "Experiments and reports",
    "checks": "Checks",
    "sklearn": "Estimators for scikit-learn",
    "errors": "Errors",
}


def setup(app: Any) -> dict[str, Any]:
    """Write the pages when the builder starts."""
    app.connect("builder-inited", _write_all, priority=100)
    app.connect("autodoc-process-docstring", _literal_stars, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def _write_all(app: Any) -> None:
    folder = Path(app.srcdir) / "reference" / "generated"
    folder.mkdir(parents=True, exist_ok=True)
    everything = public_names()
    pages = {
        f"{room}.rst": _room_page(room, [public for public in everything if public.room == room])
        for room in rooms()
    }
    pages = {name: text for name, text in pages.items() if text}
    pages["command-line.md"] = command_pages.command_page()
    pages["names.md"] = _names_page()
    pages["surface.md"] = _surface_page(everything)
    for name, text in pages.items():
        path = folder / name
        if not path.is_file() or path.read_text() != text:  # an unchanged page is not built again
            path.write_text(text)
    for path in folder.iterdir():
        if path.name not in pages:
            path.unlink()


def _literal_stars(
    _app: Any, _what: str, _name: str, _thing: Any, _options: Any, lines: list[str]
) -> None:
    """Shapes such as (B, *C) are text, not the beginning of an emphasis."""
    for place, line in enumerate(lines):
        pieces = line.split("``")
        pieces[::2] = [re.sub(r"(?<=[(, ])\*(?=\w)", r"\\*", piece) for piece in pieces[::2]]
        lines[place] = "``".join(pieces)


def _room_page(room: str, names: list[Public]) -> str:
    if not names:
        return ""
    title = TITLES.get(room, room.capitalize())
    doc = (importlib.import_module(f"daband.{room}").__doc__ or "").strip()
    lines = [title, "=" * len(title), "", f"``daband.{room}``: {doc}", ""]
    for public in names:
        if public.directive == "autodata" and type(public.value).__module__ in (
            "builtins",
            "types",
        ):
            # autodoc would show the text of dict, tuple or str
            lines += [f".. py:data:: {public.name}", ""]
            continue
        lines += [f".. {public.directive}:: {public.name}"]
        if public.directive == "autoclass":
            lines += ["   :members:"]
            if room == "sklearn":  # scikit-learn adds these, with links into its own site
                methods = ("fit", "predict", "predict_proba", "score")
                lines += [
                    "   :exclude-members: " + ", ".join(f"set_{name}_request" for name in methods)
                ]
            if public.name.endswith(
                (".Policy", ".Contexts", ".RewardDomain", ".EvaluationDomain", ".LoggedDomain")
            ):
                lines += ["   :inherited-members:"]
            if public.name.endswith(".NeuralLinUCB"):  # with the members of its private base class
                lines += ["   :inherited-members: Policy"]
        if public.directive == "autodata":
            lines += ["   :no-value:"]
        lines += [""]
    return "\n".join(lines)


def _surface_page(everything: list[Public]) -> str:
    lines = [
        "# All public names",
        "",
        (
            "What `import daband` offers, then what its packages offer. What is not listed here may"
            " change without"
        ),
        "notice ([versions](../../project/versions.md)).",
        "",
    ]
    for title, names in (
        ("daband", [public for public in everything if public.name.count(".") == 1]),
        ("Packages", [public for public in everything if public.name.count(".") > 1]),
    ):
        lines += [f"## {title}", "", "| name | what it is |", "| --- | --- |"]
        for public in sorted(names, key=lambda public: public.name.lower()):
            role = {"autofunction": "func", "autodata": "data", "autoexception": "exc"}.get(
                public.directive, "class"
            )
            summary = public.summary.replace("|", "\\|").replace("``", "`")
            lines.append(f"| {{py:{role}}}`{public.name}` | {summary} |")
        lines.append("")
    return "\n".join(lines)


def _names_page() -> str:
    """What can be asked for by name: methods, recipes, terms, networks, pairs, presets."""
    from daband.bench._methods import list_methods
    from daband.bench._settings import load_experiment, preset_names
    from daband.domains._registry import pairs
    from daband.neural._recipes import recipes
    from daband.neural._term import terms
    from daband.neural.encoders._encoder import encoders
    from daband.policies._registered import policies

    def first(thing: Any) -> str:
        return " ".join((getattr(thing, "__doc__", None) or "").split("\n\n")[0].split()).replace(
            "``", "`"
        )

    lines = [
        "# Names",
        "",
        "What the library and the command line know by name, read from the registries.",
        "",
    ]
    lines += ["## Policies", "", "| name | what it is |", "| --- | --- |"]
    lines += [f"| `{name}` | {first(policies.get(name))} |" for name in policies.names()]
    lines += [
        "",
        (
            f"On the command line: {', '.join(f'`{name}`' for name in list_methods())}. `-p` puts"
            " PCA in front."
        ),
        "",
    ]
    lines += [
        "## Recipes",
        "",
        f"{', '.join(f'`{name}`' for name in recipes.names())}: see `daband.recipe_for`.",
        "",
    ]
    lines += ["## Terms", "", "| name | what it is |", "| --- | --- |"]
    lines += [f"| `{name}` | {first(terms.get(name))} |" for name in terms.names()]
    lines += ["", "## Networks", "", "| name | what it is |", "| --- | --- |"]
    lines += [f"| `{name}` | {first(encoders.get(name))} |" for name in encoders.names()]
    lines += ["", "## Pairs", "", "| name | what it is | licence |", "| --- | --- | --- |"]
    abouts = {name: pairs.get(name).about for name in pairs.names() if "/" not in name}
    lines += [f"| `{name}` | {about.summary} | {about.licence} |" for name, about in abouts.items()]
    lines += ["", "## Presets", "", "| name | what it runs |", "| --- | --- |"]
    lines += [
        f"| `{name}` | {load_experiment(name).summary} |"
        for name in preset_names()
        if "/" not in name
    ]
    lines.append("")
    return "\n".join(lines)
