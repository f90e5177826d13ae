"""The section for the person who decides: what each policy is worth in its unit, beside what is there without it.

It stands first where rewards are numbers in the user's unit. Where exactly one arm is right, the accuracy says it all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from daband.evaluation import Paired
from daband.experiments import TARGET_VALUE, Record, decimals, metric_of
from daband.report.document import Block, Drawing, Section, Text
from daband.report.figures_results import Group, score_figure
from daband.report.runs import RunFiles
from daband.report.sections_results import interval, mean_cell, scores, slug
from daband.report.statistics import Key, paired_difference, role_of, score_by_seed
from daband.report.style import label
from daband.report.summary import Mean, labelled, summarise
from daband.report.tables import Cell, Table

__all__ = ["decision_sections", "logger_value", "uplift"]

REFERENCES = {"target_constant_value": "best constant arm", "logger_value": "logger"}
"""What a policy is compared with: the fields of a record, and their names."""


def uplift(records: Sequence[Record], key: Key, reference: str) -> Paired | None:
    """How much more a method earns than a reference, paired by seed; None where the reference is not known."""
    mine = [record for record in records if (record["method"], record["variant"]) == key]
    other = {record["seed"]: record[reference] for record in mine if record.get(reference) is not None}
    return paired_difference(score_by_seed(mine, key, TARGET_VALUE), other)


def logger_value(records: Sequence[Record]) -> float | None:
    """What the policy that wrote the source's log earned there; None where the source is no log."""
    return Mean.of([record.get("logger_value") for record in records]).value


def decision_sections(runs: Sequence[RunFiles]) -> list[Section]:
    """One section, where rewards are numbers in a unit and the target has labels; several pairs have their own."""
    here = [run for run in runs if role_of(run.record) == "comparison"]
    records = labelled([run.record for run in here])
    pairs = {run.record["pair"] for run in runs}
    if not records or len(pairs) > 1 or metric_of(records) is not TARGET_VALUE:
        return []
    pair = pairs.pop()
    return [Section(f"What it is worth: {pair}", _blocks(pair, here, records), 2)]


def _blocks(pair: str, runs: Sequence[RunFiles], records: Sequence[Record]) -> list[Block]:
    rows = sorted(summarise(records), key=lambda row: -row.rank)
    digits = decimals(*(row.value.value for row in rows), significant=4)
    known = {name: Mean.of([record.get(name) for record in records]).value for name in REFERENCES}
    references = {name: value for name, value in known.items() if value is not None}
    promised = {run.key: found for run in runs if (found := run.assessment()) is not None}
    headings = ["policy", "value a decision"]
    for name in references:
        headings += [f"over the {REFERENCES[name]}", "95% interval"]
    headings += ["promised, at least", "kept"] if promised else []
    table = Table(f"{slug(pair)}-decision", _caption(pair, references, digits, promised=bool(promised)), headings)
    for row in rows:
        key = (row.method, row.variant)
        cells: list[Cell | str] = [label(*key), mean_cell(row.value, digits, bold=row is rows[0] and len(rows) > 1)]
        for name in references:
            gain = uplift(records, key, name)
            cells += ["" if gain is None else f"{gain.difference:+,.{digits}f}", interval(gain, digits)]
        if promised:
            cells += _promise([run for run in runs if run.key == key], digits)
        table.add(*cells)
    marks = {REFERENCES[name]: value for name, value in references.items()}
    best = Mean.of([record.get("target_best_value") for record in records]).value
    if best is not None:
        marks["best arm"] = best
    groups = [
        Group(label(row.method, row.variant), scores(records, (row.method, row.variant), TARGET_VALUE),
              (row.method, row.variant), None)
        for row in rows
    ]  # fmt: skip
    told = "; ".join(f"{group.name} {group.values.mean():,.{digits}f}" for group in groups)
    chart = Drawing(
        f"{slug(pair)}-value",
        score_figure(groups, TARGET_VALUE, references=marks),
        f"{pair}: mean reward of a decision in the target, zero-shot, beside what needs no policy.",
        f"Value by policy: {told}.",
    )
    return [Text(_sentence(label(rows[0].method, rows[0].variant), rows[0].value, records, digits)), chart, table]


def _sentence(name: str, value: Mean, records: Sequence[Record], digits: int) -> str:
    key = next((r["method"], r["variant"]) for r in records if label(r["method"], r["variant"]) == name)
    parts = []
    for field, words in REFERENCES.items():
        gain = uplift(records, key, field)
        if gain is not None:
            sure = "" if math.isnan(gain.low) else f" (95% interval {interval(gain, digits)})"
            parts.append(f"{gain.difference:+,.{digits}f}{sure} against the {words}")
    return f"{name} earns {value.text(digits)} a decision in the target" + (f": {'; '.join(parts)}." if parts else ".")


def _caption(pair: str, references: dict[str, float], digits: int, *, promised: bool) -> str:
    text = f"{pair}: the mean reward of a decision in the target, in the rewards' unit, best first; ± over seeds."
    if "target_constant_value" in references:
        text += f" One and the same arm for everybody earns {references['target_constant_value']:,.{digits}f} at best."
    if "logger_value" in references:
        text += f" The policy that wrote the log earned {references['logger_value']:,.{digits}f} in the source."
    if promised:
        text += " Promised: the one-sided 95% bound that was estimated without a reward of the target."
    return text + " Intervals are paired by seed."


def _promise(runs: Sequence[RunFiles], digits: int) -> list[Cell | str]:
    """The lowest bound of a method's assessed runs, and in how many runs it held."""
    pairs = [(found.low, run.record["target_value"]) for run in runs if (found := run.assessment()) is not None]
    if not pairs:
        return ["", ""]
    held = sum(came >= low for low, came in pairs)
    return [f"{min(low for low, _ in pairs):,.{digits}f}", f"{held} of {len(pairs)} runs"]
