"""Pictures inside packages, as tables with a column "picture": letters of typefaces, emoji, clothes, clip art, icons.

Each function takes the path that ``fresh.toml`` declares and returns one row a picture: the picture of (channels, 28,
28) bytes, what it shows, and what the domains are told apart by.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

SIZE = 28


def read_pictures(path: Path) -> Any:
    """The pictures that a path stands for, by what it ends with."""
    readers = {"glyphs": _glyphs, "emoji": _emoji, "clothes": _clothes, "clipart": _clip_art, "icons": _icons}
    return pd.DataFrame(readers[path.suffix[1:]](path.with_suffix("")))


def _glyphs(path: Path) -> list[dict[str, Any]]:
    """The characters that the path ends with, white on black, in every typeface below its folder that has them all."""
    from PIL import Image, ImageChops, ImageDraw, ImageFont

    rows = []
    for file in sorted([*path.parent.rglob("*.ttf"), *path.parent.rglob("*.otf")]):
        face, drawn = ImageFont.truetype(file, 64), []
        for character in path.name:
            canvas = Image.new("L", (256, 256))
            ImageDraw.Draw(canvas).text((80, 80), character, fill=255, font=face)
            box = canvas.getbbox() or (0, 0, 1, 1)
            glyph = canvas.crop(box)
            glyph.thumbnail((20, 20))
            square = Image.new("L", (SIZE, SIZE))
            square.paste(glyph, ((SIZE - glyph.width) // 2, (SIZE - glyph.height) // 2))
            drawn.append(square)
        if any(not ImageChops.difference(one, drawn[0]).getbbox() for one in drawn[1:]):
            continue  # a typeface without these characters draws one box for all
        slanted = any(word in file.stem.lower() for word in ("italic", "oblique", "slanted"))
        rows += [
            {"picture": np.asarray(one)[None], "character": character, "family": file.parent.name, "slanted": slanted}
            for one, character in zip(drawn, path.name, strict=True)
        ]
    return rows


def _emoji(path: Path) -> list[dict[str, Any]]:
    """Emoji as vendors draw them, on white: which category it is."""
    rows = []
    for vendor in ("apple", "facebook", "google", "twitter"):
        folder = path.parent / f"{path.name}-{vendor}"
        for number, one in enumerate(sorted(json.loads((folder / "emoji.json").read_text()), key=lambda e: e["image"])):
            if one[f"has_img_{vendor}"]:
                pixels = _on_white(folder / "img" / vendor / "64" / one["image"])
                rows.append({"picture": pixels, "category": one["category"], "vendor": vendor, "odd": number % 2})
    return rows


def _on_white(file: Path) -> Any:
    """A picture that may be transparent, of (3, 28, 28) bytes."""
    from PIL import Image

    drawn = Image.open(file).convert("RGBA")
    drawn = drawn.reduce(max(1, min(drawn.size) // (4 * SIZE)))
    on_white = Image.alpha_composite(Image.new("RGBA", drawn.size, "white"), drawn).convert("RGB")
    return np.asarray(on_white.resize((SIZE, SIZE))).transpose(2, 0, 1)


def _clip_art(path: Path) -> list[dict[str, Any]]:
    """Drawings by what they show, the first folder; and how far from grey they are, from 0 to 255."""
    rows = []
    for file in sorted(path.rglob("*.png")):
        shows = file.relative_to(path).parts[0]
        if shows not in ("computer", "shapes", "special", "unsorted") and file.stat().st_size < 100_000:
            picture = _on_white(file)
            rows.append({"picture": picture, "shows": shows, "colour": np.ptp(picture.astype(int), axis=0).mean()})
    return rows


def _icons(path: Path) -> list[dict[str, Any]]:
    """Icons of 48 pixels in desktop themes: what kind of icon it is."""
    rows = []
    for file in sorted(path.rglob("*.png")):
        folders = file.relative_to(path).parts
        if {"48", "48x48"} & {*folders} and not file.is_symlink():
            kind = {"mimes": "mimetypes"}.get(sorted(folders[-3:-1])[1], sorted(folders[-3:-1])[1])
            rows.append({"picture": _on_white(file), "kind": kind, "theme": folders[0]})
    return rows


def _clothes(path: Path) -> list[dict[str, Any]]:
    """Photographs of clothes, light on black: which piece it is; and how light the cloth is."""
    rows = []
    for file in sorted(path.glob("*.json")):
        whole = [one for one in json.loads(file.read_text())["data"] if len(one) == SIZE * SIZE]
        for pixels in np.array(whole, np.uint8):
            picture, cloth = pixels.reshape(1, SIZE, SIZE), pixels[pixels > 0]
            rows.append({"picture": picture, "piece": file.stem, "light": cloth.mean()})
    return rows


def network_features(pictures: Any) -> Any:
    """1,280 numbers a picture: EfficientNet-Lite0 with weights of ImageNet."""
    import torch

    from daband.neural.encoders._pretrained import build_pretrained_network

    network = build_pretrained_network(context_shape=pictures.shape[1:]).eval()
    with torch.inference_mode():
        batches = torch.split(torch.from_numpy(pictures).float() / 255.0, 64)
        return np.concatenate([network(batch, rows_per_domain=[len(batch)]).numpy() for batch in batches])
