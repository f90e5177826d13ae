"""``PilotLedger``: the pilot of a market, whose rounds and decision are in the ledger."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from daband.errors import InvalidInput
from daband.ledger._store import Store
from daband.logs._controlled_trial import TrialCounts
from daband.serving._deployed_policy import load_deployed_bytes
from daband.trust._assessment import DEPLOY, KEEP
from daband.trust._pilot import GO_ON, PilotPlan, PilotStatus, summarise_counts

#: The note with the present pilot, and the one with those that were given up.
_NOTE = "pilot"
_GIVEN_UP_NOTE = "pilots given up"
#: Number of seconds in a day.
_DAY_SECONDS = 86_400.0


class PilotLedger:
    """A pilot: its plan, its rounds, and its course."""

    def __init__(self, store: Store, content: Mapping[str, Any]) -> None:
        self._store = store
        self._content = content
        #: The plan.
        self.plan = PilotPlan.from_dict(content["plan"])
        #: The version of the policy that is tried.
        self.version = int(content["version"])

    @classmethod
    def load(cls, store: Store) -> PilotLedger | None:
        """Return the present pilot of a ledger; None if there is none."""
        note = store.read_note(_NOTE)
        return cls(store, json.loads(note)) if note else None

    @classmethod
    def start(cls, store: Store, plan: PilotPlan, version: int) -> PilotLedger:
        """Enter a plan into the ledger. Raise an error if the present pilot has rounds."""
        present = cls.load(store)
        if present is not None and present.read_status().rounds:
            raise InvalidInput(
                "the pilot of this market has rounds, so its plan cannot change; `daband pilot"
                " cancel DIR` gives it up"
            )
        content = {
            "plan": asdict(plan),
            "version": version,
            "start_seq": store.find_last_seq("events"),
            "course": [],
        }
        store.write_note(_NOTE, json.dumps(content))
        return cls(store, content)

    @staticmethod
    def cancel(store: Store) -> None:
        """Give up the present pilot. The ledger keeps its rounds, its plan and its course."""
        with store.transact() as transaction:
            note = transaction.read_note(_NOTE)
            if not note:
                raise InvalidInput("this market has no pilot")
            given_up = json.loads(transaction.read_note(_GIVEN_UP_NOTE) or "[]")
            transaction.write_note(_GIVEN_UP_NOTE, json.dumps([*given_up, json.loads(note)]))
            transaction.write_note(_NOTE, "")

    @property
    def course(self) -> list[dict[str, Any]]:
        """The status after each log that brought something new, the oldest first."""
        return list(self._content["course"])

    @property
    def decision(self) -> dict[str, Any] | None:
        """The status with the pilot's decision; None if it is not decided."""
        return next((point for point in self.course if point["decision"] != GO_ON), None)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that ``daband.export(pilot=)`` writes to a file for the next rounds."""
        status = self.read_status()
        rule = self.plan.rule
        # a service that continues the pilot counts its own cost
        rest = replace(rule, max_cost=max(rule.max_cost - status.cost_limit, 0.0))
        return {
            "control": 1.0 - status.fraction,
            "rounds": self.plan.per_week * self.plan.disagreement,
            "rule": asdict(rest),
            "incumbent_column": self.plan.incumbent_column,
        }

    def update(self) -> None:
        """Add the status to the course, unless the pilot is decided. The first decision is final."""
        status = self.read_status()
        verdict = self._find_service_verdict()
        if verdict:
            decision = DEPLOY if verdict == "better" else KEEP
            fraction = 1.0 if decision == DEPLOY else 0.0
            reason = "The service has decided by the rewards that it had."
            status = replace(status, decision=decision, reason=reason, fraction=fraction)
        point = json.loads(json.dumps(asdict(status)))  # with lists, as in the ledger
        course = self.course
        has_changed = point["rounds"] and (not course or course[-1] != point)
        if self.decision is None and has_changed:
            self._content = {**self._content, "course": [*course, point]}
            self._store.write_note(_NOTE, json.dumps(self._content))

    def _find_service_verdict(self) -> str:
        """Return the verdict of a service that has run the pilot; "" if there is none."""
        key, model, verdict, _ = (self._store.read_note("verdict") or "///").split("/")
        if key or not verdict:
            return ""
        query = "SELECT COUNT(*) FROM events WHERE seq > ? AND model = ?"
        n_events = self._store.read(query, self._content["start_seq"], int(model))[0][0]
        return verdict if n_events else ""

    def read_status(self) -> PilotStatus:
        """Return the status. A decision that was made before is final."""
        status = summarise_counts(self.plan, self._count_rounds())
        decision = self.decision
        if decision is None:
            return status
        final = {name: decision[name] for name in ("decision", "reason", "fraction")}
        return replace(status, **final, rounds_left=0)

    def _count_rounds(self) -> TrialCounts:
        """Return the rounds of the pilot, in the order of the logs or days."""
        is_pilot: dict[int, bool] = {}
        start_seq = self._content["start_seq"]
        rewards = {entry.event.event_id: entry.reward for entry in self._store.read_rewards(0)}
        counts = TrialCounts()
        periods: dict[float, int] = {}
        for _, event in self._store.read_events(start_seq):
            if event.model < 0:
                continue
            if event.model not in is_pilot:
                deployed = load_deployed_bytes(self._store.read_content(event.model))
                is_pilot[event.model] = deployed.pilot is not None
            if not is_pilot[event.model]:
                continue
            key = -float(event.log) if event.log is not None else event.time // _DAY_SECONDS
            period = periods.setdefault(key, len(periods))
            # policy and incumbent agree if one arm was certain
            differs = event.propensity < 1.0
            fraction = round(1.0 - (event.control or 0.0), 9) if differs else 0.0
            is_policy = event.role == "pilot"
            counts.add_round(fraction, is_policy=is_policy, differs=differs, period=period)
            reward = rewards.get(event.event_id)
            if differs and reward is not None:
                counts.add_reward(fraction, reward, is_policy=is_policy, period=period)
        return counts
