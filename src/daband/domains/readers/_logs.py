"""Build pairs whose source is a log, with the contexts, arms and rewards of another policy
(``from_log``).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from daband.base._arguments import check_class_names, check_int, check_one_of
from daband.base._arrays import (
    ArrayLike,
    IntArray,
    as_numpy,
)
from daband.domains._contract import About, LoggedDomain, Pair
from daband.domains._mixtures import allow_several_domains
from daband.domains._splits import hold_out
from daband.domains.readers._arrays import (
    ArrayContexts,
    build_fields,
    check_n_arms,
)
from daband.domains.readers._columns import read_catalogue
from daband.domains.readers._parquet_log import ParquetLog
from daband.domains.readers._reading import compute_digests
from daband.errors import InvalidInput
from daband.features._costs import ArmCosts
from daband.features._shift import ShiftLike, as_shift
from daband.linear._propensities import estimate_propensities
from daband.rounds._rounds import Rounds, make_rounds

#: The columns of a log that is given as a tuple.
_TUPLE_COLUMNS = ("contexts", "arms", "rewards", "propensities", "offered", "guardrail")


class ArrayLog(ArrayContexts, LoggedDomain):
    """A log in arrays.

    If there are no propensities, they are estimated from the log. The attribute
    ``propensity_method`` then describes the method in a phrase for messages, and is empty
    otherwise.

    Args:
        log: the rounds, or a tuple of contexts, arms, rewards, propensities, offered arms and a
            guardrail, as in ``from_log``.
        n_arms: the number of arms, K.
        clusters: the cluster of each round, (n,), as integers or strings; by default those of the
            log, or none.
        costs: the costs of arms, which are subtracted from rewards.
        name: name of the data in error messages.
    """

    def __init__(
        self,
        log: Rounds | tuple[Any, ...],
        *,
        n_arms: int,
        clusters: ArrayLike | None = None,
        costs: ArmCosts | None = None,
        name: str = "source",
    ) -> None:
        self.n_arms = check_int("n_arms", n_arms, minimum=1)
        columns = (
            vars(log) if isinstance(log, Rounds) else dict(zip(_TUPLE_COLUMNS, log, strict=False))
        )
        super().__init__(columns["contexts"], name=f"{name} contexts")
        arms = as_numpy(columns["arms"], f"{name} arms")
        columns = columns | {
            "contexts": self._contexts,
            "arms": arms.astype(np.int64) if arms.dtype == np.bool_ else arms,
            "clusters": columns.get("clusters") if clusters is None else clusters,
        }
        self.propensity_method = ""
        try:
            rounds = make_rounds(**columns, n_arms=n_arms)
        except InvalidInput as error:
            raise InvalidInput(f"{name}: {error}") from None
        if costs is not None:
            rounds = replace(rounds, rewards=rounds.rewards - np.array(costs.means)[rounds.arms])
        if rounds.propensities is None:
            estimates, self.propensity_method = estimate_propensities(
                self._contexts, rounds.arms, n_arms, rounds.offered
            )
            rounds = replace(rounds, propensities=estimates)
        self._rounds = rounds

    def read_rounds(self, indices: IntArray) -> Rounds:
        return self._rounds.select(indices)


@allow_several_domains(mapped_fields=("target_test", "target_labelled"))
def from_log(
    *,
    source: tuple[ArrayLike, ...] | Rounds | str | Path | ParquetLog | None = None,
    target: ArrayLike | None = None,
    sources: Mapping[str, tuple[ArrayLike, ...] | Rounds | str | Path | ParquetLog] | None = None,
    targets: Mapping[str, ArrayLike] | None = None,
    target_test: Any = None,
    target_labelled: Any = None,
    source_test: Any = "auto",
    clusters: ArrayLike | None = None,
    n_arms: int | None = None,
    class_names: Sequence[str] | None = None,
    arms: Any = None,
    costs: Mapping[str, float | str] | None = None,
    feedback: str = "bandit",
    shift: ShiftLike = None,
    units: Sequence[int] | None = None,
    name: str = "log",
) -> Pair:
    """Return a pair whose source is a log of another policy: ``from_log(source=log, target=x_t,
    n_arms=5)``.

    Args:
        source: a tuple of contexts (n, *C), arms (n,) of integers, rewards (n,) and propensities
            (n,) in (0, 1]; or a folder or a glob of Parquet files (a
            ``ParquetLog`` if columns have
            other names), which are read into memory. If propensities are None or the tuple has
            three elements, propensities are estimated, with a warning that describes the method. An
            optional fifth element is a boolean mask (n, K) of the arms that could be chosen, or
            None, and a sixth a ``daband.domains.Guardrail``.
        target: contexts of the target, (m, *C); training sees these and nothing else of the target.
        sources: several logs by name, instead of ``source``.
        targets: several targets by name, instead of ``target``; the other target arguments are then
            mappings.
        target_test: contexts and labels (t,) or rewards (t, K) that only the evaluator sees, or
            None.
        target_labelled: target contexts with labels or rewards, for continued training.
        source_test: logged rounds that training does not use, as ``source``, or the fraction of
            ``source`` to hold out (a fixed split by arm), or None. With "auto", a tenth is held out
            for images, feedback "one_hot", arms with features and arms with contexts. Otherwise all
            rounds are learned, because a ``LogPolicy`` is assessed on the rounds that it learns, by
            cross-fitting.
        clusters: the cluster of each round of ``source``, (n,), as integers or strings, e.g. its
            school or customer, if arms were drawn for clusters. Standard errors are then by
            cluster. For Parquet files use ``Columns(cluster=...)``.
        n_arms: the number of arms; it cannot be inferred from a log, because an arm may never have
            been chosen. It is not needed with ``arms``.
        class_names: a name per arm; by default "0", "1" and so on.
        arms: a table of arms with features, as in ``from_table``, or features (K, m). The arms of
            the log are the row numbers in it. If there is a table per domain, source arms come
            first, then new target arms.
        costs: the cost of arms, by the names in ``class_names``, in the unit of the rewards:
            {"coupon": 2.0}. They are subtracted from the rewards of ``source`` and
            ``source_test``; ``target_test`` has net rewards. For Parquet files, a cost may be a
            column.
        feedback: "one_hot" if exactly one arm has reward 1 and all others 0 for each context,
            without noise. A reward of 1 then reveals the rewards of all arms. Otherwise "bandit".
        shift: what may differ between the domains: "covariate", "units", "style", "labels", or
            several (see ``daband.features._shift``); by default "style" for images and "covariate" for
            vectors.
        units: the indices of context features that are in other units in the target; implies
            ``shift="units"``.
        name: the pair's name in reports; the random split of held-out rounds depends on it.

    Context arrays are not copied. If you change one afterwards, the pair changes, and is not
    checked again.

    >>> contexts, arms, rewards = [[0.0, 1.0]] * 20, [0, 1] * 10, [0.0, 1.0] * 10
    >>> log = (contexts, arms, rewards, [0.5] * 20)
    >>> pair = daband.domains.from_log(source=log, target=[[0.0, 2.0]] * 20, n_arms=2)
    >>> pair.n_arms
    2
    """
    if source is None or target is None:
        raise InvalidInput(
            "from_log needs source=(contexts, arms, rewards, propensities) and target=contexts"
        )
    check_one_of("feedback", feedback, ("bandit", "one_hot"))
    catalogue = None if arms is None else read_catalogue(arms, "", names=class_names)
    if catalogue is not None:
        class_names = catalogue.names
        n_arms = len(catalogue.names) if n_arms is None else n_arms
        if n_arms != len(catalogue.names):
            raise InvalidInput(f"arms has {len(catalogue.names)} arms, but n_arms is {n_arms}")
    elif n_arms is None:
        raise InvalidInput("from_log needs n_arms, the number of arms, or arms, a table of them")
    arm_costs = None
    if costs:
        arm_costs = ArmCosts.parse(costs, check_class_names(class_names, n_arms))
    open_any = partial(_open_log, n_arms=n_arms, costs=arm_costs)
    log = open_any(source, "source", clusters=clusters)
    n_arms = check_n_arms(n_arms, n_rows=len(log))
    played_arms, _, propensities = log.read_log(np.arange(len(log)))
    if (propensities == 1.0).all() and (played_arms != played_arms[0]).any():
        raise InvalidInput(
            "source: propensities are 1 in all rounds, although several arms were chosen; give the"
            " probability with which each arm was drawn. If arms were not randomised, omit the"
            " propensities (--drop COLUMN): they are then estimated, and results hold only if the"
            " contexts explain the choice of arms"
        )
    for text in log.describe_repeated_ids() if isinstance(log, ParquetLog) else ():
        warnings.warn(text, stacklevel=3)
    training_log: LoggedDomain = log
    held_out_log: LoggedDomain | None
    has_arm_axis = isinstance(log, ParquetLog) and log.shared
    if isinstance(source_test, str) and source_test == AUTO:
        # the policy of a log of vectors is assessed by cross-fitting
        is_simple = feedback == "bandit" and not has_arm_axis and catalogue is None
        source_test = None if len(log.context_shape) == 1 and is_simple else AUTO_FRACTION
    if isinstance(source_test, tuple | str | Path | ParquetLog | Rounds):
        held_out_log = open_any(source_test, "source_test")
        if held_out_log.context_shape != log.context_shape:
            raise InvalidInput(
                f"source_test contexts have shape {held_out_log.context_shape}, not"
                f" {log.context_shape}"
            )
    else:
        training_log, held_out_log = hold_out(log, fraction=source_test, name=name)
    if isinstance(log, ParquetLog):
        training_log.log_parts = frozenset(compute_digests(log.parts()).values())
    target_fields = build_fields(
        log,
        target,
        has_arm_axis=has_arm_axis,
        target_test=target_test,
        target_labelled=target_labelled,
    )
    return Pair(
        name=name,
        context_shape=log.context_shape,
        n_arms=n_arms,
        class_names=check_class_names(class_names, n_arms),
        source=training_log,
        source_test=held_out_log,
        **target_fields,
        arms="shared" if has_arm_axis else "disjoint",
        feedback=feedback,
        about=About(summary="a log given by the user", licence="the user's own"),
        catalogue=catalogue,
        costs=log.costs if isinstance(log, ParquetLog) else arm_costs,
        shift=as_shift(shift, context_shape=log.context_shape, units=units),
    )


#: The value of ``source_test`` with which the kind of data determines the held-out fraction.
AUTO = "auto"
#: The fraction of a source that is held out by default, if it is held out at all.
AUTO_FRACTION = 0.1


def _open_log(
    log: tuple[ArrayLike, ...] | Rounds | str | Path | ParquetLog,
    argument: str,
    *,
    n_arms: int,
    costs: ArmCosts | None,
    clusters: ArrayLike | None = None,
) -> ArrayLog | ParquetLog:
    """Return a log from arrays or files. ``argument`` is its name in error messages."""
    if clusters is not None and not isinstance(log, tuple | Rounds):
        raise InvalidInput(
            "clusters can only be given for a log in arrays; for files, name the column:"
            " ParquetLog(..., columns=daband.domains.Columns(cluster=...))"
        )
    if isinstance(log, ParquetLog):
        if costs is not None:
            raise InvalidInput("costs must be given to the log: ParquetLog(..., costs=...)")
        return log
    if isinstance(log, str | Path):
        return ParquetLog(log, n_arms=n_arms, costs=costs)
    if costs is not None and costs.column_names:
        raise InvalidInput(f"costs of a log in arrays must be numbers, got {costs.column_names}")
    if not isinstance(log, Rounds) and not (
        isinstance(log, tuple) and 3 <= len(log) <= len(_TUPLE_COLUMNS)
    ):
        raise InvalidInput(
            f"{argument} must be a tuple of contexts, arms, rewards (and propensities, offered"
            " arms)"
        )
    array_log = ArrayLog(log, n_arms=n_arms, clusters=clusters, costs=costs, name=argument)
    if array_log.propensity_method:
        warn_estimated_propensities(array_log.propensity_method, stacklevel=4)
    return array_log


def warn_estimated_propensities(method: str, *, stacklevel: int) -> None:
    """Warn that the propensities of a log are estimated by this method."""
    warnings.warn(
        f"the log has no propensities; they are {method}. Results that depend on them are only as"
        " good as this model of the logging policy. If you know the propensities, add them as a"
        " column",
        stacklevel=stacklevel,
    )
