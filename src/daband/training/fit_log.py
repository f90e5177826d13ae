"""``fit_log``: learn from a log larger than memory, on this machine or on a Ray cluster.

A policy that learns by sums over rounds (LinUCB, Constant) is fitted by one pass: every part of the log is summed by
itself, on any machine, and the sums are added up in the order of the parts. So the result is the same however many
workers there are, whichever of them is lost, and however often the run was killed in between. A policy that learns by
gradients reads the same stream in one process: its replay buffers keep a uniform sample of it, and it takes its
gradient steps after every ``adapt_every`` rounds.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from daband.arguments import whole
from daband.domains import Columns, Contexts, LoggedDomain, RewardDomain, TableTransform
from daband.domains.readers.parquet_log import LogPart, ParquetLog, opened_log
from daband.errors import DataError, InvalidInput
from daband.policies import Policy, RidgePolicy
from daband.policies.input_checks import check_domain
from daband.training.log_folder import LogFolder, part_digests, part_name
from daband.training.log_sums import sums_in_turn
from daband.training.ray_sums import sums_on_ray
from daband.training.stop_signals import stop_signals_deferred

__all__ = ["LogWarning", "fit_log"]

Progress = Callable[[dict[str, float]], None]

_SAMPLE_ROWS = 65_536
"""Rounds that fix a transform and the range of rewards."""
_STREAM_PART_ROWS = 65_536
"""A policy that learns by gradients needs long for a part of the usual size; smaller ones are saved more often."""


class LogWarning(UserWarning):
    """A part of a log was left out."""


def fit_log(
    policy: Policy,
    log: str | Path | Sequence[str | Path] | ParquetLog,
    *,
    columns: Columns | None = None,
    table: TableTransform | None = None,
    target: Contexts | None = None,
    domain: str = "source",
    engine: str = "local",
    workers: int | None = None,
    ray_address: str = "local",
    propensity_weighting: str | None = None,
    on_damaged: str = "refuse",
    adapt_every: int = 1024,
    directory: str | Path | None = None,
    progress: Progress | None = None,
) -> Policy:
    """Fit a policy to a log in Parquet files of any size, and return it. Memory holds a few batches of rows.

    Args:
        policy: changed in place. What it has learned before stays. An error leaves a linear policy as it was. It keeps
            the digests of the files that it has learned: given again, they are not counted again.
        log: a folder of Parquet files, a glob such as ``"logs/*.parquet"``, a list of files, or a ``ParquetLog``.
        columns: which columns mean what; by default "arm", "reward" and "propensity", and all others are the context.
        table: turns the context columns into contexts, where they are not all numbers (``pair.table``). A policy
            for tables has its own, ``policy.table``, which is taken where neither columns nor a table are given.
        target: contexts of the target, for policies that adapt: as many are shown as there are logged rounds.
        domain: where the rounds were logged, "source" or "target".
        engine: "local", or "ray" to sum parts on a cluster, for policies that learn by sums.
        workers: workers of a local Ray cluster; one per core by default.
        ray_address: "local" starts a cluster on this machine; else one that Ray understands, e.g. "auto". Its machines
            must see the files under the same names.
        propensity_weighting: as in ``update``.
        on_damaged: "refuse" a file that cannot be read or holds what cannot be learned, with an error that names it; or
            "skip" it with a warning, and learn from the others.
        adapt_every: rounds between two calls of ``adapt``, for policies that learn by gradients.
        directory: keep there how far the run has come. Called again with the same settings, a run that was killed goes
            on at the first part that is not learned; files that have come to the log since are learned as well.
        progress: called after every part with ``rows``, ``rows_total``, ``parts``, ``parts_total``,
            ``rows_per_second`` and ``seconds_left``.

    >>> import polars as pl
    >>> rounds = pl.DataFrame({"x": [0.0, 1.0] * 20, "arm": [0, 1] * 20, "reward": [0.0, 1.0] * 20})
    >>> rounds.with_columns(propensity=0.5).write_parquet("log.parquet")
    >>> policy = daband.fit_log(daband.LinUCB(context_shape=(1,), n_arms=2, seed=0), "log.parquet")
    >>> policy.rounds_learned
    40
    """
    if not isinstance(policy, Policy):
        raise InvalidInput(f"policy must be a daband policy, got {policy!r}")
    if engine not in ("local", "ray"):
        raise InvalidInput(f"engine must be 'local' or 'ray', got {engine!r}")
    if target is not None and (not isinstance(target, Contexts) or isinstance(target, RewardDomain | LoggedDomain)):
        raise InvalidInput(f"target must be a stream of contexts without rewards, got {type(target).__name__}")
    adapt_every, where = whole("adapt_every", adapt_every, least=1), check_domain(domain)
    workers = None if workers is None else whole("workers", workers, least=1)
    opened = opened_log(
        log,
        n_arms=policy.n_arms,
        context_shape=policy.context_shape,
        shared=policy.arms == "shared",
        columns=columns,
        table=table,
        own_table=policy.table,
        on_damaged=on_damaged,
    )
    config = {
        "policy": {**policy.settings(), "name": policy.name},
        "columns": asdict(opened.columns),
        "domain": where,
        "propensity_weighting": propensity_weighting,
        "adapt_every": adapt_every if policy.learns_by_gradients else None,
    }
    for path, reason in opened.damaged.items():
        _warn(f"{reason}; {path} is left out", stacklevel=3)
    run = _LogRun(policy, opened, propensity_weighting, on_damaged, progress, LogFolder(directory, config))
    try:
        if isinstance(policy, RidgePolicy):
            run.sum_parts(policy, engine, workers, ray_address)
        elif engine == "ray":
            raise InvalidInput(
                f"engine='ray' adds up what parts of a log teach, and {policy.name} learns by steps, one after the "
                "other; use engine='local'"
            )
        else:
            run.stream(target, where, adapt_every)
    finally:
        run.folder.release()
    return policy


class _LogRun:
    """One call of ``fit_log``."""

    def __init__(
        self,
        policy: Policy,
        log: ParquetLog,
        weighting: str | None,
        on_damaged: str,
        progress: Progress | None,
        folder: LogFolder,
    ) -> None:
        self.policy, self.log, self.weighting = policy, log, weighting
        self.on_damaged, self.progress, self.folder = on_damaged, progress, folder
        self._begun = time.perf_counter()
        self._rows = self._parts = 0

    def sum_parts(self, policy: RidgePolicy, engine: str, workers: int | None, address: str) -> None:
        """Add up the sums of all parts, and learn them in the end."""
        policy.check_sum_weighting(self.weighting)
        blank = policy.without_rounds()
        parts = self.log.parts()
        learned = self._learned(parts)
        saved = None if learned else self.folder.read_policy("prepared")
        if learned:
            pass  # the policy was prepared when it learned them
        elif saved is None:
            if blank.needs_sample:
                first = next(iter(self.log.batches(self.log.parts(_SAMPLE_ROWS)[0])))
                blank.prepare_for_log(self.log.sample(_SAMPLE_ROWS), first.rewards)
            self.folder.write_policy("prepared", blank)
        else:
            blank.restore(saved)
        sums = blank.empty_sums()
        before = self.folder.read_sums(learned)
        if before is not None:
            sums.restore(before)
        todo = self._start(parts)
        if engine == "ray":
            outcomes = sums_on_ray(blank, self.log, todo, self.weighting, address=address, workers=workers)
        else:
            outcomes = sums_in_turn(blank, self.log, todo, self.weighting)

        def save() -> None:
            begun = time.perf_counter()
            self.folder.write_sums(sums.state())
            self.folder.timed(begun)

        with stop_signals_deferred(wanted=self.folder.path is not None) as request:
            for part, outcome in outcomes:
                if isinstance(outcome, DataError):
                    self._refuse_or_skip(outcome, save)
                else:
                    sums.merge(outcome)
                    self.folder.mark_done(self.log, part)
                self._tell(part, parts)
                if self.folder.due():
                    save()
                request.obey(save)
        save()
        done = [part for part in parts if part_name(part) in self.folder.done]
        policy.learn_sums(sums, blank, [self._digests[part_name(part)] for part in done])
        self.folder.finish_sums()

    def stream(self, target: Contexts | None, domain: str, adapt_every: int) -> None:
        """Update the policy with the log's rounds in their order, and let it adapt on the way."""
        policy = self.policy
        parts = self.log.parts(_STREAM_PART_ROWS)
        learned = self._learned(parts)
        saved = self.folder.read_policy("policy")
        known = {self._digests.get(name, "") for name in self.folder.done}
        if saved is not None and not (known and known <= learned):  # else it comes back with all that is in the folder
            policy.restore(saved)
            self._learned(parts, warn=False)
        elif policy.transform is not None and not policy.transform.fitted:
            beside = [] if target is None else [target.batch(0, min(_SAMPLE_ROWS, len(target)), seed=policy.seed)]
            policy.prepare(self.log.sample(_SAMPLE_ROWS), *beside)
        todo = self._start(parts)

        def save() -> None:
            begun = time.perf_counter()
            self.folder.write_policy("policy", policy)
            self.folder.timed(begun)

        save()
        with stop_signals_deferred(wanted=self.folder.path is not None) as request:
            for part in todo:
                try:
                    for _ in self.log.batches(part):  # read once before: what is damaged must not be half learned
                        pass
                except DataError as error:
                    self._refuse_or_skip(error, save)
                else:
                    self._learn(part, target, domain, adapt_every)
                    policy.log_parts |= {self._digests[part_name(part)]}
                    self.folder.mark_done(self.log, part)
                self._tell(part, parts)
                if self.folder.due():
                    save()
                request.obey(save)
        save()

    def _learn(self, part: LogPart, target: Contexts | None, domain: str, adapt_every: int) -> None:
        policy = self.policy
        for batch in self.log.batches(part, adapt_every):
            learned = policy.rounds_learned
            policy.update(
                batch.contexts,
                batch.arms,
                batch.rewards,
                domain,
                propensity=batch.propensities,
                propensity_weighting=self.weighting,
            )
            if target is not None:
                first = learned % target.rounds_available
                policy.observe_target(
                    target.batch(first, min(first + len(batch), target.rounds_available), seed=policy.seed)
                )
            policy.adapt()

    def _learned(self, parts: list[LogPart], *, warn: bool = True) -> frozenset[str]:
        """The digests of those parts that the policy has learned in an earlier call."""
        self._digests = part_digests(parts)
        learned = self.policy.log_parts & frozenset(self._digests.values())
        self._before = [part for part in parts if self._digests[part_name(part)] in learned]
        if self._before and warn and self.folder.path is None:
            rounds = sum(len(part) for part in self._before)
            _warn(
                f"the policy has learned {self._before[0].label} before; {rounds:,} rounds that it knows are not "
                "counted again",
                stacklevel=4,
            )
        return learned

    def _start(self, parts: list[LogPart]) -> list[LogPart]:
        before = {part.label for part in self._before}
        todo = [part for part in self.folder.todo(self.log, parts) if part.label not in before]
        left = {part.label for part in todo}
        self._found = sum(len(part) for part in parts if part.label not in left)
        self._rows, self._parts = self._found, len(parts) - len(todo)
        self._begun = time.perf_counter()
        return todo

    def _refuse_or_skip(self, error: DataError, save: Callable[[], None]) -> None:
        if self.on_damaged == "refuse":
            save()
            kept = "" if self.folder.path is None else f"; what was learned before is kept in {self.folder.path}"
            raise DataError(f"{error}{kept}; on_damaged='skip' learns from the other parts") from None
        _warn(f"{error}; this part is left out", stacklevel=4)

    def _tell(self, part: LogPart, parts: Sequence[LogPart]) -> None:
        self._rows += len(part)
        self._parts += 1
        if self.progress is None:
            return
        rate = (self._rows - self._found) / max(time.perf_counter() - self._begun, 1e-9)
        self.progress(
            {
                "rows": self._rows,
                "rows_total": len(self.log),
                "parts": self._parts,
                "parts_total": len(parts),
                "rows_per_second": rate,
                "seconds_left": (len(self.log) - self._rows) / max(rate, 1e-9),
            }
        )


def _warn(message: str, *, stacklevel: int) -> None:
    warnings.warn(message, LogWarning, stacklevel=stacklevel + 1)
