"""Write the report on a choice, which is one HTML page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np

from daband.base._files import write_text
from daband.base._lazy_polars import pl
from daband.base._svg import draw_curve, draw_intervals
from daband.domains._contract import LoggedDomain, Pair
from daband.ledger._pilots import PilotLedger
from daband.logs._check_log import check_log
from daband.logs._mean_estimates import MeanEstimate
from daband.policies._log_policy import LogPolicy
from daband.trust._assess import read_source_rounds
from daband.trust._assessment import COLLECT, DEPLOY, Assessment, format_number
from daband.trust._choose import Choice
from daband.trust._rules import FIGURE_FILE

#: File of the page in the folder of the choice.
_REPORT_FILE = "report.html"
#: Number of columns by which the page shows who gets which arm.
_N_COLUMNS = 3
#: Maximum number of categories of a column.
_MAX_CATEGORIES = 8
#: Level of the intervals of mean rewards.
_CONFIDENCE = 0.95


class _ColumnGroups(NamedTuple):
    """Groups of target contexts by one column."""

    #: Name of the column.
    column: str
    #: The group, its number of contexts, and the fraction for which each arm is chosen, (K,).
    groups: list[tuple[str, int, list[float]]]


def write_report(market: Any) -> Path:
    """Write a page with what ran, the verdict, its reasons, the arms and the candidates, and return
    its path.

    Means of arms are estimated again from the files of the log. ``market`` is a ``Market``.
    """
    folder = market.folder
    choice = market.load_choice()
    pilot = None if market.pilot is None else _describe_pilot(market.pilot)
    history = _describe_history(market, choice.assessment)
    options = choice.options
    pair = None if options is None else options.read()
    template = jinja2.Template(
        Path(__file__).with_name(_REPORT_FILE).read_text(encoding="utf-8"),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    findings: Sequence[str] = ()
    if options is not None and options.arm is not None:
        tables = options.read_tables()
        if not tables.columns.encoders:
            findings = check_log(tables.source, tables.columns).findings
    figure = folder / FIGURE_FILE  # of the rule that ``daband rules`` wrote
    page = template.render(
        choice=choice,
        folder=folder,
        arm_names=choice.assessment.arm_names or choice.policy.arm_names,
        arm_rows=[] if pair is None else _estimate_arm_means(Choice.load(folder), pair),
        column_groups=[] if pair is None else _group_target(choice, pair),
        findings=findings,
        change=_describe_change(choice.assessment),
        confidence=_CONFIDENCE,
        files=[] if options is None else [Path(options.source).name, Path(options.target).name],
        rule_figure=figure.read_text(encoding="utf-8") if figure.is_file() else "",
        pilot=pilot,
        history=history,
        format_number=format_number,
    )
    write_text(folder / _REPORT_FILE, page)
    return folder / _REPORT_FILE


def _describe_history(market: Any, assessment: Assessment) -> dict[str, Any] | None:
    """Return what ran, a version per column, with figures; None without decisions."""
    records = market.history()
    if not records:
        return None
    unit = f", {assessment.unit}" if assessment.unit else " of a round"

    def format_estimate(estimate: MeanEstimate | None, *, with_sign: bool = False) -> str:
        if estimate is None:
            return ""
        values = estimate.value, *estimate.compute_interval(_CONFIDENCE)
        value, low, high = (format_number(number, with_sign=with_sign) for number in values)
        return f"{value} ({low} to {high})"

    days = [
        datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d")
        for record in records
        for time in (record.first_time, record.last_time)
    ]
    rows = {
        "first decision": days[::2],
        "last decision": days[1::2],
        "rounds": [f"{record.decisions:,}" for record in records],
        "rewards": [f"{record.rewards:,}" for record in records],
        "drawn for exploration": [f"{record.explored:.1%}" for record in records],
        "mean reward": [format_estimate(record.mean) for record in records],
        "rewards of the control group": [f"{record.control_rewards:,}" for record in records],
        "its mean reward": [format_estimate(record.control_mean) for record in records],
        f"lift over {assessment.incumbent}": [
            format_estimate(record.lift, with_sign=True) for record in records
        ],
    }
    lifts = [
        (f"version {record.version}", record.lift.value, *record.lift.compute_interval(_CONFIDENCE))
        for record in records
        if record.lift is not None and math.isfinite(record.lift.standard_error)
    ]
    newest = next((record for record in reversed(records) if record.arm_means), None)
    arms = []
    for name, mean in zip(
        assessment.arm_names, () if newest is None else newest.arm_means, strict=False
    ):
        low, high = mean.compute_interval(_CONFIDENCE)
        if math.isfinite(high - low):
            arms.append((name, mean.value, low, high))
    return {
        "versions": [record.version for record in records],
        "rows": rows,
        "lifts": draw_intervals(lifts, label=f"Lift over {assessment.incumbent}{unit}", line=0.0),
        "arms": draw_intervals(arms, label=f"Mean reward{unit}"),
        "newest": None if newest is None else newest.version,
        "unlearned": len(market.versions.find_waiting()[0]),
    }


def _describe_pilot(pilot: PilotLedger) -> dict[str, Any]:
    """Return the plan and the status of a pilot, with figures of its advantage and its cost."""
    unit = f", {pilot.plan.unit}" if pilot.plan.unit else ""
    course = pilot.course
    advantages = [
        (point["rounds"], point["advantage"], point["low"], point["high"])
        for point in course
        if point["advantage"] is not None
    ]
    costs = [
        (point["rounds"], point["cost"], point["cost"], point["cost_limit"]) for point in course
    ]
    planned = pilot.plan.course
    return {
        "planned_ends": draw_curve(
            [(n, ended, deployed, ended) for n, deployed, ended, *_ in planned],
            label="Probability that the pilot has ended",
        ),
        "planned_costs": draw_curve(
            [(n, cost, 0.0, high) for n, _, _, cost, high in planned],
            label=f"Expected cost{unit}",
            line=pilot.plan.largest_cost,
        ),
        "plan": pilot.plan,
        "status": pilot.read_status(),
        "course": course,
        "advantages": draw_curve(advantages, label=f"Advantage per round{unit}"),
        "costs": draw_curve(
            costs, label=f"Cost and its upper limit{unit}", line=pilot.plan.largest_cost
        ),
    }


def _estimate_arm_means(choice: Choice, pair: Pair) -> list[dict[str, Any]]:
    """Return the mean reward of each arm and of the policy, with intervals, for the contexts of the
    log and of the target; nothing if the policy was not learned from a log only.
    """
    policy = choice.policy
    is_of_log = isinstance(policy, LogPolicy) and isinstance(pair.source, LoggedDomain)
    if not is_of_log or choice.rewards:
        return []
    values = read_source_rounds(policy, pair.source, len(pair.source), seed=0).values
    if values is None:
        return []
    columns = np.column_stack([values.scores, values.values])
    names = [*(choice.assessment.arm_names or map(str, range(policy.n_arms))), "the policy"]
    estimates = (mix.estimate_all(columns) for mix in (values.mix.without_target(), values.mix))
    assessment = choice.assessment
    costs = [*(assessment.costs or [0.0] * policy.n_arms), assessment.cost]
    return [
        {
            "name": name,
            "cost": cost,
            "means": [
                (estimate.mean.value, *estimate.mean.compute_interval(_CONFIDENCE))
                for estimate in domains
            ],
        }
        for name, cost, *domains in zip(names, costs, *estimates, strict=True)
    ]


def _group_target(choice: Choice, pair: Pair) -> list[_ColumnGroups]:
    """Return the columns on which the arms of the policy's latest version depend most, with the
    arms of each group.

    Groups are quarters of a number and the categories of a text. The list is empty if the policy
    always chooses one arm, or if the target is not a table.
    """
    if pair.table is None or choice.options is None or choice.options.has_images:
        return []
    if max(choice.assessment.target_arms) == 1.0:
        return []
    frame = choice.options.read_tables().target
    policy = choice.policy
    arms = policy.decide(pair.table.contexts(frame), "target", rule="greedy").arm
    groups = []
    for column in pair.table.columns:
        values = frame[column.name]
        if values.dtype.is_numeric():
            numbers = values.cast(pl.Float64).to_numpy()
            is_missing = np.isnan(numbers)
            if is_missing.all():
                continue
            edges = np.unique(np.quantile(numbers[~is_missing], (0.25, 0.5, 0.75)))
            labels = [f"at most {format_number(edge)}" for edge in edges]
            labels += [f"above {format_number(edges[-1])}", "missing"]
            codes = np.where(is_missing, len(edges) + 1, np.searchsorted(edges, numbers))
        else:
            texts, codes = np.unique(
                values.cast(pl.String).fill_null("missing").to_numpy(), return_inverse=True
            )
            labels = texts.tolist()
        counts = np.zeros((len(labels), policy.n_arms))
        np.add.at(counts, (codes, arms), 1)
        sizes = counts.sum(axis=1)
        fractions = counts.sum(axis=0) / len(arms)
        purity = float((np.square(counts).sum(axis=1) / np.maximum(sizes, 1)).sum())
        purity -= len(labels) * (1.0 - float(fractions @ fractions))  # the purity of random groups
        largest = np.argsort(-sizes, kind="stable")[:_MAX_CATEGORIES]
        rows = [
            (labels[row], int(sizes[row]), (counts[row] / sizes[row]).tolist())
            for row in sorted(largest.tolist())
            if sizes[row]
        ]
        groups.append((purity, _ColumnGroups(column.name, rows)))
    groups.sort(key=lambda group: -group[0])
    return [group for _, group in groups[:_N_COLUMNS]]


def _describe_change(assessment: Assessment) -> str:
    """Return a sentence that states what would change the verdict."""
    unit = f" {assessment.unit}" if assessment.unit else ""
    advantage = f"{format_number(assessment.advantage)}{unit}"
    rewards = f"{assessment.rewards_needed:,} {'more ' if assessment.rewards else ''}target rewards"
    if assessment.verdict == DEPLOY:
        return (
            f"The incumbent is better if the target's advantage is lower than expected by more than"
            f" {advantage}. A pilot with {rewards} would show it."
        )
    if assessment.verdict == COLLECT:
        return (
            f"Deploy if the lower limit rises above 0. About {rewards} suffice if the advantage is"
            f" {advantage}, as expected; an advantage of half this size needs four times as many."
        )
    return (
        "Another incumbent may be worse than the policy: `daband assess --incumbent ARM`. Rewards"
        " that favour another policy than the incumbent also change the verdict."
    )
