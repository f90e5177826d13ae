"""The section of assessments: what is estimated of policies in the target without a reward from there."""

from __future__ import annotations

from collections.abc import Sequence

from daband.experiments import metric_of
from daband.report.document import Block, Folded, Section, Text
from daband.report.runs import RunFiles
from daband.report.style import label
from daband.report.tables import Cell, Table
from daband.trust import Assessment

__all__ = ["assessment_sections"]


def assessment_sections(runs: Sequence[RunFiles]) -> list[Section]:
    """One section, or none where no run was assessed."""
    assessed = [(run, found) for run in runs if (found := run.assessment()) is not None]
    if not assessed:
        return []
    table = Table(
        "assessments",
        "Estimated value in the target, from source rewards and unlabelled target contexts; “at least” is a one-sided "
        "95% bound; true values, where labels exist, were used by no estimate.",
        ["run", "verdict", "estimated", "at least", "required", "true", "agreement"],
        text_columns=2,
    )
    several = len({run.record["pair"] for run, _ in assessed}) > 1
    digits = metric_of([run.record for run, _ in assessed]).digits(*(found.value for _, found in assessed))
    for run, found in assessed:
        name = f"{label(*run.key)}, seed {run.record['seed']}"
        true = run.record["target_value"]
        verdict = f"{found.verdict} {found.audit_rewards} rewards" if found.audit_rewards else found.verdict
        table.add(
            f"{run.record['pair']}: {name}" if several else name,
            verdict,
            f"{found.value:,.{digits}f}",
            f"{found.low:,.{digits}f}",
            f"{found.required:,.{digits}f}",
            Cell("" if true is None else f"{true:,.{digits}f}", muted=True),
            "" if found.agreement is None else f"{found.agreement:.3f}",
        )
    best, found = max(assessed, key=lambda one: one[1].low)
    blocks: list[Block] = [Text(f"{label(*best.key)}, seed {best.record['seed']}: {found.sentence}"), table]
    blocks += _closer(found)
    return [Section("May it be trusted in the target?", blocks, 2)]


def _closer(found: Assessment) -> list[Block]:
    names = found.arm_names or [str(arm.arm) for arm in found.per_arm]
    arms = Table(
        "assessment-arms",
        "By arm: how often the policy chooses it, how often it is expected to be the best one (maximum likelihood "
        "under label shift), and the estimated value of its choices.",
        ["arm", "chosen in source", "in target", "expected in source", "in target", "estimated value"],
    )
    for name, arm in zip(names, found.per_arm, strict=True):
        arms.add(
            name,
            f"{arm.source_share:.1%}",
            f"{arm.target_share:.1%}",
            f"{arm.expected_source:.1%}",
            f"{arm.expected_target:.1%}",
            "" if arm.value is None else f"{arm.value:,.3f}",
        )
    return [
        *(Text(reason) for reason in found.reasons),
        *(Text(sign, warning=True) for sign in found.collapse),
        Folded("By arm", [arms]),
        Folded("What this assumes", [Text(sentence) for sentence in found.assumptions]),
    ]
