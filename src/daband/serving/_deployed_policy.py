"""Load a policy from an exported file, and decide with it.

``load_deployed`` reads the file and returns a ``DeployedPolicy``. Its method ``decide`` returns a
``DeployedDecision``. A deployed policy never changes, so threads may share it.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from daband.base._arguments import check_available, check_fraction, check_int
from daband.base._arrays import AnyArray, BoolArray, FloatArray, IntArray, Shape
from daband.base._tensor_files import FileFormat, read_tensor_file
from daband.errors import CheckpointError, InvalidInput, did_you_mean
from daband.features._costs import ArmCosts
from daband.features._row_reader import ImageRule, ReadRows, RowReader
from daband.serving._frozen_policy import FrozenPolicy, load_frozen
from daband.serving._limits import Limit, Limiter
from daband.serving._monitor import Monitor, Reference

#: The version of the file format that is written and read.
EXPORT_VERSION = 10
#: The largest ``round_number``, which must fit in 64 bits.
_MAX_ROUND_NUMBER = (1 << 63) - 1
#: Maximum number of arms in one request.
_MAX_ARMS = 1000
#: Fields that the header of a file must have.
_REQUIRED_FIELDS = (
    "arms",
    "assessment",
    "domain",
    "images",
    "incumbent",
    "policy",
    "reference",
    "scaling",
    "table",
    "versions",
)
#: The format of exported files.
FORMAT = FileFormat(
    name="daband-deployed",
    description=(
        "a policy exported by daband (daband.export writes one; daband.load reads what policy.save"
        " wrote)"
    ),
    version=EXPORT_VERSION,
    remedy="export it again",
    required_keys=_REQUIRED_FIELDS,
)


class DeployedDecision(NamedTuple):
    """The result of ``decide``.

    For a batch of n rows, fields are arrays (n, ...) or tuples of length n.
    """

    #: The chosen arm, 0..K-1.
    arm: int | IntArray
    #: The name of the chosen arm.
    arm_name: str | tuple[str, ...]
    #: The probability with which this arm was chosen.
    propensity: float | FloatArray
    #: Predicted rewards of all arms, (K,), in the user's units.
    mean: FloatArray
    #: Confidence bonuses, (K,), in the user's units, before they are multiplied by ``alpha``.
    bonus: FloatArray
    #: A ``RowWarning`` for each unusual value of the row.
    warnings: tuple[Any, ...]
    #: The context that the row was converted to.
    context: AnyArray
    #: The probability that a row is in the control group.
    control: float | FloatArray
    #: True if the row is in the control group, in which the incumbent is chosen.
    in_control: bool | BoolArray


@dataclass(frozen=True, repr=False)
class DeployedPolicy:
    """An exported policy, as ``daband.load_deployed("market.daband")`` returns it.

    It never changes, except for the counts of its limits.
    """

    #: The arrays from which decisions are computed.
    frozen: FrozenPolicy = field(compare=False)
    #: The names of the arms, (K,).
    arm_names: tuple[str, ...]
    #: The names of the features of a context, (d,), or empty.
    feature_names: tuple[str, ...]
    #: The assessment of the policy in the target when it was exported.
    assessment: Mapping[str, Any] | None
    #: The versions of Python, daband and numpy at export, and the version of the policy.
    versions: Mapping[str, str]
    #: Digests that identify the log parts that the policy had learned (``Policy.log_parts``).
    log_parts: frozenset[str]
    #: The arm that was always chosen before the policy was deployed; None if it is not known.
    incumbent: int | None
    #: The costs of arms, which readers of logs subtract from rewards; None without costs.
    costs: ArmCosts | None
    #: Keeps the limits of the file and counts the use of arms; None without limits.
    limiter: Limiter | None = field(compare=False)
    #: The reader that converts rows to contexts.
    reader: RowReader = field(compare=False)
    #: Counts of reference contexts for the monitor; None if the file has none.
    reference: Reference | None = field(compare=False)
    #: The settings of the pilot: ``control``, the probability of the incumbent, ``rounds``, the
    #: number of rounds for which it is meant, and the ``rule``; None if the file is not for a pilot.
    pilot: Mapping[str, Any] | None

    #: The result of ``FrozenPolicy.summarise_exploration`` for the reference contexts; zeros if an
    #: arm has a propensity of 0, and None if there are no reference contexts, or limits or a pilot.
    exploration: tuple[float, float] | None

    @property
    def control(self) -> float:
        """The probability of the incumbent in the pilot; 0 if the file is not for a pilot."""
        return 0.0 if self.pilot is None else float(self.pilot["control"])

    @property
    def incumbent_column(self) -> str | None:
        """The column with today's arm of each row in the pilot; None if there is none."""
        return None if self.pilot is None else self.pilot.get("incumbent_column")

    @property
    def policy(self) -> str:
        """The registered name of the policy that was exported."""
        return self.frozen.policy

    @property
    def domain(self) -> str:
        """The domain that the policy acts in."""
        return self.frozen.domain

    @property
    def context_shape(self) -> Shape:
        """The shape of one context."""
        return self.frozen.context_shape

    @property
    def per_arm(self) -> bool:
        """True if a row has one context per arm, (K, *context_shape)."""
        return self.frozen.arms == "shared"

    @property
    def n_arms(self) -> int:
        """The number of arms."""
        return self.frozen.n_arms

    @property
    def rounds_learned(self) -> int:
        """The number of rounds that the policy had learned."""
        return self.frozen.rounds_learned

    @property
    def version(self) -> int:
        """The number of target logs that the policy had learned (``daband.learn_log``); 0 after
        training.
        """
        return int(self.versions.get("policy", "0"))

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns that a row must have; None if rows are arrays or images.

        They include the column of today's arms in a pilot.
        """
        names = None if self.reader.table is None else self.reader.table.names
        if names is None or self.incumbent_column is None:
            return names
        return (*names, self.incumbent_column)

    def describe_exploration(self, n_rows: int = 1000) -> str:
        """Return which fraction of rows is explored, and the standard error that a log of ``n_rows``
        rows will have; empty if ``exploration`` is None.
        """
        if self.exploration is None:
            return ""
        fraction, error = self.exploration
        if error == 0.0:
            return (
                "No rows are explored: the policy always chooses the same arm for the same row. Use"
                " --epsilon 0.1 to be able to evaluate other arms by its log."
            )
        return (
            f"Explored: {fraction:.1%} of rows get another arm than the best one. After"
            f" {n_rows:,} rewarded rows, the mean reward of each arm has a standard error of at most"
            f" {error / math.sqrt(n_rows):.2g}."
        )

    def decide(
        self,
        row: Any,
        *,
        arms: Any = None,
        round_number: int | None = None,
        ids: Sequence[str] | None = None,
        strict: bool = False,
        control: float | None = None,
        incumbents: IntArray | None = None,
    ) -> DeployedDecision:
        """Choose an arm for one row, or for each row of a batch.

        Args:
            row: a mapping from column to value, a pandas row, an array of ``context_shape``, or the
                bytes or path of an image file. A batch is a list of these, a pandas or polars
                frame, or an array of n contexts.
            arms: the arms that may be chosen; all by default. Either a list of at most 1,000 arms,
                e.g. ``["letter", "call"]``, by name or index, or as mappings with the "id" and the
                features of an arm, which may be new. ``arm``, ``mean`` and ``bonus`` then refer to
                this list. Or booleans (K,), or (n, K) for a batch, like ``available`` of
                ``policy.select``.
            round_number: the number of the round, or of the first round of a batch. Random draws
                are then those of the exported policy's seed for this round. By default the draws
                cannot be repeated.
            ids: an id for each row of a batch. Random draws then depend only on the seed and the id,
                so that a row that is decided again gets the same arm.
            strict: True to raise an error for a row with warnings.
            control: the probability that a row is in the control group; by default that of the
                pilot in the file, or 0. For such rows, the incumbent in the file is chosen
                (``daband.export(incumbent=)``). Propensities take the control group into account.
            incumbents: the indices of the incumbents of the rows, (n,), instead of the incumbent in
                the file; -1 for none.

        A missing column, a value of the wrong type, numbers that are not finite, arrays of another
        shape and damaged images always raise an error.
        """
        read_rows = self.reader.read(row)
        contexts, warnings, is_single = read_rows
        control = self.control if control is None else control
        if strict:
            _raise_for_warnings(read_rows)
        if (
            round_number is not None
            and check_int("round_number", round_number, minimum=0) > _MAX_ROUND_NUMBER
        ):
            raise InvalidInput(
                f"round_number must be at most {_MAX_ROUND_NUMBER:,}, got {round_number}"
            )
        frozen = self.frozen
        indices = None
        vectors = None
        mask = None
        names: Sequence[str] = self.arm_names
        if arms is not None and not _is_mask(arms):
            names, indices, vectors = self.look_up_arms(arms)
        elif arms is not None or frozen.offered is not None:
            mask = self.make_arm_mask(arms, len(contexts))
        mean, bonus = frozen.score(contexts, indices, vectors)
        if control:
            check_fraction("control", control, allow_one=True)
            if incumbents is None:
                incumbents = self._find_incumbents(row, read_rows)
            if indices is not None:
                # an incumbent that is not in the request cannot be chosen
                index_in_request = {int(arm): at for at, arm in enumerate(indices) if arm >= 0}
                incumbents = np.array([index_in_request.get(int(arm), -1) for arm in incumbents])
        if ids is not None and len(ids) != len(contexts):
            raise InvalidInput(f"ids must have an id for each of {len(contexts)} rows")
        draw = frozen.make_draw(round_number, ids)
        if self.limiter is None:
            chosen = frozen.choose(mean, bonus, mask, draw, control, incumbents)
        else:
            chosen = self.limiter.choose(
                frozen.compute_probabilities,
                mean,
                bonus,
                mask,
                draw,
                indices=indices,
                control=control,
                incumbents=incumbents,
            )
        chosen_arms, propensities, controls, in_control = chosen
        if is_single:
            arm = chosen_arms.item()
            return DeployedDecision(
                arm,
                names[arm],
                _remove_rounding_errors(propensities.item()),
                mean[0],
                bonus[0],
                warnings[0],
                contexts[0],
                controls.item(),
                in_control.item(),
            )
        return DeployedDecision(
            chosen_arms,
            tuple(names[arm] for arm in chosen_arms),
            np.array([_remove_rounding_errors(value) for value in propensities.tolist()]),
            mean,
            bonus,
            tuple(warnings),
            contexts,
            controls,
            in_control,
        )

    def look_up_arms(self, arms: Any) -> tuple[Sequence[str], IntArray, FloatArray | None]:
        """Return the names, indices (-1 for a new arm) and vectors of the arms of a request.

        ``arms`` are as in ``decide``. Vectors are None if no arm has features. Arms of the
        catalogue may be given even if the policy's domain does not offer them.
        """
        if (
            isinstance(arms, str | bytes | Mapping)
            or not hasattr(arms, "__len__")
            or not 1 <= len(arms) <= _MAX_ARMS
        ):
            raise InvalidInput(
                f"arms must be a list of 1 to {_MAX_ARMS:,} arms, got {repr(arms)[:80]}"
            )
        catalogue = self.frozen.catalogue
        if not {int, np.int64}.isdisjoint(map(type, arms)):
            index_type = int | np.integer
            arms = [
                (
                    self.arm_names[self.find_arm_index(arm, "arms")]
                    if isinstance(arm, index_type)
                    else arm
                )
                for arm in arms
            ]
        if catalogue is None:
            if any(isinstance(arm, Mapping) and len(arm) > 1 for arm in arms):
                raise InvalidInput(
                    "arms has features, but the policy was trained without a catalogue of arms"
                )
            ids = [arm.get("id") if isinstance(arm, Mapping) else arm for arm in arms]
            indices = [self.find_arm_index(arm, "arms") for arm in ids]
            if len(set(indices)) < len(indices):
                raise InvalidInput("arms must have each arm only once, but one is given twice")
            return [self.arm_names[index] for index in indices], np.array(indices), None
        names, indices, vectors = catalogue.look_up(arms)
        return names, np.array(indices), vectors

    def with_arms(self, arms: Any) -> DeployedPolicy:
        """Return the policy with a new list of arms.

        Args:
            arms: a frame or a list of mappings, with the "id" and the features of each arm. Known
                arms keep their index. Arms that are not in the list are no longer offered. New arms
                get the next indices.
        """
        frozen = self.frozen
        if frozen.catalogue is None:
            raise InvalidInput(
                "the policy was trained without a catalogue of arms, so it cannot get new ones"
            )
        arm_rows = arms.to_dicts() if hasattr(arms, "to_dicts") else list(arms)
        names, indices, vectors = frozen.catalogue.look_up(arm_rows)
        vectors = frozen.catalogue.vectors[indices] if vectors is None else vectors
        new_names = [name for name, index in zip(names, indices, strict=True) if index < 0]
        all_names = (*frozen.catalogue.names, *new_names)
        n_arms = len(all_names)
        index_by_name = {name: index for index, name in enumerate(all_names)}
        all_vectors = np.zeros((n_arms, vectors.shape[1]))
        all_vectors[: frozen.n_arms] = frozen.catalogue.vectors
        all_vectors[[index_by_name[name] for name in names]] = vectors
        offered = np.tile(np.isin(all_names, names), (2, 1))
        catalogue = replace(frozen.catalogue, names=all_names, vectors=all_vectors, offered=offered)
        arms = np.arange(n_arms)
        arms[frozen.n_arms :] = -1
        predictor = frozen.predictor.for_arms(arms, all_vectors)
        frozen = replace(frozen, n_arms=n_arms, catalogue=catalogue, predictor=predictor)
        frozen.warm_up()
        return replace(self, frozen=frozen, arm_names=catalogue.names)

    def _find_incumbents(self, row: Any, read_rows: ReadRows) -> IntArray:
        """Return the incumbent of each row, (n,): the file's, or that in the pilot's column."""
        column = self.incumbent_column
        if column is None:
            if self.incumbent is None:
                raise InvalidInput(
                    "control needs an incumbent: export the file with one (incumbent=, --incumbent)"
                )
            return np.full(len(read_rows.contexts), self.incumbent)
        rows: Any = [row] if read_rows.is_single else row
        is_frame = hasattr(rows, "columns")
        if not all(column in names for names in ([rows.columns] if is_frame else rows)):
            raise InvalidInput(f"a row has no {column!r}, which has today's arms in this pilot")
        arms = rows[column] if is_frame else [values[column] for values in rows]
        return np.array([self.find_arm_index(str(arm), f"column {column}") for arm in arms])

    def monitor(self, *, false_alarms: float = 0.01) -> Monitor:
        """Return a monitor that decides by this policy, and detects when contexts or arms differ
        from training.

        ``false_alarms`` is an upper bound on the probability of ever raising an alarm while nothing
        has changed.
        """
        return Monitor(self, false_alarms=false_alarms)

    def make_arm_mask(self, arms: Any, n_rows: int) -> BoolArray:
        """Return a mask (n, K) of the arms that may be chosen, from booleans (K,) or (n, K), or
        None for all.
        """
        all_arms = np.ones((n_rows, self.n_arms), np.bool_)
        mask = all_arms if arms is None else check_available(arms, n_rows, self.n_arms, "arms")
        if self.frozen.offered is not None:
            mask = mask & self.frozen.offered
        if not mask.any(axis=1).all():
            raise InvalidInput(
                "arms must allow at least one arm that the domain offers in each row"
            )
        return mask

    def find_arm_index(self, arm: Any, argument: str) -> int:
        """Return the index of an arm that is given by name or index.

        ``argument`` is the argument's name in errors.
        """
        return find_arm_index(arm, self.arm_names, argument)

    def __repr__(self) -> str:
        inputs = (
            f"context_shape={self.context_shape}"
            if self.columns is None
            else f"columns={list(self.columns)}"
        )
        return (
            f"<DeployedPolicy({self.policy!r}, {inputs}, arms={list(self.arm_names)}, acts in the"
            f" {self.domain})>"
        )


def load_deployed(path: str | Path) -> DeployedPolicy:
    """Return the policy that ``daband.export`` wrote to ``path``.

    A damaged file, a file of a newer format, and any other file raise a ``CheckpointError``. torch
    is never needed. A policy with an encoder of images or texts needs onnxruntime, extra "onnx".

    >>> policy = daband.Constant(context_shape=(2,), n_arms=2, alpha=0.0, seed=0)
    >>> skipped = policy.update([[0.0, 0.0]] * 4, [0, 0, 1, 1], [0, 0, 1, 1])
    >>> daband.export(policy, "market.daband", arm_names=["letter", "call"])
    >>> daband.load_deployed("market.daband").decide([0.0, 0.0]).arm_name
    'call'
    """
    header, arrays = read_tensor_file(path, FORMAT)
    try:
        for array in arrays.values():
            array.setflags(write=False)
        frozen = load_frozen(header, arrays)
        # The digest shows that nothing has changed since the file was written, not that the arrays
        # match each other.
        with np.errstate(all="ignore"):
            scores = np.stack(frozen.warm_up())
        if scores.shape[::2] != (2, frozen.n_arms) or not np.isfinite(scores).all():
            raise ValueError(f"it does not have a finite score for each of {frozen.n_arms} arms")
        reference = None
        if header["reference"] is not None:
            names = tuple(header["reference"]["names"])
            edges, counts, arms = (arrays[f"reference/{x}"] for x in ("edges", "counts", "arms"))
            reference = Reference(names, edges, counts, arms)
        return build_deployed(frozen, header, reference=reference)
    except InvalidInput as error:
        raise CheckpointError(f"{path}: {error}") from None
    except Exception as error:  # its arrays may not match each other
        raise CheckpointError(
            f"{path} does not hold the data that its header describes: {error}"
        ) from error


def _remove_rounding_errors(propensity: float) -> float:
    """Return a propensity such as 0.8940000000000001 with 15 significant digits or a few less.

    >>> _remove_rounding_errors(0.8940000000000001)
    0.894
    """
    return round(propensity, 15) if propensity > 1e-6 else propensity


def load_deployed_bytes(content: bytes) -> DeployedPolicy:
    """Return the policy with this content of an exported file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.daband"
        path.write_bytes(content)
        return load_deployed(path)


def find_arm_index(arm: Any, arm_names: Sequence[str], argument: str) -> int:
    """Return the index of an arm that is given by name or index.

    ``argument`` is the argument's name in errors.
    """
    if isinstance(arm, str) and arm in arm_names:
        return arm_names.index(arm)
    if (
        isinstance(arm, int | np.integer)
        and not isinstance(arm, bool)
        and 0 <= arm < len(arm_names)
    ):
        return int(arm)
    hint = did_you_mean(arm, arm_names) if isinstance(arm, str) else ""
    raise InvalidInput(
        f"{argument}: {arm!r} is not an arm{hint} (0..{len(arm_names) - 1}, or"
        f" {', '.join(arm_names)})"
    )


def is_deployed_file(path: str | Path) -> bool:
    """Return True if a file starts like a file that ``daband.export`` wrote."""
    with open(path, "rb") as file:
        return file.read(8 + len(FORMAT.header_start))[8:] == FORMAT.header_start


def build_deployed(
    frozen: FrozenPolicy,
    header: Mapping[str, Any],
    *,
    reference: Reference | None,
) -> DeployedPolicy:
    """Return a deployed policy.

    Args:
        frozen: the frozen policy.
        header: the header of the file, with the names of arms and features, images, the assessment,
            and so on.
        reference: counts of reference contexts; None if there are none.
    """
    arm_names = tuple(str(name) for name in header["arm_names"])
    if len(arm_names) != frozen.n_arms or len(set(arm_names)) != len(arm_names):
        raise ValueError(f"{frozen.n_arms} arms need as many distinct names, got {arm_names[:8]}")
    feature_names = tuple(str(name) for name in header["feature_names"])
    incumbent = header["incumbent"]
    if incumbent is not None and not (
        isinstance(incumbent, int) and 0 <= incumbent < frozen.n_arms
    ):
        raise ValueError(
            f"the incumbent is {incumbent!r}, which is not one of {frozen.n_arms} arms"
        )
    return DeployedPolicy(
        frozen=frozen,
        arm_names=arm_names,
        feature_names=feature_names,
        assessment=header["assessment"],
        versions=dict(header["versions"]),
        log_parts=frozenset(header["log_parts"]),
        incumbent=incumbent,
        costs=None if header["costs"] is None else ArmCosts.from_state(header["costs"]),
        limiter=Limiter([Limit(*limit) for limit in header["limits"]])
        if header["limits"]
        else None,
        reader=RowReader(
            shape=frozen.row_shape,
            table=None if frozen.table is None else frozen.table.row_reader,
            image_rule=None if header["images"] is None else ImageRule(**header["images"]),
            feature_names=feature_names,
            max_norm=frozen.max_norm,
        ),
        reference=reference,
        pilot=header["pilot"],
        exploration=header["exploration_summary"] and tuple(header["exploration_summary"]),
    )


def _is_mask(arms: Any) -> bool:
    """Return True if the arms of a request are booleans, in an array or in lists."""
    element = arms[0] if isinstance(arms, list | tuple) and arms else arms
    element = element[0] if isinstance(element, list | tuple) and element else element
    return isinstance(element, bool) or "bool" in str(getattr(element, "dtype", "")).lower()


def _raise_for_warnings(read_rows: ReadRows) -> None:
    """Raise an error with the first warning of the rows, if there is one."""
    for index, warnings in enumerate(read_rows.warnings):
        if warnings:
            prefix = "" if read_rows.is_single else f"row {index}: "
            warning = warnings[0]
            raise InvalidInput(
                f"{prefix}strict=True does not allow warnings ({warning.kind}): {warning.message}"
            )
