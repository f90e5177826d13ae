"""``Market``: export, decide, learn, assess and report in the folder of a choice.

The folder has the chosen policy and its assessment, which ``daband choose`` wrote, and the ledger.
Versions, verdicts and reports are functions of these. They can be deleted, and are made again.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from daband.base._files import (
    check_writable,
    lock_folder,
    make_folder,
    read_json,
    write_bytes,
    write_json,
)
from daband.base._lazy_polars import pl
from daband.domains._contract import Pair
from daband.domains._data_options import DataOptions
from daband.errors import DataError, InvalidInput
from daband.ledger._decisions import Decisions, decide_rows
from daband.ledger._evidence import (
    Gains,
    VersionRecord,
    estimate_gains,
    find_incumbent_arms,
    record_versions,
    sample_entries,
)
from daband.ledger._log_import import (
    EnteredLog,
    LogNames,
    enter_log,
    read_ids,
    read_log_frame,
)
from daband.ledger._pilots import PilotLedger
from daband.ledger._store import Store, VersionRow
from daband.ledger._versions import LEARNED_FOLDER, POLICY_FILE, Versions, read_rounds
from daband.logs._learned_logs import raise_if_learned
from daband.logs._mean_estimates import MeanEstimate
from daband.policies._policy import Policy
from daband.serving._deployed_policy import DeployedPolicy, load_deployed
from daband.serving._export import export
from daband.trust._assess import assess, get_assessed_source
from daband.trust._assessment import KEEP, Assessment, read_assessment
from daband.trust._audit import Audit, add_audit_rewards, answer_audit, audit, read_audit
from daband.trust._budgets import assess_limits
from daband.trust._choose import ASSESSMENT_FILE, CHOICE_FILE, DATA_FILE, Choice
from daband.trust._pilot import PilotPlan, plan_pilot

#: The ledger in the folder of a market.
LEDGER_FILE = "ledger.db"
#: The subfolder with the audit.
AUDIT_FOLDER = "audit"
#: What to do after learning.
GO_ON = "go on"
EXPORT = "export"
GO_BACK = "go back to the incumbent"


class Exported(NamedTuple):
    """A file that a market has exported."""

    #: The exported policy.
    deployed: DeployedPolicy
    #: Its number in the ledger.
    number: int
    #: The assessment of the policy, under its limits if it has any; None if the market has none.
    assessment: Assessment | None
    #: True if the assessment is for the policy under its limits.
    is_limited: bool


class Lesson(NamedTuple):
    """The result of ``Market.learn``: what ran, what the newest version adds, and what to do."""

    #: What was new in the log; None if rewards of the ledger were learned without a log.
    entered: EnteredLog | None
    #: The number of rewards that were learned now.
    learned: int
    #: What happened while each version decided, the oldest first.
    history: list[VersionRecord]
    #: The version that decided last; None without decisions of the market.
    running: int | None
    #: The newest version.
    newest: int
    #: What the newest version is expected to add to the running one; None if it is the running one.
    gain: MeanEstimate | None
    #: The recommended version: the newest, or the running one if the newest is expected to be worse.
    version: int
    #: ``GO_ON``, ``EXPORT`` or ``GO_BACK``.
    action: str
    #: The assessment after all rewards.
    assessment: Assessment | None


class Market:
    """The folder of a choice, with its ledger.

    Args:
        folder: the folder that ``daband choose`` or ``Choice.save`` wrote.
        ledger: the address of the ledger, as ``sqlite:///FILE`` or ``postgresql://...``; by default
            the file ``ledger.db`` in the folder.
    """

    def __init__(self, folder: str | Path, ledger: str | None = None) -> None:
        self.folder = Path(folder)
        if not (self.folder / POLICY_FILE).is_file():
            raise InvalidInput(
                f"{folder} is not the folder of a choice: it has no {POLICY_FILE}; `daband choose`"
                " makes one"
            )
        self.store = Store(ledger or f"sqlite:///{self.folder / LEDGER_FILE}")
        self.versions = Versions(self.folder, self.store)

    def __enter__(self) -> Market:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the ledger."""
        self.store.close()

    # Export and decide.

    def export(
        self,
        file: str | Path,
        *,
        version: int | None = None,
        domain: str = "target",
        epsilon: float | None = None,
        explore: str | None = None,
        incumbent: str | None = None,
        at_most: Mapping[str, float] | None = None,
        max_cost: float | None = None,
        with_data: bool = True,
        pilot: bool = False,
    ) -> Exported:
        """Write a version of the policy to one file, and record it in the ledger.

        Args:
            file: the file to write.
            version: the version; by default the recommended one, in a pilot the one that is tried.
            domain: as in ``daband.export``.
            epsilon: as in ``daband.export``.
            explore: as in ``daband.export``.
            incumbent: as in ``daband.export``.
            at_most: as in ``daband.export``.
            max_cost: as in ``daband.export``.
            with_data: True to read the data of the choice, whose contexts monitoring compares with.
            pilot: True for the next rounds of the pilot that was planned.
        """
        check_writable(file)
        running_pilot = self.pilot if pilot else None
        if pilot and running_pilot is None:
            raise InvalidInput(
                f"{self.folder} has no plan of a pilot; `daband pilot plan {self.folder}` makes one"
            )
        if running_pilot is not None:
            version = running_pilot.version
            plan = running_pilot.plan
            incumbent = None if plan.incumbent_column else plan.incumbent
        choice = Choice.load(self.folder) if self.has_choice else None
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "policy.daband"
            deployed, assessment, is_limited = write_export(
                self.versions.load(self.recommended if version is None else version),
                path,
                choice=choice,
                assessment=None if choice is None else self.assess(),
                with_data=with_data,
                at_most=at_most,
                max_cost=max_cost,
                domain=domain,
                incumbent=incumbent,
                epsilon=epsilon,
                explore=explore,
                pilot=None if running_pilot is None else running_pilot.settings,
            )
            content = path.read_bytes()
        number = self.store.publish_file(
            content, time=time.time(), rounds=deployed.rounds_learned, version=deployed.version
        )
        write_bytes(file, content)
        return Exported(deployed, number, assessment, is_limited)

    def decide(
        self,
        rows: Any,
        *,
        id: str,  # noqa: A002
        control: float | None = None,
    ) -> pl.DataFrame:
        """Decide on rows with the newest exported file, and record the decisions in the ledger.

        Return the rows with the columns that ``learn`` needs. Rows whose id was decided before have
        the same arm again.

        Args:
            rows: a frame or a file.
            id: the column with a new id for each decision.
            control: the fraction of rows that get the incumbent's arm.
        """
        deployed = load_deployed(self.write_newest_export())
        decisions: Decisions = decide_rows(deployed, rows, id_column=id, control=control)
        self._enter(decisions.frame, LogNames())
        return decisions.frame

    def write_newest_export(self) -> Path:
        """Write the newest exported file into the folder again, and return its path."""
        number = self.store.find_newest_file()
        if number < 0:
            raise InvalidInput(f"{self.folder} has no exported file yet; export one first")
        path = self.folder / LEARNED_FOLDER / f"export-{number}.daband"
        make_folder(path.parent)
        write_bytes(path, self.store.read_content(number))
        return path

    # Learn.

    def learn(
        self,
        log: Any = None,
        *,
        names: LogNames | None = None,
        cluster: str | None = None,
        correct: bool = False,
        external: bool = False,
    ) -> Lesson:
        """Enter a log into the ledger, and learn all rewards that no version has learned.

        The log is checked completely before anything is entered.

        Args:
            log: files, as in ``daband.learn_log``, or a frame; None to learn only the rewards in the
                ledger.
            names: the columns of the log; by default those of ``decide``.
            cluster: the column of the cluster that arms were drawn for.
            correct: True to replace rewards in the ledger by other rewards of the log. A new
                version then learns all rewards again.
            external: True for decisions of another system, whose propensities are not checked.
        """
        # two processes would learn the same version
        with lock_folder(self.folder, wait=True, lock_file=".learn.lock"):
            entered = None
            if log is not None:
                names = dataclasses.replace(names or LogNames(), cluster=cluster)
                entered = self._enter(log, names, correct=correct, external=external)
            if cluster is not None:
                self.store.write_note("cluster", cluster)
            pilot = self.pilot
            if pilot is not None:
                pilot.update()
            n_learned = len(self.versions.find_waiting()[0])
            self.versions.learn_waiting(time.time())
            return self._answer(entered, n_learned)

    def _enter(
        self, log: Any, names: LogNames, *, correct: bool = False, external: bool = False
    ) -> EnteredLog:
        """Enter a log into the ledger."""
        guardrail = None
        if (self.folder / ASSESSMENT_FILE).is_file():
            guarded = read_assessment(self.folder / ASSESSMENT_FILE).guardrail
            guardrail = None if guarded is None else guarded["name"].removeprefix("-")
        return enter_log(
            self.store,
            self.versions.load(0),
            log,
            dataclasses.replace(names, guardrail=guardrail),
            correct=correct,
            external=external,
            now=time.time(),
        )

    def _answer(self, entered: EnteredLog | None, n_learned: int) -> Lesson:
        """Return the result of ``learn``, which follows from the ledger."""
        newest = self.versions.newest
        running = self.running
        gain = None
        if newest and running not in (None, newest):
            gain = self._load_gains(newest).over_running
        version = self.recommended
        assessment = self.assess() if self.has_choice else None
        action = EXPORT if version != running else GO_ON
        if assessment is not None and assessment.verdict == KEEP:
            action = GO_BACK
        return Lesson(
            entered,
            n_learned,
            self.history(),
            running,
            newest,
            gain,
            version,
            action,
            assessment,
        )

    @property
    def running(self) -> int | None:
        """The version that decided last; None if the ledger has no decision of this market."""
        return self._find_running(None)

    def _find_running(self, until_seq: int | None) -> int | None:
        """Return the version that decided last among events up to a number."""
        rows = self.store.read(
            "SELECT m.version FROM events e JOIN models m ON m.number = e.model WHERE e.seq <= ?"
            " ORDER BY e.seq DESC LIMIT 1",
            (1 << 63) - 1 if until_seq is None else until_seq,
        )
        return rows[0][0] if rows else None

    @property
    def recommended(self) -> int:
        """The version to export: the newest, or the running one if the newest is expected to be
        worse.
        """
        newest, running = self.versions.newest, self.running
        if not newest or running in (None, newest):
            return newest
        return running if self._load_gains(newest).over_running.value < 0.0 else newest

    # What follows from the ledger.

    def history(self) -> list[VersionRecord]:
        """Return what happened while each version decided, the oldest version first."""
        return record_versions(
            self.store, self.versions.load(0), self.incumbent, self.versions.cluster
        )

    @property
    def incumbent(self) -> int | str | None:
        """The incumbent's arm, or the column with it; None if it is not known."""
        path = self.folder / ASSESSMENT_FILE
        if not path.is_file():
            return None
        assessment = read_assessment(path)
        if assessment.incumbent_arm is not None:
            return assessment.incumbent_arm
        return assessment.incumbent_column

    def assess(self, *, incumbent: str | None = None, unit: str = "") -> Assessment:
        """Return the assessment after all target rewards, of the audit and of the ledger.

        Args:
            incumbent: another incumbent to compare with, from now on.
            unit: the unit of the rewards, from now on.
        """
        path = self.folder / ASSESSMENT_FILE
        chosen = assessment = read_assessment(path)
        if incumbent is not None:
            choice = Choice.load(self.folder)
            pair = self.read_pair(choice)
            assessment = assess(
                choice.policy,
                source=get_assessed_source(pair, choice.policy),
                target=pair.target,
                incumbent=incumbent,
                arm_names=pair.class_names,
                unit=chosen.unit,
            )
        assessment = dataclasses.replace(assessment, unit=unit or assessment.unit)
        if assessment != chosen:
            assessment.save(path)
        audit_folder = self.folder / AUDIT_FOLDER
        if audit_folder.is_dir():
            result = read_audit(audit_folder)
            if result.finished and result.incumbent == assessment.incumbent:
                assessment = add_audit_rewards(assessment, audit_folder)
        return self._add_learned(assessment)

    def _add_learned(self, assessment: Assessment) -> Assessment:
        """Return an assessment with the rewards that the versions have learned."""
        original = assessment
        seq = 0
        for row in self.versions.list_rows():
            if row.restarts:
                assessment, seq = original, 0
            gains = self._load_gains(row.number)
            n_rewards = len(self.versions.read_rewards(seq, row.reward_seq))
            fields: dict[str, Any] = {
                "version": row.number,
                "log_rounds": assessment.log_rounds + n_rewards,
            }
            if gains.disagreement is not None:
                fields |= {
                    "target_contexts": n_rewards,
                    "target_arms": list(gains.arm_fractions),
                    "disagreement": gains.disagreement,
                }
            assessment = assessment.with_learned_rounds(gains.over_incumbent, **fields)
            seq = row.reward_seq
        return assessment

    def _load_gains(self, number: int) -> Gains:
        """Return the expected gains of a version, from a file or by estimating them."""
        row = self.versions.list_rows()[number - 1]
        key = [row.digest, self.incumbent]
        path = self.folder / LEARNED_FOLDER / f"gains-{number}.json"
        if path.is_file():
            content = read_json(path)
            if content["key"] == key:
                return Gains.from_list(content["gains"])
        gains = self._estimate_gains(row)
        make_folder(path.parent)
        write_json(path, {"key": key, "gains": gains})
        return gains

    def _estimate_gains(self, row: VersionRow) -> Gains:
        """Return the expected gains of a version over the incumbent and the version that ran."""
        rows = self.versions.list_rows()
        running = self._find_running(row.event_seq)
        running = row.number - 1 if running is None else min(running, row.number - 1)
        start = rows[running - 1].reward_seq if running and not row.restarts else 0
        entries = sample_entries(self.versions.read_rewards(start, row.reward_seq))
        entries = [entry for entry in entries if entry.event.context is not None]
        policy = self.versions.load(running)
        since = rows[row.number - 2].reward_seq if row.number > 1 and not row.restarts else 0
        return estimate_gains(
            policy,
            self.versions.load(0) if row.restarts else policy,
            read_rounds(policy, entries, self.versions.cluster),
            find_incumbent_arms(entries, policy.arm_names or (), self.incumbent),
            np.array([entry.seq > since for entry in entries]),
        )

    def report(self) -> Path:
        """Write ``report.html`` into the folder, and return its path."""
        from daband.ledger._report import write_report

        return write_report(self)

    # The choice and its data.

    @property
    def has_choice(self) -> bool:
        """True if the folder has a choice, and not only a policy."""
        return (self.folder / CHOICE_FILE).is_file()

    def load_choice(self) -> Choice:
        """Return the choice with the recommended version and the assessment after all rewards."""
        choice = Choice.load(self.folder)
        return dataclasses.replace(
            choice, policy=self.versions.load(self.recommended), assessment=self.assess()
        )

    def read_pair(self, choice: Choice) -> Pair:
        """Read the files of the choice again, and return their pair."""
        if choice.options is None:
            raise InvalidInput(
                f"{self.folder} has no data.json, because its pair was not read from files; use"
                " daband.audit, daband.assess and daband.export in Python"
            )
        return choice.options.read()

    def check_not_learned(self, log: Any, id_column: str | None) -> None:
        """Raise an error if the recommended version has learned rounds of a log, whose estimate
        would be too high.
        """
        name, frame = read_log_frame(log)
        column = id_column or LogNames().id
        if column not in frame.columns or not self.recommended:
            return
        row = self.versions.list_rows()[self.recommended - 1]
        learned = {one.event.event_id for one in self.versions.read_rewards(0, row.reward_seq)}
        n_learned = sum(event_id in learned for event_id in read_ids(frame[column], name))
        raise_if_learned(n_learned, len(frame))

    # Audits and pilots.

    def start_audit(self, *, budget: int, incumbent: str | int | None = None) -> Audit:
        """Start an audit of the recommended version, or read the audit that was started before.

        The incumbent is by default that of the assessment.
        """
        choice = self.load_choice()
        assessment = choice.assessment
        pair = self.read_pair(choice)
        if incumbent is None:
            incumbent = assessment.incumbent_column or assessment.incumbent_arm
        return audit(
            choice.policy,
            target=pair.target,
            budget=budget,
            incumbent=incumbent,
            directory=self.folder / AUDIT_FOLDER,
            arm_names=pair.class_names,
            unit=assessment.unit,
        )

    def update_audit(
        self, answers: Path | None = None, *, replace: bool = False
    ) -> tuple[Audit, Assessment | None]:
        """Add answers to the audit, and return it with the assessment. The assessment is None if
        the audit is not finished, or has another incumbent.

        Args:
            answers: a CSV with columns ``id`` and ``reward``; None if there are no new answers.
            replace: if True, an answer replaces a different earlier one.
        """
        folder = self.folder / AUDIT_FOLDER
        result = (
            read_audit(folder)
            if answers is None
            else answer_audit(folder, answers, replace=replace)
        )
        assessment = self.assess()
        is_updated = result.finished and assessment.incumbent == result.incumbent
        return result, assessment if is_updated else None

    def plan_pilot(self, **options: Any) -> PilotPlan:
        """Plan a pilot of the recommended version, and enter the plan into the ledger.

        ``options`` are the arguments of ``daband.plan_pilot``.
        """
        version = self.recommended
        plan = plan_pilot(self.load_choice(), **options)
        PilotLedger.start(self.store, plan, version)
        return plan

    def cancel_pilot(self) -> None:
        """Give up the pilot. Its rounds stay in the ledger."""
        PilotLedger.cancel(self.store)

    @property
    def pilot(self) -> PilotLedger | None:
        """The pilot that was planned last; None if there is none, or if it was given up."""
        return PilotLedger.load(self.store)


def claim_folder(folder: Path, data: DataOptions) -> None:
    """Write the options of the data to the folder of a new choice.

    Raise an error if it has an audit, decisions, or results of other data.
    """
    path = make_folder(folder, "out") / DATA_FILE
    if (folder / AUDIT_FOLDER / "audit.json").is_file() or has_decisions(folder):
        raise InvalidInput(
            f"{folder} has an audit or decisions, which another choice would not fit; choose another"
            " --out"
        )
    has_results = any(other != path for other in folder.iterdir())
    if has_results and path.is_file() and DataOptions.load(path) != data:
        raise InvalidInput(
            f"{folder} has results of other data or options ({DATA_FILE}); choose another --out, or"
            " remove the folder"
        )
    data.save(path)


def has_decisions(folder: Path) -> bool:
    """Return True if the ledger in a folder has decisions."""
    path = folder / LEDGER_FILE
    if not path.is_file():
        return False
    store = Store(f"sqlite:///{path}")
    try:
        return store.find_last_seq("events") > 0
    finally:
        store.close()


def write_export(
    policy: Policy,
    path: Path,
    *,
    choice: Choice | None,
    assessment: Assessment | None,
    with_data: bool,
    at_most: Mapping[str, float] | None,
    max_cost: float | None,
    **options: Any,
) -> tuple[DeployedPolicy, Assessment | None, bool]:
    """Export a policy, and return the exported policy with its assessment.

    Under limits, a policy without target rewards is assessed again. Then the last value is True.

    Args:
        policy: the policy.
        path: the file to write.
        choice: the choice, whose data monitoring compares with; None if there is none.
        assessment: the assessment of the policy.
        with_data: False to ignore the data of the choice.
        at_most: as in ``daband.export``.
        max_cost: as in ``daband.export``.
        options: further arguments of ``daband.export``.
    """
    pair = None
    if with_data and choice is not None and choice.options is not None:
        try:
            pair = choice.options.read()
        except DataError as error:
            raise DataError(
                f"{error}. With --no-data, the policy is exported without data for monitoring"
            ) from None
    write = partial(export, policy, path, pair=pair, **options)
    write(assessment=assessment, at_most=at_most, max_cost=max_cost)
    deployed = load_deployed(path)
    has_rewards = assessment is None or assessment.rewards or policy.version
    if not deployed.limiter or choice is None or pair is None or has_rewards:
        return deployed, assessment, False
    limits = deployed.limiter.limits
    limited = assess_limits(choice, pair, limits)
    write(assessment=limited, at_most=limits)
    return load_deployed(path), limited, True


def open_market(folder: str | Path, ledger: str | None = None) -> Market:
    """Return the market in the folder of a choice, with its ledger.

    Args:
        folder: the folder that ``daband choose`` or ``Choice.save`` wrote.
        ledger: the address of the ledger; by default the file ``ledger.db`` in the folder.

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> linucb = daband.trust.Candidate("linucb", "linucb")
    >>> choice = daband.choose(pair, candidates=[linucb], episodes=4, episode_length=32)
    >>> choice.save("market")
    >>> market = daband.open_market("market")
    >>> market.export("market.daband", epsilon=0.1).deployed.version
    0
    """
    return Market(folder, ledger)
