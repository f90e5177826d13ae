"""Logs that a policy has learned: its estimated value on them is too high, unless it is cross-fitted.

A policy chooses the arms whose rewards were high in the rounds that it has learned. An estimate from these rounds is
therefore biased upwards. ``evaluate_log`` rejects such a log, or evaluates policies that have learned the other
folds of it.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from daband._arrays import FloatArray
from daband.domains.readers._parquet_log import ParquetLog
from daband.domains.readers._reading import part_digests
from daband.errors import InvalidInput
from daband.evaluation._off_policy_inputs import CheckedLog
from daband.evaluation._weighted_log import FOLDS
from daband.linear._doubly_robust import fold_numbers
from daband.policies._policy import Policy
from daband.weights import importance

#: Rounds between two calls of ``adapt``, as in ``learn_log``.
_ADAPT_EVERY = 1024
_OF_TARGET = "target/"


class LearnedLog(InvalidInput):
    """The policy has learned the log on which it should be evaluated."""


def count_learned(policy: Any, log: ParquetLog, id_column: str | None = None) -> int:
    """Return the number of rounds of a log that a policy, or an exported policy, has learned.

    Rounds are identified by the digests of files that ``fit_log`` and ``learn_log`` read, and with ``id_column`` by the
    ids that ``update`` got.
    """
    learned: dict[str, list[tuple[int, int]]] = {}
    for key in getattr(policy, "log_parts", ()):
        digest, _, rows = key.removeprefix(_OF_TARGET).partition(":")
        start, _, stop = rows.partition("-")
        if stop:
            learned.setdefault(digest, []).append((int(start), int(stop)))
    ids = getattr(policy, "_ids", ())
    if not learned and not ids:
        return 0
    count = 0
    for part, of_part in part_digests(log.parts()).items():
        known = np.zeros(len(part), np.bool_)
        for start, stop in learned.get(of_part.partition(":")[0], ()):
            known[max(0, start - part.start) : max(0, stop - part.start)] = True
        if id_column is not None:
            known |= np.array([name in ids for name in log.values(part, id_column)], np.bool_)
        count += int(known.sum())
    return count


def check_unlearned(policy: Any, log: ParquetLog, id_column: str | None) -> None:
    """Raise ``LearnedLog`` if the policy has learned rounds of the log."""
    _refuse_learned(count_learned(policy, log, id_column), len(log))


def check_unlearned_ids(policy: Any, ids: Any, n: int) -> None:
    """Raise ``LearnedLog`` if the policy has learned rounds with these ids, one for each of ``n`` rounds."""
    if isinstance(policy, Policy):
        _refuse_learned(sum(name in policy._ids for name in policy._ids.check(ids, n)), n)


def _refuse_learned(learned: int, rounds: int) -> None:
    if not learned:
        return
    some = "the log" if learned == rounds else f"{learned:,} of the {rounds:,} rounds of the log"
    raise LearnedLog(
        f"the policy has learned {some}: an estimate from the same rounds would be too high; evaluate the version "
        "that had not learned them, or give a later log",
        remedies={"before": "or give the earlier version as before="},
    )


def check_before(policy: Any, before: Policy, log: ParquetLog, id_column: str | None) -> None:
    """Raise an error unless the policy is ``before`` after it has learned the log and nothing else."""
    if count_learned(before, log, id_column):
        raise LearnedLog("before has learned rounds of the log, too; give the version that had not")
    if count_learned(policy, log, id_column) < len(log):
        raise InvalidInput("before is for a log that the policy has learned, and it has not learned all of this one")
    digests = {digest.partition(":")[0] for digest in part_digests(log.parts()).values()}
    more = {key for key in policy.log_parts - before.log_parts if not key.startswith("version/")}
    ids = set(policy._ids) - set(before._ids) if id_column is not None else set()
    for part in log.parts() if ids else ():
        ids -= set(log.values(part, id_column))
    if ids or any(key.removeprefix(_OF_TARGET).partition(":")[0] not in digests for key in more):
        raise InvalidInput("the policy has learned other rounds since before; evaluate it on a later log")


def refitted_probabilities(
    before: Policy, rounds: CheckedLog, *, domain: str, rule: str | None, seed: int
) -> FloatArray:
    """Return the probability of every arm (n, K) by policies that have learned the other folds of the log.

    Args:
        before: the policy as it was before it learned the log.
        rounds: the log.
        domain: the domain in which the rounds were played.
        rule: "ucb" or "greedy" instead of the policy's exploration.
        seed: fixes the folds.
    """
    numbers = fold_numbers(0, len(rounds.arms), FOLDS, seed)
    probabilities = np.empty((len(rounds.arms), before.n_arms))
    for fold in range(FOLDS):
        policy = copy.deepcopy(before)
        learned, held = np.flatnonzero(numbers != fold), np.flatnonzero(numbers == fold)
        if not policy.prepared:
            policy.prepare(rounds.contexts[learned])
        for start in range(0, len(learned), _ADAPT_EVERY):
            rows = learned[start : start + _ADAPT_EVERY]
            weights = None
            if rounds.propensities is not None:
                weights = importance(rounds.propensities[rows], policy.n_arms, power=policy.propensity_power)
            policy.update(rounds.contexts[rows], rounds.arms[rows], rounds.rewards[rows], domain, weights)
            policy.adapt()
        probabilities[held] = policy.probabilities(rounds.contexts[held], domain, rule=rule)
    return probabilities
