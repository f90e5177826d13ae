"""Compare policies with the incumbent in the target: without target rewards, or with a few.

Start with ``_assess.py``, which estimates the advantage over the incumbent without target rewards.

- ``_assess.py``: ``build_assessment`` estimates the advantage, ``estimate_gain_error`` its standard
  error.
- ``_assessment.py``: ``Assessment``. Its ``with_verdict`` decides the verdict, ``with_rewards`` and
  ``with_learned_rounds`` add target rewards.
- ``_reference.py``: the fraction of an advantage that is usually left in another domain.
- ``_incumbent.py``: today's decisions, with which policies are compared.
- ``_choose.py``: choose a policy among candidates.
- ``_audit.py``: measure the advantage with a few target rewards.
- ``_questions.py``, ``_answers.py``: draw questions about target rewards, estimate advantages from
  the answers, and store the answers.
- ``_pilot.py``, ``_pilot_simulation.py``: plan and evaluate a pilot. ``logs/_controlled_trial.py``
  has its test and the limit of its cost, which the service uses too.
- ``_rules.py``, ``_rule_columns.py``: replace a policy by a small tree over raw columns, which
  ``logs/_tree_search.py`` finds.
- ``_budgets.py``: the assessment of a policy under limits, and its value for each budget.
"""

from daband.policies._default_members import Candidate, default_candidates
from daband.trust._assess import assess
from daband.trust._assessment import Assessment, read_assessment
from daband.trust._audit import Audit, answer_audit, audit
from daband.trust._budgets import BudgetPoint, assess_limits, budget_curve
from daband.trust._choose import Choice, choose
from daband.trust._pilot import PilotPlan, plan_pilot
from daband.trust._rules import RuleLeaf, Rules, rules

__all__ = [
    "Assessment",
    "Audit",
    "BudgetPoint",
    "Candidate",
    "Choice",
    "PilotPlan",
    "RuleLeaf",
    "Rules",
    "answer_audit",
    "assess",
    "assess_limits",
    "audit",
    "budget_curve",
    "choose",
    "default_candidates",
    "plan_pilot",
    "read_assessment",
    "rules",
]
