"""Reading lists of whole numbers as people write them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from daband.errors import InvalidInput

__all__ = ["spans", "whole_numbers"]

_MOST = 100_000


def whole_numbers(text: str, name: str) -> list[int]:
    """Turn "0-4,7" into [0, 1, 2, 3, 4, 7]."""
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if match is None:
            raise InvalidInput(f"{name} must look like 0-4 or 0,2,7, got {text!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise InvalidInput(f"{name}: the range {part.strip()!r} runs backwards")
        if last - first >= _MOST:
            raise InvalidInput(f"{name}: the range {part.strip()!r} has more than {_MOST:,} numbers")
        numbers.extend(range(first, last + 1))
    return list(dict.fromkeys(numbers))


def spans(numbers: Sequence[int]) -> str:
    """Turn [0, 1, 2, 3, 4, 7] into "0-4, 7"; the other way round of ``whole_numbers``."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)
