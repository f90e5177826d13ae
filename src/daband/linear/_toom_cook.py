"""Convolutions with fewer products: Toom and Cook's multiplication of polynomials, Winograd's minimal filtering.

``TILE`` rows of a convolution are coefficients of a product of two polynomials in the row. By the values of both at
n = side + TILE - 1 points these take n products of whole rows, where TILE * side are usual: 8 in place of 20 with
kernels of 5 x 5. What it takes besides are sums, of which matrices tell the factors. Rounding errors are about three
times as large.
"""

from __future__ import annotations

import functools

import numpy as np

from daband._arrays import FloatArray

#: Rows of a convolution that are calculated together.
TILE = 4
#: More or larger ones have larger rounding errors. Infinity is one besides.
_POINTS = np.array([0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5])


@functools.cache
def toom_cook(side: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """S (TILE, n), G (n, side), B (n, n): rows of the convolution of x (n,) with a kernel g are S (G g * B x)."""
    points = side + TILE - 1
    if not 1 <= side <= len(_POINTS) - TILE + 2:
        raise ValueError(f"a convolution has kernels of {side} x {side}")

    def powers(degree: int) -> FloatArray:
        return np.vstack([_POINTS[: points - 1, None] ** np.arange(degree), np.eye(degree)[-1]])

    interpolation = np.linalg.inv(powers(points)).astype(np.float64)
    return np.ascontiguousarray(powers(TILE).T), powers(side), np.ascontiguousarray(interpolation.T)


@functools.lru_cache(maxsize=64)
def tile_sums(side: int, height: int) -> FloatArray:
    """B for every tile of maps of this height: (n * tiles, height), the points first. Rows below the map are zeros."""
    tiles = -(-(height - side + 1) // TILE)
    _, _, sums = toom_cook(side)
    whole = np.zeros((len(sums), tiles, tiles * TILE + side - 1))
    for tile in range(tiles):
        whole[:, tile, tile * TILE : tile * TILE + len(sums)] = sums
    return np.ascontiguousarray(whole[:, :, :height]).reshape(-1, height)
