"""
Which method, and may I trust it?
=================================

**Nobody has a reward in the target. Which policy do I hand over, and how good will it be?**

.. image:: images/sphx_glr_trust_001.png
   :alt: the estimated value of the policy without a target reward, the audited one, and the truth, in two markets

Three calls answer that, each with more knowledge than the one before. ``choose`` trains candidates and picks one
without a target reward. ``assess`` says how good it is there, with a lower bound, a verdict and its reasons, still
without one. ``audit`` asks for a few rewards, and its interval holds whatever was assumed.

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
# Without ``candidates=`` eight are trained, from a constant arm to DABand; three here. Each is judged by its
# reward on source rounds that training did not use, times how much of its agreement with the others is left in the
# target. The simpler one wins where nothing is clearly better.

choice = daband.choose(
    pair,
    episodes=40,
    candidates=[
        Candidate("constant", "constant", {"alpha": 1.0}),
        Candidate("linucb", "linucb"),
        Candidate("daband", "daband", {"recipe": "small"}),
    ],
)
for row in choice.table:
    print({key: row[key] for key in ("candidate", "source_value", "estimated_value", "chosen")})

# %%
# Assess
# ------
#
# The choice comes with an assessment of its policy. ``daband.assess([policy, other_seed], source=pair.source_test,
# target=pair.target)`` makes one of any policies that were trained alike: how often they agree in the target tells more
# than how sure one of them is. ``required`` is by default what the best constant arm is estimated to earn there.

print(choice.assessment)

# %%
# The verdict rests on what stands under "This assumes". The first line there is the one that matters: contexts that
# are alike have the same best arm in both domains. In the relabelled market that is wrong, and everything above is the
# same.

# %%
# Audit
# -----
#
# So ask. ``ask`` is called with one context and the policy's arm, and returns what that pays; here it looks it up.
# Sixty rewards, drawn at random in a way that favours uncertain contexts. The interval rests on the draw alone.

place = {row.tobytes(): number for number, row in enumerate(contexts)}
audits = {}
for market, best in truth.items():

    def reward_of(asked: np.ndarray, arms: np.ndarray, best: np.ndarray = best) -> list[float]:
        return [float(best[place[row.tobytes()]] == arm) for row, arm in zip(asked, arms, strict=True)]

    audits[market] = daband.audit(
        choice.policy, target=contexts, budget=60, ask=reward_of, assessment=choice.assessment
    )
    found = audits[market]
    print(f"{market:18} {found.value:.3f}, from {found.low:.3f} to {found.high:.3f} (95%), {found.answered} rewards")

# %%
# Side by side
# ------------

chosen = choice.policy.decide(contexts, "target", rule="ucb").arm
figure, axis = plt.subplots(figsize=(8, 2.8))
for row, (market, best) in enumerate(truth.items()):
    held = choice.assessment
    axis.plot([held.low, 1], [row + 0.15] * 2, color="#9fb3c8", linewidth=6, solid_capstyle="butt")
    axis.plot(held.value, row + 0.15, "o", color="#52606d", label="assessed, without a reward" if row == 0 else None)
    found = audits[market]
    axis.plot([found.low, found.high], [row - 0.15] * 2, color="#e69f00", linewidth=6, solid_capstyle="butt")
    axis.plot(found.value, row - 0.15, "o", color="#d55e00", label="audited, 60 rewards" if row == 0 else None)
    axis.plot(np.mean(chosen == best), row, "|", color="black", markersize=40, label="truth" if row == 0 else None)
axis.set(
    yticks=[0, 1], yticklabels=list(truth), xlim=(-0.05, 1.05), ylim=(-0.6, 1.6), xlabel="mean reward in the target"
)
axis.legend(frameon=False, loc="center")
plt.show()

# %%
# Where to go
# -----------
#
# - Where answers take days, ``daband audit DIR --budget 200 --out questions.csv`` writes the questions, and
#   ``--answers`` takes them.
# - ``daband assess DIR`` does the same for runs of ``daband bench``.
# - What the estimates are worth was measured on held-out data sets: :doc:`/results/index`.
