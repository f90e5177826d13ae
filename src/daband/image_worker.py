"""Decodes images in a process of its own and writes the pixels into a cache file.

It is run as a script by path and needs numpy and Pillow only: a worker that imported daband would load torch for
nothing, and one that ``multiprocessing`` spawns would run the user's main script again. It reads tasks, one line of
JSON each, and answers each with one line; pixels go straight into the cache file and never through a pipe.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["decode"]


def decode(source: Any, resize: int | None = None, crop: int | None = None) -> npt.NDArray[np.uint8]:
    """An image as (H, W, 3) of uint8: both sides resized to ``resize``, then the centre ``crop`` x ``crop`` of it."""
    from PIL import Image

    with Image.open(source) as opened:
        if opened.mode == "P" and "transparency" in opened.info:
            image = opened.convert("RGBA").convert("RGB")  # Pillow warns when this is done in one step
        else:
            image = opened.convert("RGB")
    if resize is not None and image.size != (resize, resize):
        image = image.resize((resize, resize), Image.Resampling.BILINEAR)
    pixels: npt.NDArray[np.uint8] = np.array(image)
    if crop is not None and crop != resize:
        top, left = (pixels.shape[0] - crop) // 2, (pixels.shape[1] - crop) // 2
        pixels = pixels[top : top + crop, left : left + crop]
    return pixels


def main() -> None:
    """Serve tasks ``{cache, resize, crop, items: [[position, path], ...]}`` until the input ends."""
    for line in sys.stdin:
        task = json.loads(line)
        failed: list[tuple[int, str]] = []
        with open(task["cache"], "r+b", buffering=0) as cache:
            for position, path in task["items"]:
                try:
                    pixels = decode(path, task["resize"], task["crop"]).transpose(2, 0, 1)
                    cache.seek(position * pixels.size)
                    cache.write(np.ascontiguousarray(pixels).tobytes())
                except Exception as error:  # whatever is wrong with one file is the parent's to report
                    failed.append((position, f"{type(error).__name__}: {error}"))
        sys.stdout.write(json.dumps(failed) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
