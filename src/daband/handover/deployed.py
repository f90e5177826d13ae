"""A policy that only decides: loaded from one file, never changed, shared by any number of threads and processes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from daband.arrays import AnyArray, BoolArray, FloatArray, IntArray
from daband.errors import CheckpointError, DataError, InvalidInput
from daband.handover.decision import DeployedDecision
from daband.handover.format import read_deployed_file
from daband.handover.head_features import HeadFeatures
from daband.handover.heads import AveragedHead, Choice, EvenHead, LinearHead
from daband.handover.monitor import Monitor
from daband.handover.monitor_reference import Reference, reference_from, summary_scores
from daband.handover.networks import Network, network_from
from daband.handover.rows import ImageRule, ReadRows, RowReader
from daband.handover.table_rows import TableRows
from daband.handover.transforms import step_from
from daband.linear.draws import draw_key
from daband.suggestions import did_you_mean
from daband.table_transform import TableTransform

__all__ = ["Deployed", "deployed_from", "load_deployed"]


@dataclass(frozen=True, repr=False)
class Deployed:
    """A policy that was exported: ``daband.load_deployed("market.daband")``. Nothing in it ever changes."""

    policy: str
    """The registered name of the policy that was exported."""
    domain: str
    """The domain it acts in, "source" or "target"."""
    context_shape: tuple[int, ...]
    per_arm: bool
    """Whether a row has one context per arm, (K, *context_shape)."""
    arm_names: tuple[str, ...]
    reward_range: tuple[float, float]
    feature_names: tuple[str, ...]
    assessment: Mapping[str, Any] | None
    """What was known of its quality in the target when it was exported."""
    versions: Mapping[str, str]
    """With which versions it was exported."""
    format_version: int
    rounds_learned: int
    reader: RowReader = field(compare=False)
    features: HeadFeatures = field(compare=False)
    head: LinearHead | AveragedHead | EvenHead = field(compare=False)
    choice: Choice = field(compare=False)
    reference: Reference | None = field(compare=False)

    @property
    def n_arms(self) -> int:
        """How many arms there are."""
        return len(self.arm_names)

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns that a row must have; None where rows are arrays or images."""
        return None if self.reader.table is None else self.reader.table.names

    def decide(
        self,
        row: Any,
        available: Any = None,
        *,
        round_number: int | None = None,
        strict: bool = False,
    ) -> DeployedDecision:
        """Choose an arm for one row, or for each row of a batch.

        Args:
            row: a mapping from column to value, a row of pandas, an array of ``context_shape``, an image file's bytes
                or path; or several: a list of these, a frame of pandas or polars, an array with a leading n.
            available: which arms may be chosen: a list of names or numbers, or booleans (K,), for a batch also (n, K).
            round_number: fixes the random draws of exploration and of ties to those that the exported policy has in
                this round; in a batch it is the first row's. By default they are drawn anew.
            strict: whether a row with warnings is an error instead.

        A column that a row lacks, a value of the wrong type, numbers that are not finite, arrays of another shape and
        damaged images are errors in any case.
        """
        return self.decide_with(row, available, round_number=round_number, strict=strict)[0]

    def decide_with(
        self, row: Any, available: Any = None, *, round_number: int | None = None, strict: bool = False
    ) -> tuple[DeployedDecision, ReadRows, FloatArray, FloatArray]:
        """``decide``; besides, what was read, and means and widths on the policy's own scale, for the monitor."""
        read = self.reader.read(row)
        if strict:
            _refuse_odd(read)
        if round_number is not None and not (isinstance(round_number, int | np.integer) and round_number >= 0):
            raise InvalidInput(f"round_number must be a whole number >= 0, got {round_number!r}")
        if not read.single:
            return self._decide_batch(read, available, round_number)
        mean, width = self.head.one(self.features.one(read.contexts))
        allowed = None if available is None else self._open_arms(available)
        arm, chance = self.choice.one(mean, width, allowed, round_number)
        decision = DeployedDecision(arm, self.arm_names[arm], chance, *self._in_units(mean, width), read.warnings[0])
        return decision, read, mean, width

    def monitor(self, *, false_alarms: float = 0.01) -> Monitor:
        """A monitor that decides through this policy and tells when contexts or arms have left what training saw.

        ``false_alarms`` bounds the probability that it ever raises an alarm while nothing has changed.
        """
        return Monitor(self, false_alarms=false_alarms)

    def summary(self, contexts: AnyArray) -> tuple[FloatArray, IntArray]:
        """Summary scores (n, J) of contexts (n, ...) and preferred arms (n,), which the monitor watches."""
        return self.summary_of(contexts, *self.head.many(self.features.many(contexts)))

    def summary_of(self, contexts: AnyArray, mean: FloatArray, width: FloatArray) -> tuple[FloatArray, IntArray]:
        """``summary``, where means and widths (n, K) on the policy's own scale are known."""
        return summary_scores(
            contexts,
            mean,
            width,
            dimensions=math.prod(self.context_shape),
            image=self.reader.images is not None,
            multiplier=self.choice.multiplier,
        )

    def __repr__(self) -> str:
        takes = f"context_shape={self.context_shape}" if self.columns is None else f"columns={list(self.columns)}"
        return f"<Deployed({self.policy!r}, {takes}, arms={list(self.arm_names)}, acts in the {self.domain})>"

    def _in_units(self, mean: FloatArray, width: FloatArray) -> tuple[FloatArray, FloatArray]:
        low, high = self.reward_range
        if low == 0.0 and high == 1.0:
            return mean, width
        return low + (high - low) * mean, (high - low) * width

    def _decide_batch(
        self, read: ReadRows, available: Any, round_number: int | None
    ) -> tuple[DeployedDecision, ReadRows, FloatArray, FloatArray]:
        mean, width = self.head.many(self.features.many(read.contexts))
        mask = None if available is None else self._mask(available, len(mean))
        arms, chances = self.choice.many(mean, width, mask, round_number)
        names = tuple(self.arm_names[arm] for arm in arms)
        shown = self._in_units(mean, width)
        return DeployedDecision(arms, names, chances, *shown, tuple(read.warnings)), read, mean, width

    def _mask(self, available: Any, n: int) -> BoolArray:
        if isinstance(available, np.ndarray) and available.ndim == 2:
            if available.dtype != np.bool_ or available.shape != (n, self.n_arms):
                raise InvalidInput(
                    f"available must be booleans ({n}, {self.n_arms}), got {available.dtype} {available.shape}"
                )
            if not available.any(axis=1).all():
                raise InvalidInput(f"available leaves no arm to choose in row {int(np.argmin(available.any(axis=1)))}")
            return available
        mask = np.zeros((n, self.n_arms), np.bool_)
        mask[:, self._open_arms(available)] = True
        return mask

    def _open_arms(self, available: Any) -> list[int]:
        """The numbers of the arms that may be chosen, in order."""
        if isinstance(available, str | bytes | Mapping):
            raise InvalidInput(f"available must be a list of arms or booleans, got {available!r}")
        given: list[Any] = list(available) if not hasattr(available, "tolist") else available.tolist()
        if given and all(isinstance(one, bool | np.bool_) for one in given):
            if len(given) != self.n_arms:
                raise InvalidInput(f"available must have {self.n_arms} booleans, one an arm, got {len(given)}")
            numbers = [arm for arm, may in enumerate(given) if may]
        else:
            numbers = sorted({self._number(one) for one in given})
        if not numbers:
            raise InvalidInput("available leaves no arm to choose")
        return numbers

    def _number(self, arm: Any) -> int:
        if isinstance(arm, str):
            if arm not in self.arm_names:
                hint = did_you_mean(arm, self.arm_names)
                raise InvalidInput(f"available names {arm!r}, which is no arm{hint} ({', '.join(self.arm_names)})")
            return self.arm_names.index(arm)
        if isinstance(arm, bool | np.bool_) or not isinstance(arm, int | np.integer) or not 0 <= arm < self.n_arms:
            raise InvalidInput(f"available has {arm!r}, which is neither an arm's name nor one of 0..{self.n_arms - 1}")
        return int(arm)


def load_deployed(path: str | Path, *, encoder: Any = None) -> Deployed:
    """The policy that ``daband.export`` wrote to ``path``.

    A file that is damaged, truncated, of a newer format or no exported policy is a ``CheckpointError`` that names it.
    ``encoder`` is the ``torch.nn.Module`` where the policy has a custom one, of which the file holds the weights alone.

    >>> policy = daband.Constant(context_shape=(2,), n_arms=2, alpha=0.0, seed=0)
    >>> skipped = policy.update([[0.0, 0.0]] * 4, [0, 0, 1, 1], [0, 0, 1, 1])
    >>> daband.export(policy, "market.daband", arm_names=["letter", "call"])
    >>> daband.load_deployed("market.daband").decide([0.0, 0.0]).arm_name
    'call'
    """
    header, arrays = read_deployed_file(path)
    try:
        return deployed_from(header, arrays, encoder=encoder)
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError, AttributeError, DataError) as error:
        if isinstance(error, InvalidInput):
            raise InvalidInput(f"{path}: {error}") from None
        raise CheckpointError(f"{path} does not hold what its header promises: {error}") from error


def deployed_from(header: Mapping[str, Any], arrays: Mapping[str, AnyArray], *, encoder: Any = None) -> Deployed:
    """A deployed policy from the header and the arrays of a file."""
    for name, array in arrays.items():
        if array.dtype.kind == "f" and name != "reference/edges" and np.isnan(array).any():
            raise ValueError(f"{name} has a NaN")
        array.setflags(write=False)

    def below(prefix: str) -> dict[str, AnyArray]:
        return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}

    context, arms = header["context"], header["arms"]
    shape, per_arm = tuple(int(size) for size in context["shape"]), bool(context["per_arm"])
    names = tuple(str(name) for name in arms["names"])
    table = None if header["table"] is None else TableRows(TableTransform.from_state(header["table"]))
    step = None if header["transform"] is None else step_from(header["transform"], below("transform/"))
    network = _network(header["network"], below("network/"), encoder)
    exploration = header["exploration"]
    head: LinearHead | AveragedHead | EvenHead
    linear_part = header.get("linear_part")  # files of version 1 have none
    if exploration["rule"] == "even":
        head = EvenHead(len(names))
    else:
        shared = per_arm and not context["constant"]
        head = _head(below("head/"), len(names), shared=shared)
        if linear_part is not None:
            first, second = linear_part["width_shares"]
            head = AveragedHead(
                head,
                _head(below("linear_part/"), len(names), shared=shared),
                weight=float(linear_part["weight"]),
                width_shares=(float(first), float(second)),
            )
    ranges = (arrays["ranges/centre"], arrays["ranges/scale"]) if "ranges/centre" in arrays else None
    images = None if header["images"] is None else ImageRule(**header["images"])
    feature_names = tuple(context["feature_names"])
    low, high = header["reward_range"]
    return Deployed(
        policy=str(header["policy"]),
        domain=str(header["domain"]),
        context_shape=shape,
        per_arm=per_arm,
        arm_names=names,
        reward_range=(float(low), float(high)),
        feature_names=feature_names,
        assessment=header["assessment"],
        versions=header["versions"],
        format_version=int(header["version"]),
        rounds_learned=int(header["rounds_learned"]),
        reader=RowReader(
            shape=(len(names), *shape) if per_arm else shape,
            table=table,
            images=images,
            ranges=ranges,
            feature_names=feature_names,
            largest_norm=float(context["largest_norm"]),
        ),
        features=HeadFeatures(
            step=step,
            layout=None if header["network"] is None else header["network"]["layout"],
            network=network,
            linear_part=None
            if linear_part is None
            else step_from(linear_part["transform"], below("linear_part/transform/")),
            constant=bool(context["constant"]),
            per_arm=per_arm,
        ),
        head=head,
        choice=Choice(
            rule=str(exploration["rule"]),
            alpha=float(exploration["alpha"]),
            epsilon=float(exploration["epsilon"]),
            key=draw_key(int(exploration["seed"])),
        ),
        reference=reference_from(header["reference"], below("reference/")),
    )


def _head(arrays: Mapping[str, AnyArray], n_arms: int, *, shared: bool) -> LinearHead:
    head = LinearHead(arrays["theta"], arrays["inverse"], shared=shared)
    if len(arrays["theta"]) != (1 if shared else n_arms):
        raise ValueError(f"a head has {len(arrays['theta'])} regressions")
    return head


def _network(settings: Mapping[str, Any] | None, arrays: Mapping[str, AnyArray], encoder: Any) -> Network | None:
    if settings is None or settings["kind"] != "torch":
        if encoder is not None:
            raise InvalidInput("encoder was given, but the policy has its own")
        return None if settings is None else network_from(settings, arrays)
    from daband.handover.torch_network import TorchNetwork

    return TorchNetwork(settings, arrays, encoder)


def _refuse_odd(read: ReadRows) -> None:
    for number, odd in enumerate(read.warnings):
        if odd:
            where = "" if read.single else f"row {number}: "
            raise InvalidInput(f"{where}strict=True refuses a row with a warning ({odd[0].kind}): {odd[0].message}")
