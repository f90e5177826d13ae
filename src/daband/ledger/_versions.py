"""Learn versions of a market's policy from the ledger.

A version is a function of the chosen policy and of the rewards in the ledger up to a number. So the
file of a version can be deleted, and is made again when it is needed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from daband.base._arrays import AnyArray, FloatArray
from daband.base._files import make_folder
from daband.errors import DataError, InvalidInput
from daband.features._image_layout import find_image_layout
from daband.features._row_reader import ImageRule, RowReader
from daband.ledger._store import LoggedReward, Store, VersionRow
from daband.policies._checkpoints import load_policy, read_checkpoint
from daband.policies._policy import Policy
from daband.rounds._rounds import Rounds, make_rounds

#: The subfolder with the versions of the policy.
LEARNED_FOLDER = "learned"
#: File of the chosen policy, which is version 0.
POLICY_FILE = "policy.safetensors"
#: The number of rounds that are learned at a time.
_BATCH_ROUNDS = 1024
#: The note of a version's file with the digest of what it has learned.
_DIGEST_NOTE = "ledger"


def make_reader(policy: Policy) -> RowReader:
    """Return the reader that converts the rows of the ledger to contexts of a policy."""
    is_shared = policy.arms == "shared"
    layout = None if is_shared else find_image_layout(policy.context_shape)
    shape = tuple(policy.context_shape)
    return RowReader(
        shape=(policy.n_arms, *shape) if is_shared else shape,
        table=None if policy.table is None else policy.table.row_reader,
        image_rule=None if layout is None else ImageRule(layout, *(policy.framing or ())),
        feature_names=(),
        max_norm=math.inf,
    )


def parse_rows(contexts: Sequence[str]) -> list[Any]:
    """Return the rows of the ledger, which are JSON texts, as mappings or lists."""
    rows: list[Any] = json.loads(f"[{','.join(contexts)}]")
    return rows


def read_contexts(reader: RowReader, rows: list[Any]) -> AnyArray:
    """Return the contexts of parsed rows, (n, *C)."""
    if len({isinstance(row, dict) for row in rows}) > 1:
        raise InvalidInput("rows of the ledger must all be mappings, or all be lists")
    if not isinstance(rows[0], dict):
        return np.asarray(rows, np.float64).reshape(len(rows), *reader.shape)
    if reader.table is None:  # files of images
        rows = [next(iter(row.values())) for row in rows]
    return reader.read(rows).contexts


def read_rounds(
    policy: Policy, entries: Sequence[LoggedReward], cluster: str | None = None
) -> Rounds:
    """Return rewards of the ledger as rounds that a policy can learn.

    Rewards without a stored row are left out, and the costs of arms are subtracted. ``cluster`` is
    the column of the cluster that arms were drawn for; a row without it is a cluster of its own.
    """
    entries = [entry for entry in entries if entry.event.context is not None]
    if not entries:
        raise DataError("the ledger has no rewards with rows, so there is nothing to learn")
    rows = parse_rows([str(entry.event.context) for entry in entries])
    arms = np.array([entry.event.arm for entry in entries])
    rewards = np.array([entry.reward for entry in entries])
    if policy.costs is not None:
        rewards = rewards - policy.costs.compute(arms, lambda name: read_numbers(rows, name))
    offered = None
    if any(entry.event.eligible is not None for entry in entries):
        offered = np.ones((len(entries), policy.n_arms), np.bool_)
        for mask, entry in zip(offered, entries, strict=True):
            if entry.event.eligible is not None:
                mask[:] = np.isin(np.arange(policy.n_arms), json.loads(entry.event.eligible))
    return make_rounds(
        read_contexts(make_reader(policy), rows),
        arms,
        rewards,
        [entry.event.propensity for entry in entries],
        offered=offered,
        clusters=None if cluster is None else _list_clusters(rows, cluster),
        n_arms=policy.n_arms,
    )


def _list_clusters(rows: Sequence[Any], name: str) -> list[str]:
    """Return the cluster of each parsed row."""
    return [
        f"in {row[name]}" if isinstance(row, dict) and name in row else f"row {index}"
        for index, row in enumerate(rows)
    ]


def read_numbers(rows: Sequence[Any], name: str) -> FloatArray:
    """Return a column of parsed rows, NaN for missing values."""
    values = [row.get(name) if isinstance(row, dict) else None for row in rows]
    return np.array(values, np.float64)


def learn_rounds(policy: Policy, rounds: Rounds, domain: str = "target") -> None:
    """Update a policy with rounds in order, and adapt it after every 1,024 rounds."""
    for start in range(0, len(rounds), _BATCH_ROUNDS):
        batch = rounds.select(slice(start, start + _BATCH_ROUNDS))
        policy.update(**batch.to_arguments(), domain=domain)
        if domain == "target":
            policy.observe_target(batch.contexts)
        policy.adapt()


class Versions:
    """The versions of the policy in the folder of a market."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder = folder
        self._store = store
        file = folder / POLICY_FILE
        if not file.is_file():
            raise InvalidInput(
                f"{folder} is not the folder of a choice: it has no {POLICY_FILE}; `daband choose`"
                " makes one"
            )
        #: The digest of the chosen policy.
        self.base = hashlib.sha256(file.read_bytes()).hexdigest()
        rows = self.list_rows()
        known_base = store.read_note("base")
        if rows and known_base != self.base:
            raise InvalidInput(
                f"{file} is not the policy whose versions the ledger of {folder} has; restore it,"
                " or choose another --out for another policy"
            )

    def list_rows(self) -> list[VersionRow]:
        """Return the learned versions, the oldest first."""
        return self._store.list_versions()

    @property
    def newest(self) -> int:
        """The number of the newest version."""
        return len(self.list_rows())

    def find_file(self, number: int) -> Path:
        """Return the file of a version, which may not exist."""
        if number == 0:
            return self.folder / POLICY_FILE
        return self.folder / LEARNED_FOLDER / f"policy-{number}.safetensors"

    def load(self, number: int | None = None) -> Policy:
        """Return a version of the policy, by default the newest. It is learned again if its file is
        missing.
        """
        rows = self.list_rows()
        number = len(rows) if number is None else number
        if not 0 <= number <= len(rows):
            raise InvalidInput(f"{self.folder} has versions 0 to {len(rows)}, got {number}")
        path = self.find_file(number)
        if number == 0:
            policy: Policy = load_policy(path, device="cpu")
            return policy
        row = rows[number - 1]
        if path.is_file() and read_checkpoint(path).notes.get(_DIGEST_NOTE) == row.digest:
            return load_policy(path, device="cpu")
        start, policy = 0, self.load(0)
        if not row.restarts and number > 1:
            start, policy = rows[number - 2].reward_seq, self.load(number - 1)
        policy = self._learn(policy, number, self.read_rewards(start, row.reward_seq))
        self._save(policy, row)
        return policy

    def read_rewards(self, after_seq: int, until_seq: int | None = None) -> list[LoggedReward]:
        """Return the newest reward of each event among those with a number in (after_seq,
        until_seq], in the order of their numbers.
        """
        entries = self._store.read_rewards(after_seq, until_seq=until_seq)
        newest = {entry.event.event_id: entry for entry in entries}
        return sorted(newest.values(), key=lambda entry: entry.seq)

    def find_waiting(self) -> tuple[list[LoggedReward], bool]:
        """Return the rewards that the newest version has not learned, and True if some of them
        replace rewards that it has learned. In this case, all rewards are returned.
        """
        rows = self.list_rows()
        start = rows[-1].reward_seq if rows else 0
        entries = self.read_rewards(start)
        restarts = bool(rows) and any(entry.kind == "corrected" for entry in entries)
        return (self.read_rewards(0) if restarts else entries), restarts

    def learn_waiting(self, now: float) -> Policy | None:
        """Learn a new version from the rewards that no version has learned, and return it; None
        without new rewards.

        The version is entered into the ledger after the policy could learn the rewards.
        """
        entries, restarts = self.find_waiting()
        if not entries:
            return None
        rows = self.list_rows()
        number = len(rows) + 1
        policy = self._learn(self.load(0 if restarts else None), number, entries)
        earlier = rows[-1].digest if rows and not restarts else self.base
        row = VersionRow(
            number=number,
            time=now,
            reward_seq=entries[-1].seq,
            event_seq=self._store.find_last_seq("events"),
            restarts=restarts,
            digest=_compute_digest(earlier, entries),
        )
        with self._store.transact() as transaction:
            values = {name: getattr(row, name) for name in VersionRow.__dataclass_fields__}
            transaction.insert("versions", [{**values, "restarts": int(restarts)}])
            transaction.write_note("base", self.base)
        self._save(policy, row)
        return policy

    @property
    def cluster(self) -> str | None:
        """The column of the cluster that arms were drawn for; None if there is none."""
        return self._store.read_note("cluster") or None

    def _learn(self, policy: Policy, number: int, entries: Sequence[LoggedReward]) -> Policy:
        """Update a policy with rewards of the ledger, and return it with its number."""
        learn_rounds(policy, read_rounds(policy, entries, self.cluster))
        policy.version = number
        return policy

    def _save(self, policy: Policy, row: VersionRow) -> None:
        """Write the file of a version."""
        path = self.find_file(row.number)
        make_folder(path.parent)
        policy.save(path, notes={_DIGEST_NOTE: row.digest})


def _compute_digest(earlier: str, entries: Sequence[LoggedReward]) -> str:
    """Return a digest of what a version has learned: the earlier version, and rewards."""
    hasher = hashlib.sha256(earlier.encode())
    for entry in entries:
        event = entry.event
        hasher.update(
            f"{event.event_id}|{event.arm}|{event.propensity!r}|{entry.reward!r}\n".encode()
        )
    return hasher.hexdigest()
