"""Learn from logs larger than memory, on this machine or on a Ray cluster.

A log is divided into parts, which are groups of rows of its files. A linear policy (LinUCB,
Constant) learns a source log from sums over rounds, in one pass. Every part is summed separately, on
any machine, and the sums are added in the order of the parts. So the result depends neither on the
number of workers, nor on lost workers, nor on interruptions. Any other policy, and a linear policy in
the target, learns the rounds in order, in one process. If it learns by gradients, its replay buffers
keep a uniform sample of the rounds, and it takes its gradient steps after every ``adapt_every``
rounds.

In the folder ``directory``, ``log.json`` has the settings of the policy and the columns. Another
file has the learned state together with the parts that it was learned from, so that both agree even
after a crash. The policy stores the digests of the parts that it has learned, so that no part is
counted twice, even in later calls.

``fit_log`` and ``learn_log`` are the public functions. Both call ``_fit_policy``, which plays a
``_LogRun``.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from daband.base._arguments import Progress, check_int, check_one_of
from daband.base._arrays import Arrays
from daband.base._files import read_npz, write_npz
from daband.domains._contract import Contexts
from daband.domains.readers._columns import Columns
from daband.domains.readers._parquet_log import ParquetLog, open_log
from daband.domains.readers._reading import TARGET_PREFIX, LogFiles, LogPart, compute_digests
from daband.errors import CheckpointError, DataError, InvalidInput
from daband.features._domain_names import DomainNames
from daband.linear._ridge import RidgeSums
from daband.policies._checkpoints import read_checkpoint
from daband.policies._policy import Policy
from daband.policies._ridge import RidgePolicy
from daband.policies._thread_locks import run_to_end
from daband.training._log_sums import sum_parts_locally, sum_parts_on_ray
from daband.training._phase import check_unlabelled
from daband.training._work_folder import Folder

#: The maximum number of rounds to which a transform is fitted.
_MAX_SAMPLE_ROWS = 65_536
#: The number of rows per part for policies that learn rounds in order. They are slow, and progress
#: is saved only between parts.
_GRADIENT_PART_ROWS = 65_536


class LogWarning(UserWarning):
    """A warning that a part of a log was ignored, or that its rounds are not what is assumed."""


def fit_log(
    policy: Policy,
    log: LogFiles | ParquetLog,
    *,
    columns: Columns | None = None,
    target: Contexts | None = None,
    domain: str = "source",
    engine: str = "local",
    weights: str | None = None,
    cluster: str | None = None,
    adapt_every: int = 1024,
    directory: str | Path | None = None,
    progress: Progress | None = None,
) -> Policy:
    """Fit a policy to a log in Parquet files of any size, and return the policy.

    Only a few batches of rows are in memory at a time.

    Args:
        policy: the policy, changed in place. Rounds that it has learned before still count. It
            stores the digests of learned files, so that a file that is given again is not counted
            again. An error leaves a linear policy unchanged.
        log: a folder of Parquet files, a glob such as ``"logs/*.parquet"``, a list of files, or a
            ``ParquetLog``.
        columns: the roles of columns. By default the columns "arm", "reward" and "propensity" have
            these roles, and all others are the context. A policy for tables reads the columns of
            ``policy.table``.
        target: unlabelled target contexts for policies that adapt. One context is used per logged
            round.
        domain: the domain in which the rounds were logged, "source" or "target".
        engine: "local", or "ray" to sum parts on a cluster (linear policies and source logs only).
            Call ``ray.init(address=...)`` before; by default Ray finds a cluster or starts one
            here. The cluster's machines must find the files under the same paths.
        weights: the column that states how much each round counts; by default each counts once.
            Propensities are used in addition, as in ``Policy.update``.
        cluster: the column of the cluster that arms were drawn for, such as a school or a customer;
            by default they were drawn for each row. ``LogPolicy`` needs it for its standard errors.
        adapt_every: the number of rounds between two calls of ``adapt``, for policies that learn by
            gradients.
        directory: a folder for saved progress. A second call with the same settings resumes at the
            first part that is not learned. Files that were added to the log in the meantime are
            learned as well.
        progress: called after every part with ``rows``, ``rows_total``, ``parts``, ``parts_total``,
            ``rows_per_second`` and ``seconds_left``.

    >>> import polars as pl
    >>> rounds = pl.DataFrame({"x": [0.0, 1.0] * 20, "arm": [0, 1] * 20, "reward": [0.0, 1.0] * 20})
    >>> rounds.with_columns(propensity=0.5).write_parquet("log.parquet")
    >>> policy = daband.fit_log(daband.LinUCB(context_shape=(1,), n_arms=2, seed=0), "log.parquet")
    >>> policy.rounds_learned
    40
    """
    DomainNames().index(domain)  # raises an error unless it is "source" or "target"
    settings = _FitSettings(
        domain=domain,
        columns=columns,
        target=target,
        engine=engine,
        weights=weights,
        cluster=cluster,
        adapt_every=adapt_every,
        directory=directory,
        progress=progress,
    )
    return _fit_policy(policy, log, settings)


def learn_log(
    policy: Policy,
    log: LogFiles | ParquetLog,
    *,
    columns: Columns | None = None,
    arm: str = "arm",
    reward: str = "reward",
    propensity: str = "propensity",
    id: str | None = None,  # noqa: A002
    weights: str | None = None,
    cluster: str | None = None,
    adapt_every: int = 1024,
    directory: str | Path | None = None,
    progress: Progress | None = None,
) -> Policy:
    """Learn from a target log, which was recorded after deployment, and return the policy.

    In production, repeat these steps: decide with the exported file, log decisions and rewards,
    learn the log, export again. ``policy.version`` counts the logs that the policy has learned. The
    exported file has the same number in ``DeployedPolicy.version``. Every round counts once. Files
    are identified by their content: for the same file under another name, or a folder to which
    files were added, only new files are learned. With ``id``, each round is identified separately.

    Args:
        policy: the policy that was exported, or the one that learned the last log; changed in
            place.
        log: Parquet files of any size, or CSV files that fit into memory: a folder, a glob such as
            ``"logs/*.parquet"``, a list, or a ``ParquetLog``.
        columns: the roles of columns, if a policy without a table should read only some of them. By
            default the columns ``arm``, ``reward`` and ``propensity`` have these roles, and all
            others are the context.
        arm: the column with the chosen arm: its index, or its name in ``policy.arm_names``.
        reward: the column with the reward of that arm. A round without a reward is ignored, with a
            warning.
        propensity: the column with the probability with which that arm was chosen.
        id: the column with the id of a round, e.g. "event_id". A round whose id the policy has
            learned is ignored, so a file may come again with late rewards.
        weights: as in ``fit_log``.
        cluster: as in ``fit_log``.
        adapt_every: the number of rounds between two calls of ``adapt``.
        directory: a folder for saved progress, as in ``fit_log``.
        progress: as in ``fit_log``.

    >>> import polars as pl
    >>> policy = daband.LinUCB(context_shape=(1,), n_arms=2, seed=0)
    >>> week = pl.DataFrame({"x": [0.0, 1.0] * 20, "arm": [0, 1] * 20, "reward": [0.0, 1.0] * 20, "n": range(40)})
    >>> week.with_columns(propensity=0.5).write_parquet("week1.parquet")
    >>> daband.learn_log(policy, "week1.parquet", id="n").rounds_learned
    40
    """
    if columns is None and not isinstance(log, ParquetLog):
        columns = Columns(arm=arm, reward=reward, propensity=propensity)
    settings = _FitSettings(
        domain="target",
        columns=columns,
        adapt_every=adapt_every,
        directory=directory,
        progress=progress,
        id=id,
        weights=weights,
        cluster=cluster,
    )
    parts_before = getattr(policy, "log_parts", None)
    _fit_policy(policy, log, settings)
    if policy.log_parts != parts_before:
        policy.version += 1
    return policy


@dataclass(frozen=True, kw_only=True)
class _FitSettings:
    """The arguments of ``fit_log`` and ``learn_log``, except the policy and the log."""

    domain: str
    columns: Columns | None
    target: Contexts | None = None
    engine: str = "local"
    adapt_every: int
    directory: str | Path | None
    progress: Progress | None
    id: str | None = None
    weights: str | None = None
    cluster: str | None = None


def _fit_policy(policy: Policy, log: LogFiles | ParquetLog, settings: _FitSettings) -> Policy:
    """Open the log, lock the folder, learn the log from sums or round by round, and return the
    policy.
    """
    if not isinstance(policy, Policy):
        raise InvalidInput(f"policy must be a daband policy, got {policy!r}")
    check_one_of("engine", settings.engine, ("local", "ray"))
    check_unlabelled(settings.target)
    check_int("adapt_every", settings.adapt_every, minimum=1)
    parquet_log = open_log(
        log,
        policy,
        columns=settings.columns,
        skip_unrewarded=settings.domain == "target",
        id=settings.id,
        weights=settings.weights,
        cluster=settings.cluster,
    )
    config = {
        "policy": {**policy.settings(), "name": policy.name},
        "columns": asdict(parquet_log.columns),
        "domain": settings.domain,
        "adapt_every": settings.adapt_every if policy.learns_by_gradients else None,
    }
    # target rounds in order: a regression predicts each round before it learns the round
    learns_from_sums = isinstance(policy, RidgePolicy) and settings.domain == "source"
    for path, n_rounds in parquet_log.unrewarded.items():
        hint = (
            "" if settings.id is not None else " with id=, so that the others are not counted again"
        )
        warnings.warn(
            f"{path}: {n_rounds:,} rounds without a reward yet are ignored; learn it again"
            f" later{hint}",
            LogWarning,
            stacklevel=3,
        )
    for text in parquet_log.describe_repeated_ids(settings.id):
        warnings.warn(text, LogWarning, stacklevel=3)
    if settings.engine == "ray" and not learns_from_sums:
        raise InvalidInput(
            f"engine must be 'local' for {policy.name} and the {settings.domain}: rounds are"
            " learned one after the other; engine='ray' needs a linear policy and a source log"
        )
    directory = settings.directory
    # The first save comes soon. The time between later saves depends on the duration of a save.
    with (
        nullcontext()
        if directory is None
        else Folder(directory, content="a fit_log", save_every=1e-6)
    ) as folder:
        if folder is not None:
            folder.claim("log.json", config)
        run = _LogRun(policy, parquet_log, settings, folder)
        if learns_from_sums:
            assert isinstance(policy, RidgePolicy)
            run.sum_parts(policy)
        else:
            run.learn_in_order(settings.target)
    return policy


class _LogRun:
    """The state of one call of ``fit_log`` or ``learn_log``, which calls ``sum_parts`` or
    ``learn_in_order``.
    """

    def __init__(
        self, policy: Policy, log: ParquetLog, settings: _FitSettings, folder: Folder | None
    ) -> None:
        self.policy = policy
        self.log = log
        self.settings = settings
        self.folder = folder
        #: The time at which learning started, from ``time.perf_counter``.
        self._start_time = time.perf_counter()
        #: The numbers of rows and parts that are learned, those of earlier calls included.
        self._rows_done = self._parts_done = 0
        #: The digest of each part that was learned in this call or that the folder contains, by the
        #: part's name.
        self._learned_digests: dict[str, str] = {}

    def sum_parts(self, policy: RidgePolicy) -> None:
        """Sum all parts that the policy has not learned, and add the total to the policy at the
        end.
        """
        settings = self.settings
        blank_policy = policy.without_rounds()
        blank_policy.deploy(settings.domain)
        parts = self.log.parts()
        old_digests = self._find_old_digests(parts)
        if not old_digests:  # otherwise its transform was fitted when it learned these parts
            saved_arrays = self._read_policy("prepared")
            if saved_arrays is not None:
                blank_policy.restore(saved_arrays)
            else:
                if not blank_policy.prepared:
                    blank_policy.prepare(self.log.sample_contexts(_MAX_SAMPLE_ROWS))
                self._write_policy("prepared", blank_policy)
        sums = blank_policy.empty_sums()
        # If the policy has learned some parts in an earlier call, the sums of the other parts have
        # a separate file.
        suffix = (
            f"-{hashlib.sha256(' '.join(sorted(old_digests)).encode()).hexdigest()[:12]}"
            if old_digests
            else ""
        )
        file_name = f"sums{suffix}.npz"
        if (saved_sums := self._read_sums(file_name)) is not None:
            sums.restore(saved_sums)
        remaining_parts = self._find_remaining_parts(parts)
        sum_parts = sum_parts_on_ray if settings.engine == "ray" else sum_parts_locally
        outcomes = sum_parts(blank_policy, self.log, remaining_parts)
        write_state = partial(self._write_sums, file_name, sums)
        self._learn_parts(
            outcomes, parts, lambda _, outcome: sums.merge(outcome), write_state=write_state
        )
        learned_parts = (part for part in parts if part.name in self._learned_digests)
        policy.learn_sums(sums, blank_policy, self._format_digests(learned_parts))
        if self.folder is not None:  # the policy includes the sums of earlier calls
            for path in self.folder.path.glob("sums-*.npz"):
                if path.name != file_name:
                    path.unlink(missing_ok=True)

    def learn_in_order(self, target: Contexts | None) -> None:
        """Update the policy with the rounds of the log in order, and adapt it after every
        ``adapt_every`` rounds.
        """
        policy = self.policy
        parts = self.log.parts(_GRADIENT_PART_ROWS)
        old_digests = self._find_old_digests(parts)
        saved_arrays = self._read_policy("policy")
        folder_digests = set(self._learned_digests.values())
        has_learned_folder = bool(folder_digests) and folder_digests <= old_digests
        if saved_arrays is not None and not has_learned_folder:
            policy.restore(saved_arrays)
            self._find_old_digests(parts, with_warning=False)
        elif policy.transform is not None and not policy.transform.fitted:
            samples = (
                []
                if target is None
                else [target.batch(0, min(_MAX_SAMPLE_ROWS, len(target)), seed=policy.seed)]
            )
            policy.prepare(self.log.sample_contexts(_MAX_SAMPLE_ROWS), *samples)
        remaining_parts = self._find_remaining_parts(parts)

        def learn_part(part: LogPart, _: object) -> None:
            self._learn_part(part, target)
            policy.log_parts |= frozenset(self._format_digests([part]))

        self._write_policy("policy", policy)
        write_state = partial(self._write_policy, "policy", policy)
        self._learn_parts(
            self._check_parts(remaining_parts), parts, learn_part, write_state=write_state
        )

    def _learn_parts(
        self,
        outcomes: Generator[tuple[LogPart, Any]],
        parts: Sequence[LogPart],
        learn_part: Callable[[LogPart, Any], None],
        *,
        write_state: Callable[[], None],
    ) -> None:
        """Learn all parts, report the progress, and save it at intervals.

        Args:
            outcomes: parts that are not learned yet, each with its outcome: its sums, or None.
            parts: all parts of the log.
            learn_part: called with every part and its outcome.
            write_state: saves the learned state. It is called at intervals, at the end, and before
                an error in the log is raised.
        """

        def save() -> None:
            start_time = time.perf_counter()
            write_state()
            if self.folder is not None:
                self.folder.record_save(start_time)

        # ``outcomes`` holds threads or a cluster, so it is closed at once if an error is raised.
        with closing(outcomes):
            try:
                for part, outcome in outcomes:
                    learn = functools.partial(self._learn_completely, learn_part, part, outcome)
                    run_to_end(self.policy._locks, learn)
                    self._report_progress(part, parts)
                    if self.folder is not None and self.folder.is_save_due():
                        save()
            except KeyboardInterrupt:
                save()
                raise
            except DataError as error:
                save()
                saved_note = (
                    ""
                    if self.folder is None
                    else f"; the parts before it are saved in {self.folder.path}"
                )
                raise DataError(f"{error}{saved_note}") from None
            save()

    def _learn_completely(
        self, learn_part: Callable[[LogPart, Any], None], part: LogPart, outcome: Any
    ) -> None:
        """Learn a part and record its digest."""
        learn_part(part, outcome)
        self._learned_digests[part.name] = self._digests[part]

    def _check_parts(self, parts: Sequence[LogPart]) -> Generator[tuple[LogPart, None]]:
        """Yield every part after reading all its rows, so that a part with a damaged row is not
        partly learned.
        """
        for part in parts:
            for _ in self.log.batches(part):
                pass
            yield part, None

    def _learn_part(self, part: LogPart, target: Contexts | None) -> None:
        """Learn the rounds of one part in batches.

        The policy observes as many target contexts, by default those of a target log, and then
        adapts.
        """
        policy = self.policy
        settings = self.settings
        ids = self.log.read_values(part, settings.id)
        for batch in self.log.batches(part, settings.adapt_every):
            rounds_before = policy.rounds_learned
            batch_ids = None if settings.id is None else list(itertools.islice(ids, len(batch)))
            policy.update(
                **batch.to_arguments(), domain=settings.domain, ids=batch_ids, on_duplicate="skip"
            )
            if target is not None:
                start = rounds_before % len(target)
                stop = min(start + len(batch), len(target))
                policy.observe_target(target.batch(start, stop, seed=policy.seed))
            elif settings.domain == "target":
                policy.observe_target(batch.contexts)
            policy.adapt()

    def _find_old_digests(
        self, parts: list[LogPart], *, with_warning: bool = True
    ) -> frozenset[str]:
        """Find the parts that the policy has learned in an earlier call, and return their digests.

        Sets ``_digests`` and ``_old_parts``. With ``with_warning``, a warning names the first of
        these parts.
        """
        self._digests = compute_digests(parts)
        learned_digests = frozenset(
            part.removeprefix(TARGET_PREFIX) for part in self.policy.log_parts
        )
        old_digests = learned_digests & frozenset(self._digests.values())
        self._old_parts = [part for part in parts if self._digests[part] in old_digests]
        if self._old_parts and with_warning and self.folder is None:
            n_rounds = sum(map(len, self._old_parts))
            label = self._old_parts[0].label
            message = (
                f"the policy has learned {label} before; its {n_rounds:,} rounds are not counted"
                " again"
            )
            warnings.warn(message, LogWarning, stacklevel=5)
        return old_digests

    def _format_digests(self, parts: Iterable[LogPart]) -> list[str]:
        """Return the digests of parts in the form in which the policy stores them."""
        prefix = TARGET_PREFIX if self.settings.domain == "target" else ""
        return [f"{prefix}{self._digests[part]}" for part in parts]

    def _find_remaining_parts(self, parts: list[LogPart]) -> list[LogPart]:
        """Return the parts that are not learned yet.

        Raise an error if a learned part is missing or has changed.
        """
        current_digests = {part.name: self._digests[part] for part in parts}
        for name, digest in self._learned_digests.items():
            if current_digests.get(name) != digest:
                problem = (
                    "is no longer part of the log"
                    if name not in current_digests
                    else "has changed since"
                )
                assert self.folder is not None  # it contains the digest
                raise InvalidInput(
                    f"{self.folder.path}: {name} was learned and {problem}; restore it, or remove"
                    " the folder"
                )
        new_parts = [
            part
            for part in parts
            if part.name not in self._learned_digests and part not in self._old_parts
        ]
        self._rows_at_start = self._rows_done = len(self.log) - sum(map(len, new_parts))
        self._parts_done = len(parts) - len(new_parts)
        self._start_time = time.perf_counter()
        return new_parts

    def _report_progress(self, part: LogPart, parts: Sequence[LogPart]) -> None:
        """Count a learned part, and call ``progress`` with the numbers so far."""
        self._rows_done += len(part)
        self._parts_done += 1
        if self.settings.progress is None:
            return
        rows_per_second = (self._rows_done - self._rows_at_start) / max(
            time.perf_counter() - self._start_time, 1e-9
        )
        seconds_left = (len(self.log) - self._rows_done) / max(rows_per_second, 1e-9)
        self.settings.progress(
            {
                "rows": self._rows_done,
                "rows_total": len(self.log),
                "parts": self._parts_done,
                "parts_total": len(parts),
                "rows_per_second": rows_per_second,
                "seconds_left": seconds_left,
            }
        )

    # The files of the folder: a policy or sums, each with the parts that it was learned from.

    def _read_policy(self, name: str) -> Arrays | None:
        """Return the arrays of the policy saved under ``name``, or None.

        Set ``_learned_digests`` from its notes.
        """
        if self.folder is None or not (path := self.folder.path / f"{name}.safetensors").exists():
            return None
        saved_policy = read_checkpoint(path)
        if "parts" in saved_policy.notes:
            self._learned_digests = json.loads(saved_policy.notes["parts"])
        return saved_policy.arrays

    def _write_policy(self, name: str, policy: Policy) -> None:
        """Save the policy under this name, with the list of learned parts."""
        if self.folder is not None:
            policy.save(
                self.folder.path / f"{name}.safetensors",
                notes={"parts": json.dumps(self._learned_digests)},
            )

    def _read_sums(self, file_name: str) -> Arrays | None:
        """Return the arrays last written by ``_write_sums``, or None.

        Set ``_learned_digests`` to their parts.
        """
        if self.folder is None or not (path := self.folder.path / file_name).exists():
            return None
        try:
            arrays = read_npz(path)
            self._learned_digests = json.loads(bytes(arrays.pop("parts")).decode())
        except (DataError, KeyError, ValueError) as error:
            raise CheckpointError(
                f"{path} is damaged ({error}); remove the folder to start again"
            ) from None
        return arrays

    def _write_sums(self, file_name: str, sums: RidgeSums) -> None:
        """Save the sums, with the list of learned parts."""
        if self.folder is not None:
            encoded_parts = np.frombuffer(json.dumps(self._learned_digests).encode(), np.uint8)
            write_npz(self.folder.path / file_name, {**sums.state(), "parts": encoded_parts})
