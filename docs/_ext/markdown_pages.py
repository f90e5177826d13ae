"""Write every page also as Markdown next to its HTML, and ``llms.txt``, the list of all pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from shared_text import with_shared_text
from sphinx.writers.text import TextTranslator

__all__ = ["first_sentence", "setup"]

SECTIONS = {
    "": "Start",
    "guide": "User guide",
    "tutorials": "Tutorials",
    "concepts": "Concepts",
    "moving": "Moving from other tools",
    "reference": "Reference",
    "results": "Results",
    "project": "Project",
}


class _MarkdownTranslator(TextTranslator):
    """Sphinx's plain text, with the headings and the code of Markdown."""

    def depart_title(self, _node: Any) -> None:
        text = "".join(part[1] for part in self.states.pop() if part[0] == -1)
        self.stateindent.pop()
        self.states[-1].append((0, ["", f"{'#' * max(1, self.sectionlevel)} {text}", ""]))

    def visit_literal_block(self, node: Any) -> None:
        language = node.get("language", "")
        self.states[-1].append((0, [f"```{'' if language == 'default' else language}"]))
        self.new_state(0)

    def depart_literal_block(self, _node: Any) -> None:
        self.end_state(wrap=False, end=None)
        self.states[-1].append((0, ["```", ""]))

    visit_code_links_block = visit_literal_block
    depart_code_links_block = depart_literal_block

    def visit_literal(self, _node: Any) -> None:
        self.add_text("`")

    depart_literal = visit_literal

    def unknown_visit(self, _node: Any) -> None:
        """Nodes of extensions have children, but no text."""

    unknown_departure = unknown_visit

    def visit_raw(self, _node: Any) -> None:
        raise nodes.SkipNode


def _write_all(app: Any, exception: Exception | None) -> None:
    if exception is not None or app.builder.name != "html":
        return
    root, out = Path(app.srcdir), Path(app.outdir)
    lines = ["# daband", "", f"> {_summarise(root)}"]
    pages = sorted(app.env.found_docs)
    for folder, title in SECTIONS.items():
        lines += ["", f"## {title}", ""]
        for page in pages:
            if (page.partition("/")[0] if "/" in page else "") != folder:
                continue
            text = _read_markdown(app, page)
            path = out / f"{page}.md"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            sentence = "" if "/generated/" in page else first_sentence(text)
            lines.append(f"- [{app.env.titles[page].astext()}]({page}.md){sentence}")
    (out / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _summarise(root: Path) -> str:
    """The bold sentence of README."""
    text = (root.parent / "README.md").read_text(encoding="utf-8")
    return text.split("**")[1]


def _read_markdown(app: Any, page: str) -> str:
    """The source of a page if it is Markdown, otherwise its text."""
    source = Path(app.env.doc2path(page))
    if source.suffix == ".md":
        root = Path(app.srcdir).parent
        return with_shared_text(source.read_text(encoding="utf-8"), page, root).replace(
            ".rst)", ".md)"
        )
    doctree = app.env.get_and_resolve_doctree(page, app.builder)
    translator = _MarkdownTranslator(doctree, app.builder)
    doctree.walkabout(translator)
    return str(translator.body)


def first_sentence(text: str) -> str:
    """The page's question or result, which is in bold at its start; empty if there is none."""
    head = text[:1500].replace("\n", " ")
    parts = head.split("**")
    return f": {parts[1]}" if len(parts) > 2 and len(parts[1]) > 20 else ""


def setup(app: Any) -> dict[str, Any]:
    """Write the files when the build is finished."""
    app.connect("build-finished", _write_all)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
