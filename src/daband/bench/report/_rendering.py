"""Templates: how a document and its tables become HTML, Markdown and LaTeX.

``template_environment`` is what templates of other pages use too: the same filters, and an undefined name is an error.
"""

from __future__ import annotations

import html
import re
import textwrap
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from daband.bench.report._method_styles import css_variables, themed

_TEMPLATES = Path(__file__).parent / "templates"
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "…": r"\ldots{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "λ": r"$\lambda$", "·": r"$\cdot$",
    "`": r"\textasciigrave{}", "[": "{[}", "]": "{]}", "*": "{*}",  # after a line's end, [ and * would belong to it
}  # fmt: skip
_MARKDOWN = re.compile(r"([\\`*_\[\]|$~]|<(?=[A-Za-z/!?])|&(?=#?\w+;))")
_MARKDOWN_START = re.compile(r"^(\d*)(>|[#+.)=-](?=[#=-]*(?:\s|$)))")


def template_environment(*folders: Path) -> jinja2.Environment:
    """Templates of these folders, and those of reports after them."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*folders, _TEMPLATES]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - a filter says which language a text becomes part of: html, md or tex
    )
    made.filters.update(
        html=html_text,
        count=lambda n, what: f"{n:,} {what}" + ("s" if n != 1 else ""),
        md=markdown_text,
        tex=latex_text,
        tex_cell=_latex_cell,
        kind=lambda block: type(block).__name__,
        inline_svg=lambda svg, drawing: inline_svg(svg, name=drawing.name, alt=drawing.alt),
        paragraph=lambda text: textwrap.fill(
            " ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False
        ),
    )
    made.globals["css_variables"] = css_variables
    return made


def render(template: str, **content: Any) -> str:
    """A template of reports, filled in."""
    return _environment().get_template(template).render(**content)


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    return template_environment()


def caption(name: str, /, **values: Any) -> str:
    """A text of ``captions.toml``, filled in; names in it are plain text, which each language escapes later."""
    return _environment().from_string(_captions()[name]).render(**values)


@lru_cache(maxsize=1)
def _captions() -> dict[str, str]:
    return tomllib.loads((_TEMPLATES.parent / "captions.toml").read_text(encoding="utf-8"))


def one_line(text: str) -> str:
    """Text without line breaks and control characters."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def latex_text(text: str) -> str:
    """Plain text as LaTeX prints it."""
    return "".join(_LATEX.get(letter, letter) for letter in one_line(text))


def markdown_text(text: str) -> str:
    """Plain text as Markdown prints it: nothing in it is markup, in a table or at the start of a line either."""
    return _MARKDOWN_START.sub(r"\1\\\2", _MARKDOWN.sub(r"\\\1", one_line(text)))


def html_text(text: str) -> str:
    """Plain text as HTML prints it."""
    return html.escape(one_line(text))


def _latex_cell(cell: Any) -> str:
    text = re.sub(r"(?<![\w.])-(?=[\d.])", "$-$", latex_text(cell.text))  # a minus sign; a hyphen is half as long
    if cell.bold:
        text = rf"\textbf{{{text}}}"
    if cell.deviation:
        text += rf"\,{{\scriptsize$\pm$\,{latex_text(cell.deviation)}}}"
    return text


def inline_svg(svg: str, *, name: str, alt: str) -> str:
    """A drawing as part of a page: without its preamble, with names of its own, and in the page's colours."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    prefix = f"{name}-"
    body = re.sub(r'\bid="', f'id="{prefix}', body)
    body = re.sub(r'(xlink:href|href)="#', rf'\1="#{prefix}', body)
    body = re.sub(r"url\(#", f"url(#{prefix}", body)
    size = re.match(r'<svg[^>]*?viewBox="([^"]+)"', body)
    box = size.group(1) if size else "0 0 1 1"
    opening = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{box}" role="img" aria-label="{html_text(alt)}">'
    )
    return themed(opening + body[body.index(">") + 1 :].strip())
