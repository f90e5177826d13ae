"""Convert and check arrays: arguments of users, arrays from files, and the arms, rewards and
weights of rounds.

daband computes with numpy. It accepts numpy arrays, nested sequences and torch tensors
(``as_numpy``).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from daband.errors import InvalidInput

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
AnyArray: TypeAlias = npt.NDArray[Any]
#: Boolean mask of the arms that may be chosen in each round, (B, K); None means all.
Mask: TypeAlias = BoolArray | None
#: The weight of each round, (B,); None means 1 for all.
Weights: TypeAlias = FloatArray | None
#: Predicted rewards, and their bonuses or variances, of each context and arm, (B, K) each.
Scores: TypeAlias = tuple[FloatArray, FloatArray]
#: The shape of a context, such as (3, 32, 32).
Shape: TypeAlias = tuple[int, ...]
#: Arrays by name, as in a file.
Arrays: TypeAlias = dict[str, AnyArray]
ArrayLike: TypeAlias = Any  # numpy arrays, nested sequences, torch tensors on any device

_FLOAT64 = np.dtype(np.float64)
#: The kinds of numpy types that are numbers: booleans, integers and floating-point numbers.
_NUMBER_TYPE_KINDS = "biuf"
#: The codes of numpy types that are accepted without conversion.
_NATIVE_TYPE_CODES = frozenset("?bBhHiIlLqQefd")


def as_numpy(value: ArrayLike, name: str) -> AnyArray:
    """Return a value as a numpy array of numbers, or raise an error that names the argument
    ``name``.

    Numbers in foreign byte order are converted to native order, and ``longdouble`` to ``float64``.
    """
    if type(value) is np.ndarray:
        array = value
    elif isinstance(value, np.ma.MaskedArray):
        raise InvalidInput(
            f"{name} must not be a masked array; fill the masked values or drop their rows"
        )
    else:
        # if the value is a tensor, the caller has already imported torch
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            array = _convert_tensor(torch, value, name)
        else:
            try:
                array = np.asarray(value)
            except (ValueError, TypeError, OverflowError) as error:
                raise InvalidInput(
                    f"{name} must be a rectangular array of numbers: {error}"
                ) from None
    dtype = array.dtype
    if dtype.char in _NATIVE_TYPE_CODES and dtype.isnative:
        return array
    if dtype.kind not in _NUMBER_TYPE_KINDS:
        raise InvalidInput(f"{name} must hold numbers, got type {dtype}")
    # numbers too large for float64 become infinite, and are rejected
    with np.errstate(over="ignore"):
        return array.astype(np.float64 if dtype.char == "g" else dtype.newbyteorder("="))


def _convert_tensor(torch: Any, tensor: Any, name: str) -> AnyArray:
    """Return a tensor on any device as a numpy array, or raise an error that names the argument
    ``name``.
    """
    if tensor.device.type == "meta":
        raise InvalidInput(f"{name} must hold numbers, got a meta tensor")
    dense = tensor.detach().cpu()
    if dense.layout != torch.strided or dense.is_quantized:
        raise InvalidInput(
            f"{name} must be a dense tensor, got a sparse or quantised one; use tensor.to_dense()"
        )
    try:
        array: AnyArray = (
            dense.float() if dense.dtype == torch.bfloat16 else dense.resolve_conj()
        ).numpy()
    except (TypeError, RuntimeError) as error:
        raise InvalidInput(f"{name} must hold numbers, got type {dense.dtype}: {error}") from None
    return array


def read_array(state: Arrays, name: str, like: AnyArray) -> AnyArray:
    """Return a copy of the array ``state[name]``, which was read from a file.

    Raise ``ValueError`` unless the array is finite and has the shape and type of ``like``.
    """
    array = state[name]
    if array.shape != like.shape or array.dtype != like.dtype:
        raise ValueError(
            f"{name} is {array.dtype} {array.shape}, expected {like.dtype} {like.shape}"
        )
    if not is_finite(array):
        raise ValueError(f"{name} has a NaN or infinite value")
    return array.copy()


def check_number(name: str, value: Any) -> float:
    """Return the value as a float, which may be NaN or infinite.

    Raise an error if it is not a number.
    """
    if isinstance(value, bool | str) or value is None:
        raise InvalidInput(f"{name} must be a number, got {value!r}")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(f"{name} must be a number, got {value!r}") from None


def check_memory(needed_bytes: float, cause: str) -> None:
    """Raise an error if this machine does not have ``needed_bytes`` of memory, before the system
    kills the process.

    ``cause`` names the arguments that determine the size, e.g. "n_arms=5 with 10 features".
    """
    available_bytes = _get_memory_bytes()
    needed = f"{needed_bytes / 2**30:,.1f} GiB"
    if needed_bytes > available_bytes:
        available = f"{available_bytes / 2**30:,.1f} GiB"
        raise InvalidInput(
            f"{cause} would need {needed} of memory, and this machine has {available}"
        )
    if needed_bytes > _max_bytes.get():
        raise InvalidInput(
            f"{cause} would need {needed} of memory, far more than the arrays of the file"
        )


#: The largest memory that ``check_memory`` allows, in bytes.
_max_bytes: ContextVar[float] = ContextVar("max_bytes", default=math.inf)


@contextmanager
def limit_memory(n_bytes: float) -> Iterator[None]:
    """Let ``check_memory`` raise an error above ``n_bytes`` in this block, in which objects are built
    from the settings in a file.
    """
    token = _max_bytes.set(n_bytes)
    try:
        yield
    finally:
        _max_bytes.reset(token)


@functools.cache
def _get_memory_bytes() -> float:
    """Return the machine's memory in bytes, or the memory limit of the container; 1 TiB if neither
    is known.
    """
    limits = [math.inf]
    with contextlib.suppress(AttributeError, ValueError, OSError):  # not on Windows
        limits.append(float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES"))
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # "max" is not a number
            limits.append(float(Path(path).read_text("utf-8")))
    return min(limits) if min(limits) < math.inf else 1 << 40


def to_floats(contexts: AnyArray) -> FloatArray:
    """Return contexts of any shape as float64.

    ``uint8`` contexts are images: they are scaled from 0..255 to [0, 1].

    ``to_unit_range`` in ``neural/encoders/_encoder.py`` does the same for tensors.
    """
    if contexts.dtype is _FLOAT64 and contexts.flags.c_contiguous:
        return contexts
    if contexts.dtype == np.uint8:
        return contexts / 255.0
    return np.ascontiguousarray(contexts, dtype=np.float64)


def is_finite(array: AnyArray) -> bool:
    """Return True if an array has no NaN and no infinite number."""
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def to_rows(contexts: AnyArray) -> FloatArray:
    """Return contexts (n, ...) as rows (n, d) of float64."""
    return to_floats(contexts if contexts.ndim == 2 else contexts.reshape(len(contexts), -1))


def take_chosen(table: AnyArray, arms: IntArray) -> AnyArray:
    """Return the entry of each row's arm, (n, ...), from a table (n, K, ...) and arms (n,)."""
    return table[np.arange(len(arms)), arms]


def drop_prefix(prefix: str, arrays: Mapping[str, AnyArray]) -> Arrays:
    """Return the arrays whose names start with ``prefix``, under their names without the prefix."""
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def add_prefix(prefix: str, arrays: Mapping[str, AnyArray]) -> Arrays:
    """Return the arrays under their names with a prefix. ``drop_prefix`` removes it."""
    return {f"{prefix}{name}": array for name, array in arrays.items()}


def count_processors() -> int:
    """Return the number of processors that this process may use. CPU affinity may limit it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def use_one_blas_thread() -> Iterator[None]:
    """Run numpy's matrix products without additional threads within this block.

    The limit holds for the whole process.

    OpenBLAS splits a product of a few thousand rows among threads, which then busy-wait for each
    other. On a loaded machine that takes many times as long as one thread. Without threadpoolctl,
    which comes with scikit-learn, nothing changes.
    """
    from threadpoolctl import threadpool_limits  # not a dependency of daband-serving

    with threadpool_limits(limits=1, user_api="blas"):
        yield


#: The largest absolute value of a reward. Squares of larger rewards would overflow in sums.
MAX_REWARD = 1e100
#: The largest weight of a round. With larger weights, the ridge penalty would be lost in double
#: precision.
MAX_WEIGHT = 1e9
#: The largest Euclidean norm of a context by default. A larger context would dominate all others in
#: a regression.
MAX_NORM = 1e7
#: The largest Euclidean norm of a context that a transform scales first. Squares of larger numbers
#: could overflow.
MAX_RAW_NORM = 1e60
#: Types of images and flags. Contexts of these types are always finite and never too large.
_BYTE_TYPES = (np.uint8, np.bool_)


class ContextRule(NamedTuple):
    """The contexts that a policy accepts."""

    #: The shape of one context, or of one context per arm.
    round_shape: Shape
    #: The number of values of one context.
    n_dimensions: int
    #: The largest Euclidean norm of a context.
    max_norm: float


def check_contexts(contexts: ArrayLike, rule: ContextRule) -> AnyArray:
    """Return contexts (B, *round_shape) as an array.

    Raise an error if one is too large or has a NaN or infinity.
    """
    round_shape, n_dimensions, max_norm = rule
    array = as_numpy(contexts, "contexts")
    if array.shape[1:] != round_shape:
        raise InvalidInput(
            f"contexts must have shape (B, {', '.join(map(str, round_shape))}), got {array.shape}"
        )
    if array.shape[0] == 0:
        raise InvalidInput("contexts must have at least one row, got an empty batch")
    if array.dtype not in _BYTE_TYPES:
        numbers = array if array.dtype.kind == "f" else array.astype(np.float64)
        # The largest number is enough to accept nearly every batch; NaN is not within any bound.
        if not float(np.abs(numbers).max()) <= max_norm / math.sqrt(n_dimensions):
            _check_magnitudes(numbers, n_dimensions, max_norm)
    return array


def _check_magnitudes(contexts: AnyArray, n_dimensions: int, max_norm: float) -> None:
    """Raise an error if a number is not finite, or if the norm of a context is above
    ``max_norm``.
    """
    if not np.isfinite(contexts).all():
        row = int(np.argwhere(~np.isfinite(contexts))[0][0])
        raise InvalidInput(f"contexts has a NaN or infinite value, first in row {row}")
    magnitudes = np.abs(contexts.reshape(-1, n_dimensions).astype(np.float64))
    largest_magnitudes = np.maximum(magnitudes.max(axis=1), 1e-300)
    with np.errstate(over="ignore"):
        norms = largest_magnitudes * np.sqrt(
            ((magnitudes / largest_magnitudes[:, None]) ** 2).sum(axis=1)
        )
    if norms.max() > max_norm:
        largest_index = int(np.argmax(norms))
        # with shared arms a row has a context per arm
        row = largest_index * len(contexts) // len(magnitudes)
        raise InvalidInput(
            f"contexts has a norm of {norms[largest_index]:g} in row {row}, but at most"
            f" {max_norm:g} is accepted; scale the features to similar sizes, or drop the row if it"
            " is a mistake"
        )


def check_arms(
    arms: ArrayLike, n: int, n_arms: int, to_row: Callable[[int], object] = int
) -> IntArray:
    """Return arms (n,) as int64. Raise an error unless each is an integer in 0..n_arms - 1.

    ``to_row(index)`` returns the row number that the error message states for an index.
    """
    array = as_numpy(arms, "arm")
    if array.shape != (n,):
        raise InvalidInput(f"arm must have shape ({n},), got {array.shape}")
    if array.dtype.kind not in "iu":
        raise InvalidInput(f"arm must hold integers, got {array.dtype}")
    indices: IntArray = array.astype(np.int64, copy=False)
    if n == 1 and 0 <= indices.item() < n_arms:  # a loop of single rounds needs no reductions
        return indices
    if indices.min() < 0 or indices.max() >= n_arms:
        index = int(np.argmax((indices < 0) | (indices >= n_arms)))
        raise InvalidInput(
            f"arm {int(indices[index])} in row {to_row(index)} is outside 0..{n_arms - 1}"
        )
    return indices


def check_rewards(
    rewards: ArrayLike, shape: tuple[int, ...], to_row: Callable[[int], object] = int
) -> FloatArray:
    """Return rewards as float64.

    Raise an error unless they have this shape and are in [-1e100, 1e100]. ``to_row`` is as in
    ``check_arms``.
    """
    array: FloatArray = as_numpy(rewards, "reward").astype(np.float64, copy=False)
    if array.shape != shape:
        raise InvalidInput(f"reward must have shape {shape}, got {array.shape}")
    # a loop of single rounds needs no reductions
    if array.size == 1 and abs(array.item()) <= MAX_REWARD:
        return array
    is_invalid = ~(np.abs(array) <= MAX_REWARD)  # NaN is outside every bound
    if is_invalid.any():
        row = to_row(int(np.argwhere(is_invalid)[0, 0]))
        raise InvalidInput(
            f"reward must be finite and at most {MAX_REWARD:g} in absolute value, but is not in row"
            f" {row}; drop rounds without a reward"
        )
    return array


def check_weights(
    weights: ArrayLike | None, n: int, to_row: Callable[[int], object] = int
) -> Weights:
    """Return the weights (n,) of rounds as float64. Raise an error unless they are in [0, 1e9].

    None stays None. ``to_row`` is as in ``check_arms``.
    """
    if weights is None:
        return None
    array: FloatArray = as_numpy(weights, "weights").astype(np.float64, copy=False)
    if array.shape != (n,):
        raise InvalidInput(f"weights must have shape ({n},), got {array.shape}")
    is_invalid = ~((array >= 0.0) & (array <= MAX_WEIGHT))
    if is_invalid.any():
        index = int(np.argmax(is_invalid))
        raise InvalidInput(
            f"weights must be in [0, {MAX_WEIGHT:g}], row {to_row(index)} has {array[index]:g}"
        )
    return array


#: Clusters that are integers must be below this number, so that floats represent them exactly.
_MAX_CLUSTER = 1 << 52


def check_clusters(clusters: ArrayLike | None, n: int) -> IntArray | None:
    """Return the clusters (n,) of rounds as integers above 0. None stays None.

    Clusters are integers or strings, e.g. the names of schools. They become hashes of 48 bits,
    unless they are integers above 0 already.
    """
    if clusters is None:
        return None
    values = np.asarray(clusters)
    if values.shape != (n,):
        raise InvalidInput(f"clusters must have shape ({n},), got {values.shape}")
    if values.dtype.kind in "iu" and (not n or (values.min() > 0 and values.max() < _MAX_CLUSTER)):
        return values.astype(np.int64)
    if values.dtype.kind not in "iuUOb" and not (values == np.floor(values)).all():
        raise InvalidInput(f"clusters must be integers or strings, got {values.dtype}")
    names, indices = np.unique(values.astype(str), return_inverse=True)
    digests = (hashlib.blake2b(name.encode(), digest_size=6).digest() for name in names)
    hashes = np.array([1 + int.from_bytes(digest, "big") for digest in digests], np.int64)
    return hashes[indices]


#: The smallest propensity of a chosen arm. A round with a smaller one would count as much as 10^12
#: others, and sums of squares of such weights are not finite.
MIN_PROPENSITY = 1e-12


def check_propensities(
    propensities: ArrayLike, n: int | None = None, to_row: Callable[[int], object] = int
) -> FloatArray:
    """Return propensities (n,) as float64. Raise an error unless each is in (0, 1], and at least
    ``MIN_PROPENSITY``.

    ``to_row`` is as in ``check_arms``.
    """
    array: FloatArray = as_numpy(propensities, "propensity").astype(np.float64, copy=False)
    if array.ndim != 1 or n not in (None, len(array)):
        raise InvalidInput(
            f"propensity must have shape ({'n' if n is None else n},), got {array.shape}"
        )
    is_invalid = ~((array >= MIN_PROPENSITY) & (array <= 1.0))  # NaN is outside every bound
    if is_invalid.any():
        index = int(np.argmax(is_invalid))
        remedy = (
            "divide percentages by 100"
            if array[index] > 1
            else f"drop such rounds: a chosen arm has at least {MIN_PROPENSITY:g}"
        )
        raise InvalidInput(
            f"propensity must be in (0, 1], row {to_row(index)} has {array[index]:g} ({remedy})"
        )
    return array
