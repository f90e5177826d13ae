"""Build pairs from a user's arrays (``from_arrays``), and define domains over arrays in memory."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from daband.base._arguments import check_class_names, check_int, check_one_of
from daband.base._arrays import (
    AnyArray,
    ArrayLike,
    FloatArray,
    IntArray,
    as_numpy,
    check_memory,
    is_finite,
)
from daband.domains._contract import About, Contexts, EvaluationDomain, Pair, RewardDomain
from daband.domains._mixtures import allow_several_domains
from daband.domains._splits import hold_out
from daband.errors import InvalidInput
from daband.features._shift import ShiftLike, as_shift


class ArrayContexts(Contexts):
    """Contexts in an array.

    Args:
        contexts: (n, *C), or (n, K, *C) with ``has_arm_axis=True``.
        has_arm_axis: True if there is a context per arm.
        name: name of the data in error messages.
    """

    def __init__(
        self,
        contexts: ArrayLike,
        *,
        has_arm_axis: bool = False,
        name: str = "contexts",
    ) -> None:
        self._contexts = _check_contexts(contexts, name, has_arm_axis)
        self.array_shape = self._contexts.shape
        self.context_shape = self.array_shape[2:] if has_arm_axis else self.array_shape[1:]

    def __len__(self) -> int:
        return len(self._contexts)

    def read(self, indices: IntArray) -> AnyArray:
        return self._contexts[indices]


class ArrayRewards(ArrayContexts, RewardDomain):
    """Contexts with the reward of every arm, in arrays.

    Args:
        contexts: contexts (n, *C), or (n, K, *C) with ``has_arm_axis=True``.
        rewards: labels (n,) or rewards (n, K).
        n_arms: number of arms; required with labels.
        expected: expected rewards (n, K) if ``rewards`` are noisy; by default ``rewards``.
        has_arm_axis: True if there is a context per arm.
        full_feedback: True if training learns the rewards of all arms.
        name: name of the data in error messages.
    """

    def __init__(
        self,
        contexts: ArrayLike,
        rewards: ArrayLike,
        *,
        n_arms: int | None = None,
        expected: ArrayLike | None = None,
        has_arm_axis: bool = False,
        full_feedback: bool = False,
        name: str = "source",
    ) -> None:
        super().__init__(contexts, has_arm_axis=has_arm_axis, name=f"{name} contexts")
        self.full_feedback = full_feedback
        self._rewards, self._labels = _check_rewards_or_labels(rewards, len(self), n_arms, name)
        self.n_arms = n_arms if self._rewards is None else self._rewards.shape[1]  # type: ignore[assignment]
        self._expected = (
            None
            if expected is None
            else _check_reward_table(expected, len(self), self.n_arms, f"{name} expected rewards")
        )

    @property
    def reward_table(self) -> FloatArray | None:
        """The rewards, (n, K); None if there are labels instead."""
        return self._rewards

    def read_rewards(self, indices: IntArray) -> tuple[FloatArray, FloatArray | None]:
        if self._rewards is None:
            assert self._labels is not None
            rewards = np.zeros((len(indices), self.n_arms))
            rewards[np.arange(len(indices)), self._labels[indices]] = 1.0
        else:
            rewards = self._rewards[indices]
        return rewards, rewards if self._expected is None else self._expected[indices]


def _set_n_arms(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with the largest number of arms of all sources as ``n_arms``, if it is
    None.

    A single source may lack the last arms.
    """
    sources = arguments["sources"]
    if arguments["n_arms"] is not None or not isinstance(sources, Mapping) or not sources:
        return arguments
    other_arguments = {name: arguments[name] for name in ("class_names", "arms")}
    arm_counts = [
        from_arrays(source=source, target=source[0], **other_arguments).n_arms
        for source in sources.values()
    ]
    return {**arguments, "n_arms": max(arm_counts)}


@allow_several_domains(mapped_fields=("target_test", "target_labelled"), prepare=_set_n_arms)
def from_arrays(
    *,
    source: tuple[ArrayLike, ArrayLike] | None = None,
    target: ArrayLike | None = None,
    sources: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
    targets: Mapping[str, ArrayLike] | None = None,
    target_test: Any = None,
    target_labelled: Any = None,
    source_test: Any = 0.1,
    n_arms: int | None = None,
    class_names: Sequence[str] | None = None,
    arms: str = "disjoint",
    feedback: str = "full",
    shift: ShiftLike = None,
    units: Sequence[int] | None = None,
    name: str = "arrays",
) -> Pair:
    """Return a pair made from arrays: ``from_arrays(source=(x, y), target=x_t)``.

    With several sources or targets: ``from_arrays(sources={"de": (x, y), "fr": (x, y)},
    targets={"pl": x_t})``.

    Args:
        source: contexts (n, *C), and either labels (n,) of integers (the arm equal to the label has
            reward 1, every other arm 0), or a table of rewards (n, K).
        target: contexts of the target, (m, *C). Training sees these and nothing else of the target.
        sources: several sources by name, instead of ``source``. ``source_test`` is then a fraction,
            or a mapping with a tuple for each name.
        targets: several targets by name, instead of ``target``. ``target_test`` and
            ``target_labelled`` are then mappings with a tuple for each name.
        target_test: target contexts and labels or expected rewards that only the evaluator sees, or
            None. A pair without them can be used for training, but not evaluated.
        target_labelled: target contexts with rewards for continued training after deployment.
        source_test: source rounds that training does not use: a tuple of contexts and labels or
            rewards; the fraction of ``source`` to hold out (a fixed random split of each class); or
            None.
        n_arms: the number of arms; by default one more than the largest source label, or the
            table's number of columns.
        class_names: a name per arm; by default "0", "1" and so on.
        arms: "disjoint" (one context per round) or "shared" (one context per arm: contexts are (n,
            K, *C)).
        feedback: "full" if training learns the rewards of all arms of each source context. "bandit"
            if it plays rounds, and learns only the reward of the arm that it chose, as in the
            paper. Use "full" to get the best policy, and "bandit" only to compare bandit methods.
        shift: what may differ between the domains: "covariate", "units", "style", "labels", or
            several (see ``daband.features._shift``); by default "style" for images and "covariate" for
            vectors.
        units: the indices of context features that are in other units in the target; implies
            ``shift="units"``.
        name: the pair's name in reports; the random split of held-out rounds depends on it.

    Contexts are not copied, because they may be large. If you change such an array afterwards, the
    pair changes, and is not checked again. Labels and rewards are copied.

    >>> pair = daband.domains.from_arrays(source=([[0.0, 1.0], [1.0, 0.0]] * 20, [0, 1] * 20), target=[[0.2, 0.9]] * 30)
    >>> pair.n_arms, len(pair.source), len(pair.source_test), len(pair.target), pair.target_test
    (2, 36, 4, 30, None)
    """
    if source is None or target is None:
        raise InvalidInput(
            "from_arrays needs source=(contexts, labels or rewards) and target=contexts"
        )
    check_one_of("arms", arms, ("disjoint", "shared"))
    check_one_of("feedback", feedback, ("full", "bandit"))
    tuple_arguments = {
        "source": source,
        "target_test": target_test,
        "target_labelled": target_labelled,
    }
    if not isinstance(source_test, Real):
        tuple_arguments["source_test"] = source_test
    for argument, value in tuple_arguments.items():
        if value is not None and not (isinstance(value, tuple) and len(value) == 2):
            raise InvalidInput(
                f"{argument} must be a tuple (contexts, labels or rewards), got"
                f" {type(value).__name__}"
            )
    outcomes = _as_rewards_or_labels(source[1], "source")
    if n_arms is not None:
        n_arms = check_n_arms(n_arms, n_rows=outcomes.size)
    elif outcomes.ndim == 2:
        n_arms = outcomes.shape[1]
    else:  # ArrayRewards rejects invalid labels
        n_arms = int(outcomes.max()) + 1 if outcomes.size and outcomes.dtype.kind in "biu" else 0
        check_memory(_count_reward_bytes(n_arms, outcomes.size), f"labels up to {n_arms - 1}")
        if n_arms > 2 and outcomes.min() == 1:
            warnings.warn(
                f"no label is 0: arms are 0 to {n_arms - 1}, and arm 0 is never right. Subtract 1"
                " if labels start at 1; otherwise set n_arms",
                stacklevel=3,
            )
    has_arm_axis = arms == "shared"
    full_source = ArrayRewards(
        *source,
        n_arms=n_arms,
        has_arm_axis=has_arm_axis,
        full_feedback=feedback == "full",
    )
    fields = build_fields(
        full_source,
        target,
        has_arm_axis=has_arm_axis,
        target_test=target_test,
        target_labelled=target_labelled,
        source_test=source_test if isinstance(source_test, tuple) else None,
    )
    fields["source"] = full_source
    if "source_test" not in fields:
        fields["source"], fields["source_test"] = hold_out(
            full_source, fraction=source_test, name=name
        )
    labelled_target = fields.get("target_labelled")
    has_only_labels = outcomes.ndim == 1 and (
        labelled_target is None or labelled_target.reward_table is None
    )
    return Pair(
        name=name,
        context_shape=full_source.context_shape,
        n_arms=n_arms,
        class_names=check_class_names(class_names, n_arms),
        **fields,
        arms=arms,
        feedback="one_hot" if has_only_labels else "bandit",
        about=About(summary="arrays given by the user", licence="the user's own"),
        shift=as_shift(shift, context_shape=full_source.context_shape, units=units),
    )


def build_fields(
    source: Any, target: ArrayLike, *, has_arm_axis: bool, **rewarded: Any
) -> dict[str, Any]:
    """Return the field ``target`` of a pair with this source, and the fields ``rewarded``.

    The latter are tuples of contexts and labels or rewards, or None.
    """
    options: dict[str, Any] = {"has_arm_axis": has_arm_axis}
    fields: dict[str, Any] = {"target": ArrayContexts(target, name="target", **options)}
    for name, data in rewarded.items():
        if data is not None:
            fields[name] = ArrayRewards(*data, n_arms=source.n_arms, name=name, **options)
    all_fields = {"source": source, **fields} if isinstance(source, ArrayRewards) else fields
    for name, domain in all_fields.items():
        if domain.context_shape != source.context_shape:
            raise InvalidInput(
                f"{name} contexts have shape {domain.context_shape}, but source contexts"
                f" {source.context_shape}"
            )
        if has_arm_axis and domain.array_shape[1] != source.n_arms:
            raise InvalidInput(
                f"shared arms need {name} contexts (n, {source.n_arms}, *C), got"
                f" {domain.array_shape}"
            )
    for name in {"source_test", "target_test"} & fields.keys():
        fields[name] = EvaluationDomain(fields[name])
    return fields


def check_n_arms(n_arms: int, *, n_rows: int) -> int:
    """Return the number of arms. Raise an error if the memory is too small for their rewards."""
    n_arms = check_int("n_arms", n_arms, minimum=1)
    check_memory(_count_reward_bytes(n_arms, n_rows), f"n_arms={n_arms}")
    return n_arms


def _count_reward_bytes(n_arms: int, n_rows: int) -> float:
    """Return the number of bytes of the rewards of a block of at most 4,096 rounds."""
    return 8.0 * n_arms * min(n_rows, 4096)


def _check_contexts(contexts: ArrayLike, name: str, has_arm_axis: bool) -> AnyArray:
    """Return contexts as an array. Raise an error for a wrong shape or a value that is not
    finite.
    """
    array = as_numpy(contexts, name)
    min_dimensions, expected_shape = (3, "(n, K, *C)") if has_arm_axis else (2, "(n, *C)")
    if array.ndim < min_dimensions:
        raise InvalidInput(f"{name} must have shape {expected_shape}, got {array.shape}")
    if len(array) == 0:
        raise InvalidInput(f"{name} must have at least one row, got shape {array.shape}")
    if not is_finite(array):
        row = int(np.argwhere(~np.isfinite(array))[0][0])
        raise InvalidInput(f"{name} has a NaN or infinite value, first in row {row}")
    return array


def _check_reward_table(rewards: ArrayLike, n: int, n_arms: int | None, name: str) -> FloatArray:
    """Return rewards (n, K). Raise an error for a wrong shape or a value that is not finite."""
    array = as_numpy(rewards, name).astype(np.float64)
    if array.ndim != 2 or len(array) != n or array.shape[1] < 1:
        raise InvalidInput(f"{name} must have shape ({n}, K), got {array.shape}")
    if array.shape[1] != (n_arms or array.shape[1]):
        raise InvalidInput(f"{name} are for {array.shape[1]} arms, expected {n_arms}")
    if not np.isfinite(array).all():
        raise InvalidInput(f"{name} has a NaN or infinite value")
    return array


def _as_rewards_or_labels(outcomes: ArrayLike, name: str) -> AnyArray:
    """Return labels (n,) or rewards (n, K) as an array. Raise an error for names instead of labels.

    Integers (n, 1) are labels, because a bandit has at least two arms.
    """
    if hasattr(outcomes, "to_numpy"):  # a column or a frame
        outcomes = outcomes.to_numpy()
    first_value: Any = outcomes
    while (
        isinstance(first_value, Sequence | np.ndarray)
        and not isinstance(first_value, str)
        and len(first_value)
    ):
        first_value = first_value[0]
    if isinstance(first_value, str):
        raise InvalidInput(
            f"{name} labels must be integers, got names such as {str(first_value)!r}; convert them"
            " with names, labels = numpy.unique(labels, return_inverse=True) and"
            " class_names=names, or use from_table"
        )
    array = as_numpy(outcomes, f"{name} rewards")
    if array.ndim != 2 or array.shape[1] != 1:
        return array
    if array.dtype.kind == "f":
        raise InvalidInput(
            f"{name} rewards have one column, but a bandit has at least two arms; pass a column per"
            " arm, or labels as integers (n,)"
        )
    return array[:, 0]


def _check_rewards_or_labels(
    rewards: ArrayLike, n: int, n_arms: int | None, name: str
) -> tuple[FloatArray | None, IntArray | None]:
    """Return rewards (n, K) and None, or None and labels (n,). Raise an error if they are
    invalid.
    """
    array = _as_rewards_or_labels(rewards, name)
    if array.ndim == 2:
        return _check_reward_table(array, n, n_arms, f"{name} rewards"), None
    if array.shape != (n,):
        raise InvalidInput(
            f"{name} needs labels ({n},) or rewards ({n}, K) for its {n} contexts, got"
            f" {array.shape}"
        )
    if array.dtype.kind not in "biu":
        raise InvalidInput(
            f"{name} labels must be integers, got {array.dtype}; a table of rewards has shape"
            f" ({n}, K)"
        )
    if n_arms is None:
        raise InvalidInput(f"{name} has labels, so n_arms must be given")
    labels = array.astype(np.int64)
    if labels.min() < 0 or labels.max() >= n_arms:
        bad_label = int(labels.min()) if labels.min() < 0 else int(labels.max())
        raise InvalidInput(f"{name} has label {bad_label}, outside 0..{n_arms - 1}")
    return None, labels
