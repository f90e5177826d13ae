"""Estimate from the ledger what versions of the policy gained, and what the newest is expected to
add.

All estimates are means of doubly robust scores, which are weighted by the propensities in the
ledger. So they hold for any exploration, and for any control group.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from daband.base._arrays import BoolArray, FloatArray, IntArray, take_chosen
from daband.base._folds import assign_folds
from daband.ledger._log_import import compute_probabilities
from daband.ledger._store import LoggedReward, Store
from daband.ledger._versions import parse_rows, read_rounds
from daband.logs._mean_estimates import MeanEstimate, estimate_mean
from daband.logs._scores import Scores
from daband.policies._policy import Policy
from daband.rounds._rounds import Rounds
from daband.serving._deployed_policy import find_arm_index, load_deployed_bytes

#: Number of folds of cross-fitting.
_N_FOLDS = 3
#: Maximum number of rounds of cross-fitting, which learns each of them twice.
_MAX_CROSS_FITTED = 10_000
#: Maximum number of rounds from which means and lifts are estimated.
_MAX_SCORED = 30_000
#: Roles of decisions for the incumbent's arm.
_CONTROL_ROLES = ("control", "fallback")
#: Level of the intervals of means and lifts.
CONFIDENCE = 0.95


@dataclass(frozen=True)
class VersionRecord:
    """What happened while a version of the policy decided."""

    #: The version.
    version: int
    #: Number of decisions, and of rewards that have arrived.
    decisions: int
    rewards: int
    #: Mean reward outside the control group, with its standard error; None without rewards.
    mean: MeanEstimate | None
    #: Number of rewards of the control group, and their mean; None without rewards.
    control_rewards: int
    control_mean: MeanEstimate | None
    #: Mean reward of the version minus that of the incumbent, in all rounds; None if the rounds do
    #: not show it.
    lift: MeanEstimate | None
    #: Fraction of decisions that were drawn for exploration.
    explored: float
    #: Mean reward of each arm with its standard error, (K,), weighted by propensities.
    arm_means: tuple[MeanEstimate, ...]
    #: The times of the first and the last decision, in seconds since 1970.
    first_time: float
    last_time: float


class Gains(NamedTuple):
    """What the newest version is expected to gain, in rounds that it has not learned."""

    #: Expected gain over the incumbent; its standard error is infinite if the rounds do not show it.
    over_incumbent: MeanEstimate
    #: Expected gain over the version that ran.
    over_running: MeanEstimate
    #: Fraction of the rounds in which the newest version and the incumbent differ; None if the
    #: incumbent is not known.
    disagreement: float | None
    #: Fraction of the rounds for which the newest version chooses each arm, (K,), or empty.
    arm_fractions: tuple[float, ...]

    @classmethod
    def from_list(cls, values: Sequence[Any]) -> Gains:
        """Return the gains from their list in JSON."""
        over_incumbent, over_running, disagreement, fractions = values
        return cls(
            MeanEstimate(*over_incumbent),
            MeanEstimate(*over_running),
            disagreement,
            tuple(fractions),
        )


def find_incumbent_arms(
    entries: Sequence[LoggedReward],
    arm_names: Sequence[str],
    incumbent: int | str | None,
) -> IntArray | None:
    """Return the incumbent's arm of each row, (n,): one arm, or that in the rows' column.

    None if it is not known.
    """
    if incumbent is None:
        return None
    if isinstance(incumbent, int):
        return np.full(len(entries), incumbent)
    rows = parse_rows([str(entry.event.context) for entry in entries])
    if not all(isinstance(row, dict) and row.get(incumbent) is not None for row in rows):
        return None
    return np.array(
        [find_arm_index(str(row[incumbent]), arm_names, f"column {incumbent}") for row in rows]
    )


def record_versions(
    store: Store, policy: Policy, incumbent: int | str | None, cluster: str | None = None
) -> list[VersionRecord]:
    """Return what happened while each version decided, the oldest version first.

    Args:
        store: the ledger.
        policy: the policy, by which rows are read.
        incumbent: the incumbent's arm, or the column with it; None if it is not known.
        cluster: the column of the cluster that arms were drawn for.
    """
    version_of = {row.number: row.version for row, _ in store.list_models()}
    newest = {entry.event.event_id: entry for entry in store.read_rewards(0)}
    by_version: dict[int, list[LoggedReward]] = {}
    for entry in newest.values():
        if entry.event.model in version_of and entry.event.context is not None:
            by_version.setdefault(version_of[entry.event.model], []).append(entry)
    counts: dict[int, list[Any]] = {}
    for model, role, n, first, last in store.read(
        "SELECT model, role, COUNT(*), MIN(time), MAX(time) FROM events GROUP BY model, role"
    ):
        if model in version_of:
            counts.setdefault(version_of[model], []).append((role, n, first, last))
    records = []
    for version in sorted(counts):
        groups = counts[version]
        n_decisions = sum(n for _, n, _, _ in groups)
        entries = by_version.get(version, [])
        means = _compute_means(store, policy, entries, incumbent, cluster) if entries else {}
        records.append(
            VersionRecord(
                version=version,
                decisions=n_decisions,
                rewards=len(entries),
                explored=sum(n for role, n, _, _ in groups if role == "exploration") / n_decisions,
                first_time=min(first for _, _, first, _ in groups),
                last_time=max(last for _, _, _, last in groups),
                **{**_NO_MEANS, **means},
            )
        )
    return records


#: The means of a version without rewards.
_NO_MEANS: dict[str, Any] = {
    "mean": None,
    "control_rewards": 0,
    "control_mean": None,
    "lift": None,
    "arm_means": (),
}


def _compute_means(
    store: Store,
    policy: Policy,
    entries: Sequence[LoggedReward],
    incumbent: int | str | None,
    cluster: str | None,
) -> dict[str, Any]:
    """Return the means and the lift of a ``VersionRecord``, from at most 30,000 rewards."""
    n_control = sum(entry.event.role in _CONTROL_ROLES for entry in entries)
    entries = sample_entries(entries, _MAX_SCORED)
    rounds = read_rounds(policy, entries, cluster)
    clusters = _index_clusters(rounds)
    is_control = np.array([entry.event.role in _CONTROL_ROLES for entry in entries])
    models = np.array([entry.event.model for entry in entries])
    all_controls = np.array([entry.event.control or 0.0 for entry in entries])
    scores = Scores(rounds, policy.n_arms).values
    values = np.full(len(rounds), np.nan)
    for model in np.unique(models):
        rows = np.flatnonzero(models == model)
        deployed = load_deployed_bytes(store.read_content(int(model)))
        controls = all_controls[rows]
        if deployed.limiter is None and rounds.offered is None:
            probabilities = compute_probabilities(deployed, rounds.contexts[rows])
            values[rows] = (probabilities * scores[rows]).sum(axis=1)
        else:  # its probabilities depend on earlier decisions
            weights = ~is_control[rows] / (1.0 - controls)
            values[rows] = weights * rounds.rewards[rows]
    incumbents = find_incumbent_arms(entries, policy.arm_names or (), incumbent)
    lift = None
    if incumbents is not None and (rounds.arms == incumbents).any():
        lift = estimate_mean(values - take_chosen(scores, incumbents), clusters)
    return {
        "mean": None if is_control.all() else estimate_mean(rounds.rewards[~is_control]),
        "control_rewards": n_control,
        "control_mean": estimate_mean(rounds.rewards[is_control]) if is_control.any() else None,
        "lift": lift,
        "arm_means": tuple(estimate_mean(column, clusters) for column in scores.T),
    }


def estimate_gains(
    running: Policy,
    earlier: Policy,
    rounds: Rounds,
    incumbents: IntArray | None,
    is_new: BoolArray,
) -> Gains:
    """Return the expected gains of the version that learns rounds of the target.

    An estimate from learned rounds would be too high, so it is cross-fitted: a third of the rounds
    is decided by a copy of the ``earlier`` version that learns the other two thirds. (Networks take
    no gradient steps.)

    Args:
        running: the version that ran.
        earlier: the version that learns the rounds.
        rounds: rounds of the target, which ``earlier`` has not learned.
        incumbents: the incumbent's arm of each round, (n,); None if it is not known.
        is_new: True for the rounds that only the newest version has learned, (n,). They give the
            gain over the incumbent, so that the gains of all versions can be averaged.
    """
    n_rounds = len(rounds)
    clusters = _index_clusters(rounds)
    folds = assign_folds(n_rounds, _N_FOLDS, clusters=clusters)
    running_arms = running.decide(rounds.contexts, "target", rule="greedy").arm
    arms = running_arms.copy()
    for fold in range(_N_FOLDS if folds.max() == _N_FOLDS - 1 else 0):
        policy = copy.deepcopy(earlier)
        learned = rounds.select(np.flatnonzero(folds != fold))
        policy.update(**learned.to_arguments(), domain="target")
        policy.observe_target(learned.contexts)
        contexts = rounds.contexts[folds == fold]
        arms[folds == fold] = policy.decide(contexts, "target", rule="greedy").arm
    scores = Scores(rounds, running.n_arms).values
    scale = float(running.reward_moments.scale)
    unknown = MeanEstimate(0.0, math.inf)
    over_running = _estimate_gain(rounds, scores, arms, running_arms, scale, clusters)
    if incumbents is None:
        return Gains(unknown, over_running, None, ())
    new_rounds = rounds.select(is_new)
    arms, incumbents = arms[is_new], incumbents[is_new]
    new_clusters = _index_clusters(new_rounds)
    over_incumbent = _estimate_gain(
        new_rounds, scores[is_new], arms, incumbents, scale, new_clusters
    )
    fractions = np.bincount(arms, minlength=running.n_arms) / len(arms)
    disagreement = float((arms != incumbents).mean())
    return Gains(over_incumbent, over_running, disagreement, tuple(fractions.tolist()))


def sample_entries(
    entries: Sequence[LoggedReward], n: int = _MAX_CROSS_FITTED
) -> Sequence[LoggedReward]:
    """Return at most n rewards, at equal distances."""
    if len(entries) <= n:
        return entries
    rows = np.linspace(0, len(entries) - 1, n).astype(int)
    return [entries[row] for row in rows]


def _estimate_gain(
    rounds: Rounds,
    scores: FloatArray,
    arms: IntArray,
    others: IntArray,
    scale: float,
    clusters: IntArray | None,
) -> MeanEstimate:
    """Return the mean score of arms (n,) minus that of other arms (n,).

    The standard error is infinite if no round has another arm where the two differ.
    """
    differs = arms != others
    if not differs.any():
        return MeanEstimate(0.0, 0.0)
    gain = estimate_mean(take_chosen(scores, arms) - take_chosen(scores, others), clusters)
    weights = ((rounds.arms == arms) | (rounds.arms == others)) / rounds.known_propensities
    error: Any = math.inf
    if (differs & (rounds.arms == others)).any():  # the rewards of few rounds may agree by chance
        error = scale * np.linalg.norm(weights * differs) / len(rounds)
    return gain._replace(standard_error=max(gain.standard_error, error))


def _index_clusters(rounds: Rounds) -> IntArray | None:
    """Return the index of the cluster of each round; None without clusters."""
    if rounds.clusters is None:
        return None
    return np.unique(rounds.clusters, return_inverse=True)[1]
