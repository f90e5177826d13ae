"""Check a log against the ledger, and enter its decisions and rewards: all of them, or nothing.

``daband decide`` writes a log where the market's folder may not be. Its rows have the id of the
decision, the arm, its propensity, the version that decided, the role, and the probability of the
control group. ``enter_log`` checks that an exported file of the market can have made each decision.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from daband.base._arrays import AnyArray, BoolArray, FloatArray, IntArray
from daband.base._lazy_polars import pl
from daband.domains.readers._columns import Columns
from daband.domains.readers._reading import list_log_files, read_table
from daband.domains.readers._rounds import read_rounds, require_numbers
from daband.errors import InvalidInput, did_you_mean
from daband.features._table_transform import ROW_COLUMN, row_number
from daband.ledger._store import Event, Reward, Store, Transaction
from daband.ledger._versions import make_reader, parse_rows, read_contexts
from daband.policies._policy import Policy
from daband.serving._deployed_policy import DeployedPolicy, load_deployed_bytes

#: The columns that ``decide`` adds to the rows.
DECISION_COLUMNS = ("arm", "propensity", "reward", "version", "role", "control", "decision_id")
#: The column with the arms that could be chosen.
_OFFERED_COLUMN = "offered"
#: The roles of decisions of an exported file.
_ROLES = ("policy", "exploration", "control", "pilot")
#: The largest relative difference between a logged propensity and the one of the exported file.
#: Programs may have rounded it.
_MAX_DIFFERENCE = 1e-3


@dataclass(frozen=True)
class LogNames:
    """The columns of a log."""

    arm: str = "arm"
    reward: str = "reward"
    propensity: str = "propensity"
    id: str = "decision_id"
    #: The column with a second outcome; None if there is none.
    guardrail: str | None = None
    #: The column of the cluster that arms were drawn for; None if there is none.
    cluster: str | None = None

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that every log must have."""
        return self.id, self.arm, self.reward, self.propensity


class EnteredLog(NamedTuple):
    """The number of rows of a log, by what was new in the ledger."""

    #: Rows of the log.
    rows: int
    #: Decisions that were not in the ledger.
    decisions: int
    #: Rewards that were not in the ledger.
    rewards: int
    #: Rewards that replaced other rewards.
    corrected: int
    #: Rows without a reward.
    missing: int


class _Rows(NamedTuple):
    """The columns of a log after their check."""

    name: str
    frame: pl.DataFrame
    ids: list[str]
    arms: IntArray
    propensities: FloatArray
    #: NaN for missing rewards.
    rewards: FloatArray
    guardrails: FloatArray
    #: The raw rows as JSON.
    contexts: list[str]
    #: Lists of eligible arms as JSON; None for all.
    eligible: list[str | None]

    def describe(self, index: int) -> str:
        """Return the row of an index for an error message."""
        return f"{self.name}: row {row_number(self.frame, int(index))} (id {self.ids[index]})"


def enter_log(
    store: Store,
    policy: Policy,
    log: Any,
    names: LogNames,
    *,
    correct: bool = False,
    external: bool = False,
    now: float,
) -> EnteredLog:
    """Check a log, and write its new decisions and rewards in one transaction.

    Args:
        store: the ledger.
        policy: the policy of the market, which has the names of the arms.
        log: files, as in ``learn_log``, or a frame.
        names: the columns.
        correct: True to replace rewards in the ledger by other rewards of the log. Otherwise other
            rewards are an error.
        external: True for the log of another system, whose propensities are not checked.
        now: the time, in seconds since 1970.
    """
    rows = _read_rows(log, policy, names)
    contexts: AnyArray | None = None
    while True:
        decided = store.read_note("decided") or ""
        known = store.find_events(rows.ids)
        is_new = np.array([event_id not in known for event_id in rows.ids], np.bool_)
        for index in np.flatnonzero(~is_new):
            _check_repeated(rows, int(index), known[rows.ids[index]])
        models = np.full(len(rows.ids), -1)
        roles = ["external"] * len(rows.ids)
        controls: FloatArray = np.full(len(rows.ids), np.nan)
        if is_new.any() and not external:
            roles, controls = _read_roles(rows)
            if contexts is None:
                contexts = read_contexts(make_reader(policy), parse_rows(rows.contexts))
            models = _find_models(store, rows, contexts, roles, controls, is_new)
        events = [
            Event(
                event_id=rows.ids[index],
                time=now,
                role=roles[index],
                domain="target",
                model=int(models[index]),
                arm=int(rows.arms[index]),
                propensity=float(rows.propensities[index]),
                context=rows.contexts[index],
                eligible=rows.eligible[index],
                digest=_hash_row(rows.contexts[index]),
                control=float(controls[index]) if 0.0 < controls[index] < 1.0 else None,
                log=int(decided or 0) + 1,
            )
            for index in np.flatnonzero(is_new)
        ]
        with store.transact() as transaction:
            if (transaction.read_note("decided") or "") != decided:
                continue  # another process has entered decisions since
            rewards, n_corrected = _compare_rewards(transaction, rows, correct, now)
            transaction.insert_entries(events)
            transaction.insert_entries(rewards)
            if events:
                transaction.write_note("decided", f"{int(decided or 0) + 1}")
            missing = int(np.isnan(rows.rewards).sum())
            return EnteredLog(
                len(rows.ids), len(events), len(rewards) - n_corrected, n_corrected, missing
            )


def read_log_frame(log: Any) -> tuple[str, pl.DataFrame]:
    """Return the name of a log and its rows: a frame, or files as in ``learn_log``."""
    if hasattr(log, "columns"):
        return "the log", read_table(log)
    paths = list_log_files(log)
    frames = [read_table(path) for path in paths]
    name = str(paths[0]) if len(paths) == 1 else str(log)
    return name, frames[0] if len(frames) == 1 else pl.concat(frames, how="diagonal_relaxed")


def read_ids(column: pl.Series, table: str) -> list[str]:
    """Return the ids of rows as texts. Raise an error if one is missing or repeated."""
    if column.dtype.is_float() and (column == column.round()).all():
        column = column.cast(pl.Int64)  # other programs write ids with a missing value as floats
    ids = column.cast(pl.String)
    if ids.null_count() or (ids == "").any():
        raise InvalidInput(f"{table} has a row without an id in column {column.name!r}")
    if ids.n_unique() < len(ids):
        repeated = ids.filter(ids.is_duplicated())[0]
        raise InvalidInput(
            f"{table}: column {column.name!r} has the id {repeated!r} more than once; every decision"
            " needs its own id"
        )
    return ids.to_list()


def _read_rows(log: Any, policy: Policy, names: LogNames) -> _Rows:
    """Read a log, and check the values of its columns."""
    name, frame = read_log_frame(log)
    for column in (*names.needed, names.cluster):
        if column is not None and column not in frame.columns:
            option = next(role for role in vars(names) if getattr(names, role) == column)
            raise InvalidInput(
                f"{name} has no column {column!r}{did_you_mean(column, frame.columns)} (its columns:"
                f" {', '.join(frame.columns)}); --{option} names the column with"
                f" {'an id for each decision' if option == 'id' else f'the {option}'}"
            )
    if not len(frame):
        raise InvalidInput(f"{name} has no rows")
    ids = read_ids(frame[names.id], name)
    arm_names = list(policy.arm_names or map(str, range(policy.n_arms)))
    logged_arms = frame[names.arm].drop_nulls()
    if logged_arms.dtype.is_numeric() and not logged_arms.cast(pl.String).is_in(arm_names).all():
        arm_names = [str(index) for index in range(policy.n_arms)]
    offered = frame.schema.get(_OFFERED_COLUMN)
    is_list = offered is not None and (offered == pl.String or isinstance(offered, pl.List))
    is_list = is_list and not (policy.table and _OFFERED_COLUMN in policy.table.names)
    columns = Columns(
        arm=names.arm,
        reward=names.reward,
        propensity=names.propensity,
        offered=_OFFERED_COLUMN if is_list else None,
    )
    options: dict[str, Any] = {"arm_names": arm_names, "table_name": name}
    without_rewards = frame.with_columns(pl.lit(0.0).alias(names.reward))
    rounds = read_rounds(without_rewards, columns, np.zeros((len(frame), 0)), **options)
    eligible: list[str | None] = [None] * len(frame)
    if rounds.offered is not None:
        eligible = [str(np.flatnonzero(mask).tolist()) for mask in rounds.offered]
    numbered = frame.with_row_index(ROW_COLUMN) if ROW_COLUMN not in frame.columns else frame
    is_given = frame[names.reward].is_not_null()
    if frame.schema[names.reward].is_float():
        is_given &= frame[names.reward].is_not_nan()
    given = numbered.filter(is_given)
    rewards = np.full(len(frame), np.nan)
    guardrails = np.full(len(frame), np.nan)
    if len(given):
        has_guardrail = names.guardrail in frame.columns
        columns = Columns(
            arm=names.arm,
            reward=names.reward,
            guardrail=names.guardrail if has_guardrail else None,
        )
        rewarded = read_rounds(given, columns, np.zeros((len(given), 0)), **options)
        rewards[is_given.to_numpy()] = rewarded.rewards
        if rewarded.guardrail is not None:
            guardrails[is_given.to_numpy()] = rewarded.guardrail.values
    logged = {*names.needed, *DECISION_COLUMNS, *([_OFFERED_COLUMN] if is_list else [])}
    if policy.table is not None:  # an id may be a column of the table that contexts do not use
        logged -= set(policy.table.names)
    raw = frame.drop([column for column in frame.columns if column in logged])
    return _Rows(
        name,
        frame,
        ids,
        rounds.arms,
        rounds.known_propensities,
        rewards,
        guardrails,
        write_rows(raw, as_lists=policy.table is None),
        eligible,
    )


def write_rows(frame: pl.DataFrame, *, as_lists: bool) -> list[str]:
    """Return the rows of a frame as JSON: mappings, or lists if all columns are numbers."""
    is_numeric = all(dtype.is_numeric() for dtype in frame.dtypes)
    if as_lists and is_numeric:
        return [str(row) for row in frame.cast(pl.Float64).to_numpy().tolist()]
    if as_lists and len(frame.columns) == 1 and isinstance(frame.dtypes[0], pl.List | pl.Array):
        return [str(row) for row in frame.to_series().to_list()]
    if as_lists:  # files of images, which are read again from any working directory
        frame = frame.with_columns(
            pl.col(pl.String).map_elements(lambda path: str(Path(path).resolve()), pl.String)
        )
    buffer = io.BytesIO()
    frame.write_ndjson(buffer)
    return buffer.getvalue().decode().splitlines()


def _check_repeated(rows: _Rows, index: int, event: Event) -> None:
    """Raise an error if a row differs from the decision in the ledger."""
    is_close = abs(rows.propensities[index] - event.propensity) <= (
        _MAX_DIFFERENCE * event.propensity
    )
    if rows.arms[index] != event.arm or not is_close:
        raise InvalidInput(
            f"{rows.describe(index)} has another arm or propensity than this decision has in the"
            f" ledger ({event.propensity:g}); nothing was learned. A new decision needs a new id"
        )


def _read_roles(rows: _Rows) -> tuple[list[str], FloatArray]:
    """Return the role and the probability of the control group of each row."""
    frame = rows.frame
    for column in ("version", "role", "control"):
        if column not in frame.columns:
            raise InvalidInput(
                f"{rows.name} has no column {column!r}, which `daband decide` writes; learn the log"
                " of another system with --external"
            )
    roles = [str(role) for role in frame["role"].to_list()]
    unknown = next((role for role in roles if role not in _ROLES), None)
    if unknown is not None:
        raise InvalidInput(
            f"{rows.name} has {unknown!r} in column 'role', which is none of {', '.join(_ROLES)}"
        )
    controls = require_numbers(frame, "control", rows.name)
    if not ((controls >= 0.0) & (controls <= 1.0)).all():
        raise InvalidInput(f"{rows.name}: column 'control' must have probabilities")
    return roles, controls


def _find_models(
    store: Store,
    rows: _Rows,
    contexts: AnyArray,
    roles: Sequence[str],
    controls: FloatArray,
    is_new: BoolArray,
) -> IntArray:
    """Return the number of the newest exported file that can have made each decision, (n,).

    Raise an error if none can have made one of them.
    """
    versions = require_numbers(rows.frame, "version", rows.name)
    models = np.full(len(roles), -1)
    is_pilot = np.array([role == "pilot" for role in roles])
    exported = [row for row, is_stored in store.list_models() if is_stored and row.origin == "file"]
    for row in exported:
        pending = np.flatnonzero(is_new & (models < 0) & (versions == row.version))
        if not len(pending):
            continue
        deployed = load_deployed_bytes(store.read_content(row.number))
        pending = pending[is_pilot[pending] <= (deployed.pilot is not None)]
        if not len(pending):
            continue
        expected = compute_propensities(
            deployed,
            contexts[pending],
            [rows.contexts[index] for index in pending],
            rows.arms[pending],
            np.full(len(pending), deployed.control) if deployed.pilot else controls[pending],
        )
        given = rows.propensities[pending]
        if expected is not None:
            is_possible = (expected > 0.0) & (
                np.abs(given - expected) <= _MAX_DIFFERENCE * expected
            )
            pending = pending[is_possible]
        models[pending] = row.number
    is_wrong = is_new & (models < 0)
    if is_wrong.any():
        index = int(np.argmax(is_wrong))
        version = rows.frame["version"][index]
        known = sorted({row.version for row in exported})
        if version not in known:
            raise InvalidInput(
                f"{rows.describe(index)} was decided by version {version}, which was not exported"
                f" from this market (its exported versions: {', '.join(map(str, known)) or 'none'});"
                " learn the log of another system with --external"
            )
        raise InvalidInput(
            f"{rows.describe(index)} has a propensity of {rows.propensities[index]:g}, which version"
            f" {version} cannot have given for this row, arm and control group; nothing was learned"
        )
    return models


def compute_propensities(
    deployed: DeployedPolicy,
    contexts: AnyArray,
    rows: Sequence[str],
    arms: IntArray,
    controls: FloatArray,
) -> FloatArray | None:
    """Return the probability with which an exported file chooses each arm (n,), or None if it
    depends on earlier decisions, because the file has limits.

    ``controls`` (n,) are the probabilities of the control group.
    """
    if deployed.limiter is not None:
        return None
    n = np.arange(len(arms))
    probabilities = compute_probabilities(deployed, contexts)
    chosen = (1.0 - controls) * probabilities[n, arms]
    if not controls.any():
        return chosen
    incumbents = find_incumbents(deployed, rows)
    return chosen + controls * (arms == incumbents)


def compute_probabilities(deployed: DeployedPolicy, contexts: AnyArray) -> FloatArray:
    """Return the probability with which an exported file chooses every arm, (n, K), outside the
    control group.
    """
    frozen = deployed.frozen
    mean, bonus = frozen.score(contexts)
    mask = None
    if frozen.offered is not None:
        mask = np.tile(frozen.offered, (len(contexts), 1))
    return frozen.compute_probabilities(mean, bonus, mask)


def find_incumbents(deployed: DeployedPolicy, rows: Sequence[str]) -> IntArray:
    """Return the incumbent of each row, (n,); -1 if it is not known."""
    column = deployed.incumbent_column
    if column is not None:
        names = [str(row.get(column)) for row in parse_rows(rows)]
        return np.array([deployed.find_arm_index(name, f"column {column}") for name in names])
    return np.full(len(rows), -1 if deployed.incumbent is None else deployed.incumbent)


def _compare_rewards(
    transaction: Transaction, rows: _Rows, correct: bool, now: float
) -> tuple[list[Reward], int]:
    """Return the rewards of a log that the ledger does not have, and how many replace others."""
    known = transaction.find_rewards(rows.ids)
    rewards = []
    n_corrected = 0
    for index in np.flatnonzero(~np.isnan(rows.rewards)):
        event_id, reward = rows.ids[index], float(rows.rewards[index])
        old_reward, old_kind = known.get(event_id, (None, ""))
        if old_reward == reward:
            continue
        if old_reward is not None and not correct:
            origin = ", the default" if old_kind == "default" else ""
            raise InvalidInput(
                f"{rows.describe(int(index))} has the reward {reward:g}, but the ledger has"
                f" {old_reward:g}{origin}; nothing was learned. If the log is right, use --correct"
            )
        n_corrected += old_reward is not None
        guardrail = rows.guardrails[index]
        rewards.append(
            Reward(
                event_id,
                reward,
                now,
                "given" if old_reward is None else "corrected",
                None if np.isnan(guardrail) else float(guardrail),
            )
        )
    return rewards, n_corrected


def _hash_row(row: str) -> str:
    """Return a hash of a row, by which the ledger finds another row with the same id."""
    return hashlib.blake2b(row.encode(), digest_size=16).hexdigest()
