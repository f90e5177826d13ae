"""
Which method, and may I trust it?
=================================

**Nobody has a reward in the target. Which policy do I hand over, and how good will it be?**

.. image:: images/sphx_glr_trust_001.png
   :alt: the estimated advantage without a target reward, the audited one, and the truth, in two markets

Three calls answer that, each with more knowledge than the one before. ``choose`` trains candidates and picks one
without a target reward. ``assess`` estimates its advantage over the incumbent, with a lower limit and a verdict, still
without one. ``audit`` asks for a few rewards, and its interval does not depend on assumptions about the target.

The data are made up, and were changed until the page shows what it is about: an illustration, not evidence. What was
measured on real data is under Results.
"""

# %%
# Two new markets
# ---------------
#
# Twelve groups of customers, six measures each. In both new markets the measures have another scale and offset. In the
# second one, besides, people want other offers than people like them do at home: it was *relabelled*. Contexts alone
# cannot tell the two markets apart, and that is the point of this page.

import matplotlib.pyplot as plt
import numpy as np

import daband
from daband.trust import Candidate

rng = np.random.default_rng(0)
GROUPS = rng.normal(0.0, 1.2, (12, 6))
scale, offset = rng.uniform(0.5, 2.0, 6), rng.normal(0.0, 2.0, 6)


def customers(n: int, *, abroad: bool) -> tuple[np.ndarray, np.ndarray]:
    """Measures (n, 6) and which of three offers suits each, (n,)."""
    group = rng.integers(0, 12, n)
    measures = GROUPS[group] + 0.3 * rng.normal(size=(n, 6))
    return (measures * scale + offset if abroad else measures), group % 3


home, wants = customers(3000, abroad=False)
contexts, suited = customers(2600, abroad=True)
truth = {"new market": suited, "relabelled market": (suited + 1) % 3}  # nobody who trains or chooses sees this
pair = daband.domains.from_arrays(source=(home, wants), target=contexts, class_names=["discount", "bundle", "letter"])

# %%
# Choose
# ------
#
# Without ``candidates=`` more are trained; three here. Without target rewards the preferred candidate is chosen. All
# are compared with the incumbent, which is the source's best arm unless ``incumbent=`` names another.

choice = daband.choose(
    pair,
    episodes=40,
    candidates=[
        Candidate("constant", "constant"),
        Candidate("linucb", "linucb"),
        Candidate("daband", "daband", {"recipe": "small"}, preferred=True),
    ],
)
for row in choice.table:
    print({key: row[key] for key in ("candidate", "source_advantage", "source_value", "chosen")})

# %%
# Assess
# ------
#
# The choice comes with an assessment of its policy. ``daband.assess(policy, source=pair.source_test,
# target=pair.target)`` makes one for any policy. The reference class says how much of such an advantage was left in
# other shifts.

print(choice.assessment)

# %%
# The class tells how often an advantage vanished elsewhere. It cannot tell whether it vanishes here: in the relabelled
# market the same contexts have other best arms, and everything above is the same.

# %%
# Audit
# -----
#
# So ask. ``ask`` is called with one context and one arm, the policy's or the incumbent's, and returns the reward; here
# it looks it up.

place = {row.tobytes(): number for number, row in enumerate(contexts)}
incumbent = choice.assessment.incumbent_arm
audits = {}
for market, best in truth.items():

    def reward_of(asked: np.ndarray, arms: np.ndarray, best: np.ndarray = best) -> list[float]:
        return [float(best[place[row.tobytes()]] == arm) for row, arm in zip(asked, arms, strict=True)]

    audits[market] = daband.audit(choice.policy, target=contexts, budget=60, ask=reward_of, incumbent=incumbent)
    print(f"{market:18} {audits[market].sentence}")

# %%
# Side by side
# ------------

chosen = choice.policy.decide(contexts, "target", rule="greedy").arm
figure, axis = plt.subplots(figsize=(8, 2.8))
for row, (market, best) in enumerate(truth.items()):
    held, found = choice.assessment, audits[market]
    axis.plot([held.low, 1], [row + 0.15] * 2, color="#9fb3c8", linewidth=6, solid_capstyle="butt")
    label = "assessed, without a reward" if row == 0 else None
    axis.plot(held.advantage, row + 0.15, "o", color="#52606d", label=label)
    axis.plot([found.low, found.high], [row - 0.15] * 2, color="#e69f00", linewidth=6, solid_capstyle="butt")
    axis.plot(found.advantage, row - 0.15, "o", color="#d55e00", label="audited, 60 rewards" if row == 0 else None)
    true = np.mean(chosen == best) - np.mean(best == incumbent)
    axis.plot(true, row, "|", color="black", markersize=40, label="truth" if row == 0 else None)
axis.axvline(0.0, color="#9aa5b1", linewidth=1)
axis.set(yticks=[0, 1], yticklabels=list(truth), xlim=(-0.6, 1.05), ylim=(-0.6, 1.6), xlabel="advantage in the target")
axis.legend(frameon=False, loc="center left")
plt.show()

# %%
# Where to go
# -----------
#
# - If answers take days, ``daband audit DIR --budget 100 --out questions.csv`` writes the questions, and ``--answers``
#   reads them.
# - ``daband assess DIR`` does the same for runs of ``daband bench``.
# - How often limits and verdicts were right: :doc:`/results/trust`.
