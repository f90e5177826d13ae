"""Read images in packages as tables with a column "picture": letters of typefaces, emoji, clothes,
clip art, icons.

Each reader takes the path that ``fresh.toml`` declares and returns one row per image: the image of
(channels, 28, 28) bytes, its label, and the columns that separate the domains.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

SIDE = 28


def read_pictures(path: Path) -> Any:
    """Return the images that a path stands for, as a table.

    The suffix of the path selects the reader.
    """
    readers = {
        "glyphs": _read_glyphs,
        "emoji": _read_emoji,
        "clothes": _read_clothes,
        "clipart": _read_clip_art,
        "icons": _read_icons,
    }
    return pd.DataFrame(readers[path.suffix[1:]](path.with_suffix("")))


def _read_glyphs(path: Path) -> list[dict[str, Any]]:
    """Return the characters in the path's name, white on black, in every typeface of its folder
    that has them all.
    """
    from PIL import Image, ImageChops, ImageDraw, ImageFont

    rows = []
    for file in sorted([*path.parent.rglob("*.ttf"), *path.parent.rglob("*.otf")]):
        typeface = ImageFont.truetype(file, 64)
        glyphs = []
        for character in path.name:
            canvas = Image.new("L", (256, 256))
            ImageDraw.Draw(canvas).text((80, 80), character, fill=255, font=typeface)
            crop = canvas.crop(canvas.getbbox() or (0, 0, 1, 1))
            crop.thumbnail((20, 20))
            glyph = Image.new("L", (SIDE, SIDE))
            glyph.paste(crop, ((SIDE - crop.width) // 2, (SIDE - crop.height) // 2))
            glyphs.append(glyph)
        if any(not ImageChops.difference(image, glyphs[0]).getbbox() for image in glyphs[1:]):
            continue  # a typeface without these characters draws one box for all
        is_slanted = any(word in file.stem.lower() for word in ("italic", "oblique", "slanted"))
        common_fields = {"family": file.parent.name, "slanted": is_slanted}
        for image, character in zip(glyphs, path.name, strict=True):
            rows.append(
                {"picture": np.asarray(image)[None], "character": character, **common_fields}
            )
    return rows


def _read_emoji(path: Path) -> list[dict[str, Any]]:
    """Return the emoji of four vendors, on white, with their categories."""
    rows = []
    for vendor in ("apple", "facebook", "google", "twitter"):
        folder = path.parent / f"{path.name}-{vendor}"
        entries = json.loads((folder / "emoji.json").read_text())
        for number, entry in enumerate(sorted(entries, key=lambda entry: entry["image"])):
            if entry[f"has_img_{vendor}"]:
                pixels = _read_on_white(folder / "img" / vendor / "64" / entry["image"])
                rows.append(
                    {
                        "picture": pixels,
                        "category": entry["category"],
                        "vendor": vendor,
                        "odd": number % 2,
                    }
                )
    return rows


def _read_on_white(file: Path) -> Any:
    """Return an image file that may be transparent, as (3, 28, 28) bytes on white."""
    from PIL import Image

    drawn = Image.open(file).convert("RGBA")
    drawn = drawn.reduce(max(1, min(drawn.size) // (4 * SIDE)))
    on_white = Image.alpha_composite(Image.new("RGBA", drawn.size, "white"), drawn).convert("RGB")
    return np.asarray(on_white.resize((SIDE, SIDE))).transpose(2, 0, 1)


def _read_clip_art(path: Path) -> list[dict[str, Any]]:
    """Return drawings with their topic, the first folder, and their mean distance from grey, from 0
    to 255.
    """
    rows = []
    for file in sorted(path.rglob("*.png")):
        shows = file.relative_to(path).parts[0]
        if (
            shows not in ("computer", "shapes", "special", "unsorted")
            and file.stat().st_size < 100_000
        ):
            picture = _read_on_white(file)
            rows.append(
                {
                    "picture": picture,
                    "shows": shows,
                    "colour": np.ptp(picture.astype(int), axis=0).mean(),
                }
            )
    return rows


def _read_icons(path: Path) -> list[dict[str, Any]]:
    """Return the icons of 48 pixels in desktop themes, with their kinds."""
    rows = []
    for file in sorted(path.rglob("*.png")):
        folders = file.relative_to(path).parts
        if {"48", "48x48"} & {*folders} and not file.is_symlink():
            kind = {"mimes": "mimetypes"}.get(sorted(folders[-3:-1])[1], sorted(folders[-3:-1])[1])
            rows.append({"picture": _read_on_white(file), "kind": kind, "theme": folders[0]})
    return rows


def _read_clothes(path: Path) -> list[dict[str, Any]]:
    """Return photographs of clothes, light on black, with the piece and the mean lightness of the
    cloth.
    """
    rows = []
    for file in sorted(path.glob("*.json")):
        complete_images = [
            image for image in json.loads(file.read_text())["data"] if len(image) == SIDE * SIDE
        ]
        for pixels in np.array(complete_images, np.uint8):
            picture = pixels.reshape(1, SIDE, SIDE)
            cloth = pixels[pixels > 0]
            rows.append({"picture": picture, "piece": file.stem, "light": cloth.mean()})
    return rows


def compute_network_features(pictures: Any) -> Any:
    """Return 1,280 features per image, by EfficientNet-Lite0 with weights of ImageNet."""
    from daband.features._input_encoders import as_input_encoder

    encoder = as_input_encoder("efficientnet_lite0")
    return np.stack([encoder.encode_one(_write_png(picture)) for picture in pictures])


def _write_png(picture: Any) -> bytes:
    """Return an image (C, height, width) of bytes as a PNG file."""
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(picture.transpose(1, 2, 0).squeeze()).save(content, "PNG")
    return content.getvalue()
