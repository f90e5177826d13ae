"""A document as one HTML page that opens from disk: no network, light and dark, and narrow enough for a phone."""

from __future__ import annotations

import re
from collections.abc import Mapping

from daband.report.document import Block, Document, Drawing, Folded, Section, SideBySide, Text
from daband.report.style import css_variables, themed
from daband.report.tables import Table, html_text

__all__ = ["html_page"]

_STYLE = (
    ":root{color-scheme:light dark;--card:#ffffff;--warn:#fff4e5;" + css_variables(dark=False) + "}"
    "@media (prefers-color-scheme:dark){:root{--card:#1c2026;--warn:#3a2c14;" + css_variables(dark=True) + "}}"
    """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:74rem;margin:0 auto;padding:1.5rem 1rem 4rem}
h1{font-size:clamp(1.25rem,1rem + 1.6vw,1.9rem);line-height:1.3;margin:.2rem 0 .8rem;text-wrap:balance}
h2{font-size:1.35rem;margin:3rem 0 .6rem;padding-top:.8rem;border-top:1px solid var(--grid)}
h3{font-size:1.05rem;margin:2.2rem 0 .6rem}
h2+h3{margin-top:.8rem}
p{max-width:48rem;margin:.6rem 0}
.eyebrow{color:var(--muted);font-size:.85rem;letter-spacing:.02em;margin:0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(10.5rem,1fr));gap:.8rem;margin:1.2rem 0}
.tile{background:var(--card);border:1px solid var(--grid);border-radius:.6rem;padding:.8rem 1rem}
.tile b{display:block;font-size:1.5rem;line-height:1.25;font-variant-numeric:tabular-nums}
.tile span{color:var(--muted);font-size:.85rem;line-height:1.35;display:block}
nav{font-size:.9rem;display:flex;flex-wrap:wrap;gap:.2rem 1rem;margin:.6rem 0 0}
a{color:inherit;text-decoration-color:var(--muted);text-underline-offset:.2em}
figure{margin:0}
.row{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,25rem),1fr));
gap:1.2rem;align-items:start;margin:1rem 0}
.drawing{background:var(--card);border:1px solid var(--grid);border-radius:.6rem;padding:.8rem;
min-width:0;max-width:38rem}
.drawing svg{display:block;width:100%;height:auto}
.drawing svg image{image-rendering:pixelated}
figcaption{color:var(--muted);font-size:.85rem;line-height:1.45;margin-top:.5rem;max-width:48rem}
.table{margin:1.2rem 0}
.scroll{overflow-x:auto;border:1px solid var(--grid);border-radius:.6rem;background:var(--card)}
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{padding:.38rem .6rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--grid)}
tbody tr:last-child>*{border-bottom:0}
thead th{color:var(--muted);font-weight:600;font-size:.82rem}
tbody th{font-weight:500}
.t{text-align:left}
.muted,.muted strong{color:var(--muted)}
td small{color:var(--muted);font-size:.85em}
th:first-child{position:sticky;left:0;background:var(--card)}
details{border:1px solid var(--grid);border-radius:.6rem;margin:.6rem 0;padding:0 .8rem;background:var(--card)}
summary{cursor:pointer;padding:.6rem 0;font-weight:600}
details .scroll{border-radius:.4rem}
.warning{background:var(--warn);border-left:4px solid #e69f00;padding:.5rem .8rem;border-radius:.3rem;max-width:none}
footer{color:var(--muted);font-size:.85rem;margin-top:3rem}
@media print{details{border:0}.drawing,.scroll,.tile{break-inside:avoid}}
"""
)


def html_page(document: Document, drawn: Mapping[str, str], *, made_by: str) -> str:
    """The page. ``drawn`` holds every drawing by name as SVG; ``made_by`` stands at its end."""
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{html_text(document.title)}</title>"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<style>{_STYLE}</style></head><body><main>",
        f'<p class="eyebrow">{html_text(document.title)}</p><h1>{html_text(document.headline)}</h1>',
        f"<p>{html_text(document.lead)}</p>",
    ]
    if document.tiles:
        tiles = "".join(
            f'<div class="tile"><b>{html_text(tile.value)}</b><span>{html_text(tile.text)}</span></div>'
            for tile in document.tiles
        )
        parts.append(f'<div class="tiles">{tiles}</div>')
    places = [f"part-{number}" for number in range(len(document.sections))]
    top = list(zip(places, document.sections, strict=True))
    several = sum(section.level == 2 for section in document.sections) > 3  # then parts have the same names twice
    links = "".join(
        f'<a href="#{place}">{html_text(section.title)}</a>'
        for place, section in top
        if section.level == 2 or not several
    )
    parts.append(f'<nav aria-label="Contents">{links}</nav>')
    for place, section in top:
        parts.append(_section(section, place, drawn))
    parts.append(f"<footer><p>{html_text(made_by)}</p></footer></main></body></html>\n")
    return "".join(parts)


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


def _section(section: Section, place: str, drawn: Mapping[str, str]) -> str:
    body = "".join(_block(block, drawn) for block in section.blocks)
    return f'<h{section.level} id="{place}">{html_text(section.title)}</h{section.level}>{body}'


def _block(block: Block, drawn: Mapping[str, str]) -> str:
    if isinstance(block, Text):
        return f'<p class="warning">{html_text(block.text)}</p>' if block.warning else f"<p>{html_text(block.text)}</p>"
    if isinstance(block, Table):
        return block.html()
    if isinstance(block, Drawing):
        picture = inline_svg(drawn[block.name], name=block.name, alt=block.alt)
        return (
            f'<figure class="drawing" id="figure-{block.name}">{picture}'
            f"<figcaption>{html_text(block.caption)}</figcaption></figure>"
        )
    if isinstance(block, SideBySide):
        return '<div class="row">' + "".join(_block(drawing, drawn) for drawing in block.drawings) + "</div>"
    assert isinstance(block, Folded)
    inside = "".join(_block(inner, drawn) for inner in block.blocks)
    return f"<details><summary>{html_text(block.title)}</summary>{inside}</details>"
