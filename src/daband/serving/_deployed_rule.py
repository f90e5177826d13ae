"""Decide on raw rows by a rule, with random arms that the ids of the rows determine."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from daband.errors import InvalidInput
from daband.serving._deployed_policy import DeployedDecision, DeployedPolicy, build_deployed
from daband.serving._export import freeze
from daband.serving._rule import Rule


@dataclass(frozen=True, repr=False)
class DeployedRule(DeployedPolicy):
    """A rule that decides on raw rows, and has the same random arms as its SQL and Python."""

    rule: Rule

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns that a row must have, with the id if a part of the ids gets a random arm."""
        names = super().columns or ()
        id_column = self.rule.id_column
        return (*names, id_column) if self.rule.epsilon and id_column not in names else names

    def decide(
        self, row: Any, *, arms: Any = None, control: float | None = None, **options: Any
    ) -> DeployedDecision:
        rule = self.rule
        if rule.epsilon and (arms is not None or control):
            raise InvalidInput(
                "a rule with epsilon decides by the ids of rows, without arms and control; export it"
                " for these: daband export rules.json FILE"
            )
        decision = super().decide(row, arms=arms, control=control, **options)
        if not rule.epsilon:
            return decision
        is_single = isinstance(decision.arm, int)
        rows: Any = [row] if is_single else row
        ids = (
            rows[rule.id_column] if hasattr(rows, "columns") else [x[rule.id_column] for x in rows]
        )
        offered = np.array([self.arm_names.index(name) for name in rule.arm_names])
        indices = np.searchsorted(offered, np.atleast_1d(decision.arm))
        indices, propensities = rule.explore(indices, list(ids))
        names = tuple(rule.arm_names[index] for index in indices)
        if not is_single:
            return decision._replace(arm=offered[indices], arm_name=names, propensity=propensities)
        return decision._replace(
            arm=int(offered[indices[0]]), arm_name=names[0], propensity=float(propensities[0])
        )


def deploy_rule(policy: Any, rule: Rule) -> DeployedRule:
    """Return a policy with a table as a deployed rule.

    ``rule`` is its rule.
    """
    table = policy.table
    if table is None:
        raise InvalidInput("the policy has no table of columns, so it cannot decide on raw rows")
    frozen = freeze(policy, None, 0.0, "greedy")
    ids = (*table.ids, rule.id_column)
    frozen = dataclasses.replace(frozen, table=dataclasses.replace(table, ids=ids))
    header = {
        "arm_names": policy.arm_names or list(map(str, range(policy.n_arms))),
        "feature_names": table.feature_names,
        "images": None,
        "assessment": None,
        "versions": {"policy": str(policy.version)},
        "log_parts": sorted(policy.log_parts),
        "incumbent": None,
        "costs": None if policy.costs is None else dataclasses.asdict(policy.costs),
        "limits": None,
        "pilot": None,
    }
    deployed = build_deployed(frozen, header, reference=None)
    return DeployedRule(**vars(deployed), rule=rule)
