"""Render a report's document, tables and captions as HTML."""

from __future__ import annotations

import html
import re
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from daband.bench.report._method_styles import css_variables, themed

_TEMPLATES = Path(__file__).parent / "templates"


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # noqa: S701 - the filter html escapes every text
    )
    made.filters.update(
        html=html_text,
        count=lambda n, what: f"{n:,} {what}" + ("s" if n != 1 else ""),
        kind=lambda block: type(block).__name__,
        inline_svg=lambda svg, drawing: inline_svg(svg, name=drawing.name, alt=drawing.alt),
    )
    made.globals["css_variables"] = css_variables
    return made


def render(template: str, **content: Any) -> str:
    """Return a template with its content; an undefined name is an error."""
    return _environment().get_template(template).render(**content)


def caption(name: str, /, **values: Any) -> str:
    """Return a text of ``captions.toml`` with its values, not yet escaped."""
    return _environment().from_string(_captions()[name]).render(**values)


@lru_cache(maxsize=1)
def _captions() -> dict[str, str]:
    return tomllib.loads((_TEMPLATES.parent / "captions.toml").read_text(encoding="utf-8"))


def html_text(text: str) -> str:
    """Return a text in one line, escaped for HTML."""
    return html.escape(" ".join("".join(letter if letter.isprintable() else " " for letter in text).split()))


def inline_svg(svg: str, *, name: str, alt: str) -> str:
    """Return a drawing as part of a page: with unique ids, and in the page's colours."""
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
