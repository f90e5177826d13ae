"""Logged bandit feedback as a source: what another policy saw, did and got."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path

import numpy as np

from daband.arguments import share, whole
from daband.arrays import AnyArray, ArrayLike, FloatArray, IntArray, as_numpy
from daband.domains.contract import LoggedDomain, Pair, RewardRange
from daband.domains.readers.arrays import ArrayContexts, ArraySource, from_arrays, payable, resolve_reward_range
from daband.domains.readers.parquet_log import ParquetLog
from daband.domains.subsets import hold_out_log
from daband.errors import InvalidInput
from daband.shift import ShiftLike

__all__ = ["ArrayLog", "from_log", "log_reward_range"]


class ArrayLog(LoggedDomain):
    """Contexts (n, *C) with the arms that were pulled, their rewards and with which probability, each (n,)."""

    def __init__(
        self,
        contexts: ArrayLike,
        arms: ArrayLike,
        rewards: ArrayLike,
        propensities: ArrayLike,
        *,
        n_arms: int,
        passes: int = 1,
        name: str = "source",
    ) -> None:
        self.n_arms = whole("n_arms", n_arms, least=1)
        self._contexts = ArrayContexts(contexts, passes=passes, name=f"{name} contexts")
        self._arms = _column(arms, len(self._contexts), f"{name} arms")
        if self._arms.dtype.kind not in "biu":
            raise InvalidInput(f"{name} arms must be integers, got {self._arms.dtype}")
        self._arms = self._arms.astype(np.int64)
        if self._arms.min() < 0 or self._arms.max() >= n_arms:
            raise InvalidInput(f"{name} arms must lie in 0..{n_arms - 1}, got {self._arms.min()}..{self._arms.max()}")
        self._rewards = _column(rewards, len(self._contexts), f"{name} rewards").astype(np.float64)
        self._propensities = _column(propensities, len(self._contexts), f"{name} propensities").astype(np.float64)
        wrong = np.flatnonzero(~((self._propensities > 0) & (self._propensities <= 1)))
        if len(wrong):
            raise InvalidInput(f"propensities lie in (0, 1], row {wrong[0]} has {self._propensities[wrong[0]]}")
        self.context_shape = self._contexts.context_shape
        self.passes = self._contexts.passes

    def __len__(self) -> int:
        return len(self._contexts)

    def read(self, indices: IntArray) -> AnyArray:
        return self._contexts.read(indices)

    def read_log(self, indices: IntArray) -> tuple[IntArray, FloatArray, FloatArray]:
        return self._arms[indices], self._rewards[indices], self._propensities[indices]


def from_log(
    *,
    source: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike] | str | Path | ParquetLog,
    target: ArrayLike,
    target_test: tuple[ArrayLike, ArrayLike] | None = None,
    target_labelled: tuple[ArrayLike, ArrayLike] | None = None,
    source_test: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike] | str | Path | ParquetLog | float | None = 0.1,
    n_arms: int,
    class_names: Sequence[str] | None = None,
    feedback: str = "bandit",
    reward_range: RewardRange | None = None,
    passes: int = 1,
    target_passes: int | None = None,
    shift: ShiftLike = None,
    units: Sequence[int] | None = None,
    name: str = "log",
) -> Pair:
    """A pair whose source is a log of another policy's rounds: ``from_log(source=log, target=x_t, n_arms=5)``.

    Args:
        source: contexts (n, *C), arms (n,) of integers, rewards (n,), propensities (n,) in (0, 1]; or a folder or a
            glob of Parquet files (a ``ParquetLog`` where columns have other names), which may be larger than memory.
        target: contexts of the target, (m, *C); training sees these and nothing else of the target.
        target_test: contexts and labels (t,) or rewards (t, K) that only the evaluator sees, or None.
        target_labelled: target contexts with labels or rewards, for continued training.
        source_test: logged rounds that training does not use, as ``source``, or the share of ``source`` to hold out (a
            fixed split by arm; of Parquet files no share can be held out, name other files), or None.
        n_arms: the number of arms; it cannot be told from a log, in which an arm may never have been pulled.
        class_names: a name per arm; by default "0", "1", ...
        feedback: "one_hot" where a reward of 1 in the log means that every other arm would have paid 0, else "bandit".
        reward_range: the smallest and largest reward, or "auto"; by default (0, 1) for a log within it, else "auto".
        passes: how many times each source context may be shown.
        target_passes: how many times each target context may be shown; by default as ``passes``.
        shift: what may differ between the domains: "covariate", "units", "style", "labels", or several (see
            ``daband.shift``); by default "style" for images and "covariate" for vectors.
        units: the numbers of a context in other units in the target, by position; implies ``shift="units"``.
        name: what reports call the pair; it also fixes which rounds are held out.

    Contexts are not copied: whoever changes such an array afterwards changes the pair, past the checks made here.

    >>> contexts, arms, rewards = [[0.0, 1.0]] * 20, [0, 1] * 10, [0.0, 1.0] * 10
    >>> log = (contexts, arms, rewards, [0.5] * 20)
    >>> pair = daband.domains.from_log(source=log, target=[[0.0, 2.0]] * 20, n_arms=2)
    >>> pair.n_arms
    2
    """
    if feedback not in ("bandit", "one_hot"):
        raise InvalidInput(f"feedback must be 'bandit' or 'one_hot', got {feedback!r}")
    if isinstance(source, str | Path | ParquetLog):
        files = source if isinstance(source, ParquetLog) else ParquetLog(source, n_arms=n_arms, passes=passes)
        if isinstance(source_test, Real) and source_test != 0.1:
            raise InvalidInput(f"source_test={source_test} cannot be held out of Parquet files; name other files")
        beside = None if isinstance(source_test, Real) else source_test
        first = next(files.batches(files.parts()[0]))
        pair = from_log(
            source=(first.contexts, first.arms, first.rewards, first.propensities),
            source_test=ParquetLog(beside, n_arms=n_arms) if isinstance(beside, str | Path) else beside,
            target=target,
            target_test=target_test,
            target_labelled=target_labelled,
            n_arms=n_arms,
            class_names=class_names,
            feedback=feedback,
            reward_range=reward_range,
            passes=passes,
            target_passes=target_passes,
            shift=shift,
            units=units,
            name=name,
        )
        return replace(pair, source=files)
    for argument, value in (("source", source), ("source_test", source_test)):
        if not (isinstance(value, tuple) and len(value) == 4) and (argument == "source" or isinstance(value, tuple)):
            raise InvalidInput(f"{argument} must be a tuple (contexts, arms, rewards, propensities)")
    log = ArrayLog(*source, n_arms=n_arms, passes=passes)
    train: LoggedDomain = log
    held: LoggedDomain | None
    if isinstance(source_test, tuple | ParquetLog):
        held = (
            source_test
            if isinstance(source_test, ParquetLog)
            else ArrayLog(*source_test, n_arms=n_arms, name="source_test")
        )
        if held.context_shape != log.context_shape:
            raise InvalidInput(f"source_test contexts have shape {held.context_shape}, source's {log.context_shape}")
    else:
        assert not isinstance(source_test, str | Path)
        part = 0.0 if source_test is None else share("source_test", source_test)
        train, held = hold_out_log(log, share=part, name=name)
    logged = log.read_log(np.arange(len(log)))[1]
    checked = from_arrays(  # checks everything else; its source is then replaced
        source=(source[0], np.zeros((len(log), n_arms))),
        source_test=None,
        target=target,
        target_test=target_test,
        target_labelled=target_labelled,
        n_arms=n_arms,
        class_names=class_names,
        reward_range="auto",
        passes=passes,
        target_passes=target_passes,
        shift=shift,
        units=units,
        name=name,
    )
    later = checked.target_labelled
    known = payable(later.reward_table) if isinstance(later, ArraySource) else None
    low_high = log_reward_range(reward_range, logged, known)
    return replace(checked, source=train, source_test=held, feedback=feedback, reward_range=low_high)


def log_reward_range(
    given: RewardRange | None,
    logged: FloatArray,
    target_labelled: FloatArray | None,
    *,
    labelled_name: str = "target_labelled",
) -> RewardRange:
    """The range of a pair whose source is a log: as given, else (0, 1) where the log lies within it, else "auto"."""
    if given is None and not (logged.min() >= 0.0 and logged.max() <= 1.0):
        given = "auto"
    return resolve_reward_range(given, logged, target_labelled, labelled_name=labelled_name)


def _column(values: ArrayLike, n: int, name: str) -> AnyArray:
    array = as_numpy(values, name)
    if array.shape != (n,):
        raise InvalidInput(f"{name} must have shape ({n},), got {array.shape}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InvalidInput(
            f"{name} has a missing or infinite value, first in row {np.flatnonzero(~np.isfinite(array))[0]}"
        )
    return array
