"""Find out whether a policy has learned rounds of a log, and reject such a log.

A policy chooses the arms whose rewards were high in the rounds that it has learned. An estimate of
its value from these rounds would be too high, so ``evaluate_log`` raises an error for them.

``Policy.log_parts`` has an entry "DIGEST:START-STOP" for each learned part of a file: the digest of
the file's content and the range of the learned rows. The entry of a target log starts with
``TARGET_PREFIX``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daband.domains._contract import LoggedDomain
from daband.domains.readers._parquet_log import ParquetLog
from daband.domains.readers._reading import TARGET_PREFIX, compute_digests
from daband.errors import InvalidInput


def count_learned(policy: Any, log: ParquetLog, id_column: str | None = None) -> int:
    """Return the number of rounds of a log that a policy or a deployed policy has learned.

    Rounds that ``fit_log`` or ``learn_log`` has learned are identified by the digests of their
    files. With ``id_column``, the column of round ids, rounds that ``update`` has learned are
    identified by their ids.
    """
    learned_ranges: dict[str, list[tuple[int, int]]] = {}
    for entry in getattr(policy, "log_parts", ()):
        digest, _, row_range = entry.removeprefix(TARGET_PREFIX).partition(":")
        start, _, stop = row_range.partition("-")
        if stop:
            learned_ranges.setdefault(digest, []).append((int(start), int(stop)))
    learned_ids = getattr(policy, "_round_ids", ())
    if not learned_ranges and not learned_ids:
        return 0
    n_learned = 0
    for part, part_entry in compute_digests(log.parts()).items():
        is_learned = np.zeros(len(part), np.bool_)
        for start, stop in learned_ranges.get(part_entry.partition(":")[0], ()):
            is_learned[max(0, start - part.start) : max(0, stop - part.start)] = True
        if id_column is not None:
            is_learned |= np.array(
                [round_id in learned_ids for round_id in log.read_values(part, id_column)], np.bool_
            )
        n_learned += int(is_learned.sum())
    return n_learned


def has_learned_all(policy: Any, log: Any) -> bool:
    """Return True if a policy has learned the rounds of a log that was read from files."""
    logs = log.by_name.values() if isinstance(log, LoggedDomain) else ()
    entries = {part for log in logs for part in log.log_parts}  # type: ignore[attr-defined]
    return bool(entries) and entries <= getattr(policy, "log_parts", frozenset())


def is_policy(policy: Any) -> bool:
    """Return True for a ``daband.Policy``, which is defined in a package above this one."""
    return hasattr(policy, "learn_full")


def check_ids_not_learned(policy: Any, ids: Any, n_rounds: int) -> None:
    """Raise an error if a policy has learned a round with one of ``ids``, which has one id per
    round.
    """
    if is_policy(policy):
        round_ids = policy._round_ids.check(ids, n_rounds)
        raise_if_learned(sum(round_id in policy._round_ids for round_id in round_ids), n_rounds)


def raise_if_learned(n_learned: int, n_rounds: int) -> None:
    """Raise an error unless ``n_learned``, the number of learned rounds among ``n_rounds``,
    is 0.
    """
    if not n_learned:
        return
    learned_part = (
        "the log"
        if n_learned == n_rounds
        else f"{n_learned:,} of the {n_rounds:,} rounds of the log"
    )
    raise InvalidInput(
        f"the policy has learned {learned_part}: an estimate from the same rounds would be too"
        " high; evaluate the version that had not learned them, or pass a later log"
    )
