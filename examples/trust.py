"""
Which method, and may I trust it?
=================================

**There are no target rewards yet. Which policy should I deploy, and how good will it be?**

.. image:: images/sphx_glr_trust_001.png
   :alt: the estimated advantage without a target reward, the audited one, and the truth, in two markets

Three functions answer this question. ``choose`` trains candidates and returns one of them, without
target rewards. ``assess`` estimates its advantage over the incumbent (what you do now), with a
lower limit and a verdict, also without target rewards. ``audit`` uses a few target rewards, so its
interval is also valid if the target contradicts the source.

The data are simulated, and were tuned until the example shows the problem: it is an illustration,
not evidence. Results on real data are on :doc:`another page </results/trust>`."""

# %%
# Two new markets
# ---------------
#
# There are twelve groups of customers, with six numeric attributes. In both new markets the
# attributes have another scale and offset. In the second market, in addition, customers want other
# offers than similar customers at home: this market is *relabelled*. Contexts are the same in both
# markets, so they cannot show the difference. This is the problem that the page illustrates.

import matplotlib.pyplot as plt  # pip install matplotlib
import numpy as np

import daband
from daband.trust import Candidate

rng = np.random.default_rng(0)
GROUPS = rng.normal(0.0, 1.2, (12, 6))
scale = rng.uniform(0.5, 2.0, 6)
offset = rng.normal(0.0, 2.0, 6)


def draw_customers(n: int, *, is_abroad: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return attributes (n, 6) and the best of three offers for each customer, (n,)."""
    groups = rng.integers(0, 12, n)
    measures = GROUPS[groups] + 0.3 * rng.normal(size=(n, 6))
    return (measures * scale + offset if is_abroad else measures), groups % 3


home_contexts, home_offers = draw_customers(3000, is_abroad=False)
contexts, best_offers = draw_customers(2600, is_abroad=True)
# not used by training or choose
truth = {"new market": best_offers, "relabelled market": (best_offers + 1) % 3}
pair = daband.domains.from_arrays(
    source=(home_contexts, home_offers),
    target=contexts,
    class_names=["discount", "bundle", "letter"],
)

# %%
# Choose
# ------
#
# Here three candidates are trained; without ``candidates=`` there would be more. Without target
# rewards, nothing shows which one is best, so the candidate with ``preferred=True`` is chosen. All
# candidates are compared with the incumbent, by default the source's best arm (``incumbent=`` sets
# another).

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
# The choice comes with an assessment of its policy. ``daband.assess(policy,
# source=pair.source_test, target=pair.target)`` makes one for any policy. It also reports the
# *reference class*: how much of such an advantage was left in the target in other shifts between
# real domains.

print(choice.assessment)

# %% The reference class shows how often an advantage vanished in other data. It cannot show whether
# it vanishes here. In the relabelled market the same contexts have other best arms, but everything
# above is the same.

# %%
# Audit
# -----
#
# Only target rewards can show it. The function ``ask`` gets one context and one arm, either the
# policy's or the incumbent's, and returns the reward. In practice you would try the arm; here the
# function looks up the reward.

row_of_context = {row.tobytes(): number for number, row in enumerate(contexts)}
incumbent = choice.assessment.incumbent_arm
audits = {}
for market, true_offers in truth.items():

    def look_up_rewards(
        contexts: np.ndarray, arms: np.ndarray, true_offers: np.ndarray = true_offers
    ) -> np.ndarray:
        rows = [row_of_context[context.tobytes()] for context in contexts]
        return (true_offers[rows] == arms).astype(float)

    audits[market] = daband.audit(
        choice.policy, target=contexts, budget=60, ask=look_up_rewards, incumbent=incumbent
    )
    print(f"{market:18} {audits[market].sentence}")

# %%
# Side by side
# ------------

chosen_arms = choice.policy.decide(contexts, "target", rule="greedy").arm
figure, axes = plt.subplots(figsize=(8, 2.8))
for row, (market, true_offers) in enumerate(truth.items()):
    assessment = choice.assessment
    audit = audits[market]
    axes.plot(
        [assessment.low, 1], [row + 0.15] * 2, color="#9fb3c8", linewidth=6, solid_capstyle="butt"
    )
    label = "assessed, without a reward" if row == 0 else None
    axes.plot(assessment.advantage, row + 0.15, "o", color="#52606d", label=label)
    axes.plot(
        [audit.low, audit.high],
        [row - 0.15] * 2,
        color="#e69f00",
        linewidth=6,
        solid_capstyle="butt",
    )
    axes.plot(
        audit.advantage,
        row - 0.15,
        "o",
        color="#d55e00",
        label="audited, 60 rewards" if row == 0 else None,
    )
    true_advantage = np.mean(chosen_arms == true_offers) - np.mean(true_offers == incumbent)
    axes.plot(
        true_advantage, row, "|", color="black", markersize=40, label="truth" if row == 0 else None
    )
axes.axvline(0.0, color="#9aa5b1", linewidth=1)
axes.set(
    yticks=[0, 1],
    yticklabels=list(truth),
    xlim=(-0.6, 1.05),
    ylim=(-0.6, 1.6),
    xlabel="advantage in the target",
)
axes.legend(frameon=False, loc="center left")
plt.show()

# %%
# Next steps
# ----------
#
# - If rewards take days, ``daband audit DIR --budget 100 --out questions.csv`` writes the contexts
#   and arms whose rewards are needed, and ``--answers`` reads the completed file.
# - ``choice.save("market")`` writes a choice to a folder, and ``daband assess market`` prints it.
# - :doc:`/results/trust` shows how often limits and verdicts were right.
