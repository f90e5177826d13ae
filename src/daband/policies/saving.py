"""Saving and restoring a policy: what belongs to every policy, beside what each has learned."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from daband.arrays import AnyArray
from daband.errors import InvalidInput
from daband.linear import Transform
from daband.policies.checkpoint import checked_notes, write_checkpoint
from daband.policies.input_checks import DOMAINS
from daband.policies.pending_rounds import PendingRounds
from daband.policies.reward_scale import RewardScale
from daband.policies.round_ids import RoundIds
from daband.policies.thread_locks import ThreadSafe
from daband.table_transform import TableTransform

__all__ = ["Saved"]


class Saved(ThreadSafe):
    """The part of a policy that writes it to a file and restores it from the arrays of one."""

    name: ClassVar[str]
    context_shape: tuple[int, ...]
    transform: Transform | None
    domain: str
    rounds_decided: int
    rounds_learned: int
    _scale: RewardScale
    _ids: RoundIds
    _pending: PendingRounds
    _table: TableTransform | None = None
    log_parts: frozenset[str] = frozenset()
    """Digests of the parts of logs that ``fit_log`` has taught it: none of them is counted twice. Files hold them."""

    @property
    def table(self) -> TableTransform | None:
        """What turns a raw row into a context: ``policy.select(policy.table.contexts({"age": 41, "city": "Oslo"}))``.

        ``for_pair`` sets it where the pair is made of tables; for a policy built by hand set ``policy.table =
        pair.table``. A saved file holds it.
        """
        return self._table

    @table.setter
    def table(self, table: TableTransform | None) -> None:
        if table is not None and not isinstance(table, TableTransform):
            raise InvalidInput(f"table must be a daband.domains.TableTransform, e.g. pair.table, got {table!r}")
        if table is not None and (len(table.feature_names),) != self.context_shape:
            raise InvalidInput(
                f"table makes contexts of shape ({len(table.feature_names)},), the policy takes {self.context_shape}"
            )
        with self._write_lock:
            self._table = table

    def save(self, path: str | Path, *, notes: Mapping[str, str] | None = None, replay: bool = True) -> None:
        """Write everything to one safetensors file, all or nothing. A loaded policy continues from it to the last bit.

        Args:
            path: the file. One that exists keeps its mode; a symbolic link stays one, and its target is written.
            notes: short texts of the caller's own, read back by ``daband.policies.read_notes``.
            replay: whether the file holds what the policy was trained on: stored contexts, arms, rewards, and round
                ids. Without them the loaded policy decides the same. It learns on from the rounds that it sees then;
                rounds learned before the save are no longer recognised by their ids.
        """
        checked = checked_notes(notes)
        with self._write_lock:  # no writer changes anything meanwhile, and those who select only read
            if len(self._pending) and not replay:
                raise InvalidInput(
                    f"replay=False would lose {len(self._pending)} rounds: reward_range='auto' has not seen enough "
                    "rewards to learn from them yet; update with more rounds first, or give the range"
                )
            settings = {**self.settings(), "policy": self.name}
            if self._table is not None:
                settings["table"] = self._table.state()
            arrays = self._arrays(replay=replay)
            if self.transform is not None:
                arrays.update({f"transform/{name}": array for name, array in self.transform.state().items()})
            write_checkpoint(path, settings, arrays, checked)

    def restore(self, arrays: Mapping[str, AnyArray]) -> None:
        """Restore the arrays of a saved file, all or nothing; the settings must be those it was saved with."""
        with self._write_lock, self._state_lock:
            before = self._snapshot()
            try:
                if self.transform is not None:
                    self.transform.restore(_below("transform/", arrays))
                self._restore_arrays(arrays)
            except BaseException:
                self._roll_back(before)
                raise

    def _snapshot(self) -> tuple[dict[str, AnyArray], Transform | None]:
        """A copy of everything that changes, for ``_roll_back``."""
        return {name: np.array(array) for name, array in self._arrays().items()}, copy.deepcopy(self.transform)

    def _roll_back(self, snapshot: tuple[dict[str, AnyArray], Transform | None]) -> None:
        arrays, self.transform = snapshot
        self._restore_arrays(arrays)

    def _arrays(self, *, replay: bool = True) -> dict[str, AnyArray]:
        """What a file holds of a policy, but for its transform."""
        arrays: dict[str, AnyArray] = {f"policy/{name}": array for name, array in self._state(replay=replay).items()}
        arrays["rounds"] = np.array([self.rounds_decided, self.rounds_learned], np.int64)
        arrays["domain"] = np.array([DOMAINS.index(self.domain)], np.int64)
        arrays["reward_scale"] = self._scale.state()
        ids = self._ids if replay else RoundIds(self._ids.window)
        arrays.update({f"ids/{name}": array for name, array in ids.state().items()})
        arrays.update({f"pending/{name}": array for name, array in self._pending.state().items()})
        if self.log_parts:
            arrays["log_parts"] = np.frombuffer("\n".join(sorted(self.log_parts)).encode(), np.uint8)
        return arrays

    def _restore_arrays(self, arrays: Mapping[str, AnyArray]) -> None:
        self.rounds_decided, self.rounds_learned = (int(count) for count in arrays["rounds"])
        self.domain = DOMAINS[int(arrays["domain"][0])]
        self._scale.restore(arrays["reward_scale"])
        self._ids.restore(_below("ids/", arrays))
        self._pending.restore(_below("pending/", arrays))
        self.log_parts = frozenset(bytes(arrays.get("log_parts", b"")).decode().split())
        self._restore(_below("policy/", arrays))

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The keyword arguments that make this policy anew, as JSON can hold them."""

    @abstractmethod
    def _state(self, *, replay: bool = True) -> dict[str, AnyArray]: ...

    @abstractmethod
    def _restore(self, state: dict[str, AnyArray]) -> None: ...


def _below(prefix: str, arrays: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
