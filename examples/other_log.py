"""
A log of another policy
=======================

**Somebody else's policy has run for months. What can I learn from its log, and what would mine have earned?**

.. image:: images/sphx_glr_other_log_001.png
   :alt: what the policy learned from the log would earn, by five estimators with their intervals, beside the truth

A log has, for every round, the context, the arm that was chosen, its reward, and the *propensity*: the probability
with which that arm was chosen. From it a policy can be learned, and valued before it ever acts: in the domain of the
log, and in another one. The visitors are made up, so that the truth can stand beside the estimates.
"""

# %%
# The log
# -------
#
# The old policy prefers an offer by a rule of thumb, and tries another in three rounds of ten.

import matplotlib.pyplot as plt
import numpy as np

import daband

rng = np.random.default_rng(0)
ARMS, FEATURES = 4, 6
taste = rng.normal(size=(FEATURES, ARMS))


def chance(visitors: np.ndarray) -> np.ndarray:
    """The probability of a click on every offer, (n, ARMS)."""
    return 1 / (1 + np.exp(-visitors @ taste))


def logged(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Contexts, arms, rewards and propensities of n rounds."""
    visitors = rng.normal(size=(n, FEATURES))
    chances = np.full((n, ARMS), 0.3 / ARMS)
    chances[np.arange(n), (visitors[:, 0] > 0) * 2] += 0.7  # the rule of thumb looks at one number
    arms = (chances.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    clicks = (rng.random(n) < chance(visitors)[np.arange(n), arms]).astype(float)
    return visitors, arms, clicks, chances[np.arange(n), arms]


log = logged(8000)
abroad = rng.normal(0.5, 1.0, (3000, FEATURES))  # other visitors, who want what visitors like them want here
print(f"the old policy earns {log[2].mean():.3f} a round")

# %%
# Learn from it
# -------------
#
# A tenth of the log is held out: it will say what the new policy is worth. Propensities weigh the rounds, so that arms
# which the old policy showed to some visitors only are not judged by these alone.

pair = daband.domains.from_log(source=log, target=abroad, n_arms=ARMS, source_test=0.25)
policy = daband.LinUCB.for_pair(pair, seed=0)
daband.train(policy, source=pair.source, target=pair.target, episodes=len(pair.source) // 64)
print(policy)

# %%
# What would it have earned?
# --------------------------
#
# ``"dr"``, doubly robust, is the default. The others are there to compare. Read the warnings: they name rounds that
# carry most of the weight, arms that the log never chose, and a target that the log has no contexts of.

estimators = ("dr", "snips", "ips")
found = {name: daband.evaluate_log(policy, pair.source_test, estimator=name, rule="greedy") for name in estimators}
for name, estimate in found.items():
    print(
        f"{name:10} {estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f}), "
        f"effective sample {estimate.effective_sample_size:.0f}",
        *estimate.warnings,
    )


def in_truth(visitors: np.ndarray) -> float:
    """What the policy earns, from the probabilities that nobody knows outside a simulation."""
    arms = policy.decide(visitors, "source", rule="greedy").arm
    return float(chance(visitors)[np.arange(len(arms)), arms].mean())


here = in_truth(rng.normal(size=(50_000, FEATURES)))

# %%
# And in another domain?
# ----------------------
#
# With ``target=`` the policy is valued on other contexts. The log's rounds are weighted by how much more often
# contexts like theirs occur there. That assumes that a visitor wants the same in both places, which no log can test.

there = daband.evaluate_log(policy, pair.source_test, target=abroad, rule="greedy")
print(
    f"abroad     {there.value:.3f} ({there.low:.3f} to {there.high:.3f}); in truth {in_truth(abroad):.3f}",
    *there.warnings,
)

figure, axis = plt.subplots(figsize=(8, 3))
rows = {**found, "dr, abroad": there}
for row, estimate in enumerate(rows.values()):
    axis.plot([estimate.low, estimate.high], [row, row], color="#9fb3c8", linewidth=6, solid_capstyle="butt")
    axis.plot(estimate.value, row, "o", color="#0072b2")
    axis.plot(in_truth(abroad) if row == len(rows) - 1 else here, row, "|", color="black", markersize=18)
axis.axvline(log[2].mean(), color="#d55e00", linestyle=":", label="the old policy")
axis.set(yticks=range(len(rows)), yticklabels=list(rows), xlabel="clicks a round (bars: 95% intervals, ticks: truth)")
axis.invert_yaxis()
axis.legend(frameon=False)
plt.show()
assert here > log[2].mean() + 0.05

# %%
# A log larger than memory
# ------------------------
#
# ``fit_log`` reads Parquet files part by part. A linear policy is a sum over rounds, so the parts can be added up on
# any number of workers, to the same bits; ``engine="ray"`` uses a cluster.

import tempfile
from pathlib import Path

import polars as pl

folder = Path(tempfile.mkdtemp())
for month in range(3):
    visitors, arms, clicks, propensities = logged(2000)
    columns = {f"x{number}": visitors[:, number] for number in range(FEATURES)}
    pl.DataFrame({**columns, "arm": arms, "reward": clicks, "propensity": propensities}).write_parquet(
        folder / f"month-{month}.parquet"
    )
large = daband.LinUCB(context_shape=(FEATURES,), n_arms=ARMS, seed=0)
daband.fit_log(large, folder / "*.parquet")
print(large)
