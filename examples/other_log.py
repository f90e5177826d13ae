"""
A log of another policy
=======================

**Another policy has run for months. What can I learn from its log, and what would my policy have
earned?**

.. image:: images/sphx_glr_other_log_001.png
   :alt: the mean reward of a policy learned from the log: the truth, and four estimates with intervals

A log has, for every round, the context, the arm that was chosen, its reward, and the *propensity*:
the probability with which that arm was chosen. A policy can be learned from the log, and its mean
reward can be estimated before it is deployed, in the domain of the log and in another one. The
visitors are simulated, so that the truth is known."""

# %%
# The log
# -------
#
# The old policy prefers an offer by a simple rule. In three rounds of ten it chooses at random. The
# reward is 1 for a click.

import matplotlib.pyplot as plt  # pip install matplotlib
import numpy as np

import daband

rng = np.random.default_rng(0)
N_ARMS = 4
N_FEATURES = 6
taste = rng.normal(size=(N_FEATURES, N_ARMS))


def compute_click_probabilities(visitors: np.ndarray) -> np.ndarray:
    """Return the probability of a click on every offer, (n, ARMS)."""
    return 1 / (1 + np.exp(-visitors @ taste))


def simulate_log(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return contexts, arms, rewards and propensities of n rounds."""
    visitors = rng.normal(size=(n, N_FEATURES))
    propensities_by_arm = np.full((n, N_ARMS), 0.3 / N_ARMS)
    propensities_by_arm[np.arange(n), (visitors[:, 0] > 0) * 2] += 0.7  # the rule uses one number
    arms = (propensities_by_arm.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    clicks = (rng.random(n) < compute_click_probabilities(visitors)[np.arange(n), arms]).astype(
        float
    )
    return visitors, arms, clicks, propensities_by_arm[np.arange(n), arms]


log = simulate_log(8000)
# other visitors, with the same preferences
foreign_visitors = rng.normal(0.5, 1.0, (3000, N_FEATURES))
print(f"the old policy earns {log[2].mean():.3f} clicks per round")

# %%
# Learn from it
# -------------
#
# A quarter of the log is held out to evaluate the new policy. Rounds are weighted by their
# propensities, because the old policy showed some offers mainly to some visitors.

pair = daband.domains.from_log(source=log, target=foreign_visitors, n_arms=N_ARMS, source_test=0.25)
policy = daband.LinUCB.for_pair(pair, seed=0)
daband.train(policy, source=pair.source, target=pair.target, episodes=len(pair.source) // 64)
print(policy)

# %%
# What would it have earned?
# --------------------------
#
# Read the warnings: they report rounds with most of the weight, arms that the log never chose, and
# target contexts that are unlike those of the log.

estimate = daband.evaluate_log(policy, pair.source_test, rule="greedy")
print(
    f"here       {estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f}), "
    f"effective sample {estimate.effective_sample_size:.0f}",
    *estimate.warnings,
)


def compute_true_value(visitors: np.ndarray) -> float:
    """Return the true mean reward of the policy, which is known only in a simulation."""
    arms = policy.decide(visitors, "source", rule="greedy").arm
    return float(compute_click_probabilities(visitors)[np.arange(len(arms)), arms].mean())


value_here = compute_true_value(rng.normal(size=(50_000, N_FEATURES)))

# %%
# And in another domain?
# ----------------------
#
# With ``target=`` the policy is evaluated on other contexts. Rounds of the log are weighted by how
# much more often such contexts occur in the target. This assumes that the same visitor would click
# on the same offers in both domains, which no log can test.

estimate_abroad = daband.evaluate_log(
    policy, pair.source_test, target=foreign_visitors, rule="greedy"
)
print(
    f"abroad     {estimate_abroad.value:.3f} ({estimate_abroad.low:.3f} to"
    f" {estimate_abroad.high:.3f}); in truth {compute_true_value(foreign_visitors):.3f}",
    *estimate_abroad.warnings,
)

figure, axes = plt.subplots(figsize=(8, 3))
rows = {"here": estimate, "abroad": estimate_abroad}
for row, estimate in enumerate(rows.values()):
    axes.plot(
        [estimate.low, estimate.high],
        [row, row],
        color="#9fb3c8",
        linewidth=6,
        solid_capstyle="butt",
    )
    axes.plot(estimate.value, row, "o", color="#0072b2")
    true_value = compute_true_value(foreign_visitors) if row == len(rows) - 1 else value_here
    axes.plot(true_value, row, "|", color="black", markersize=18)
axes.axvline(log[2].mean(), color="#d55e00", linestyle=":", label="the old policy")
axes.set(
    yticks=range(len(rows)),
    yticklabels=list(rows),
    xlabel="clicks a round (bars: 95% intervals, ticks: truth)",
)
axes.invert_yaxis()
axes.legend(frameon=False)
plt.show()
assert value_here > log[2].mean() + 0.05

# %%
# A log larger than memory
# ------------------------
#
# ``fit_log`` reads Parquet files part by part. A linear policy needs only sums over rounds, so
# workers can sum parts in parallel, with bitwise the same result; ``engine="ray"`` uses a cluster.

import tempfile
from pathlib import Path

import polars as pl

folder = Path(tempfile.mkdtemp())
for month in range(3):
    visitors, arms, clicks, propensities = simulate_log(2000)
    columns = {f"x{number}": visitors[:, number] for number in range(N_FEATURES)}
    pl.DataFrame(
        {**columns, "arm": arms, "reward": clicks, "propensity": propensities}
    ).write_parquet(folder / f"month-{month}.parquet")
large_policy = daband.LinUCB(context_shape=(N_FEATURES,), n_arms=N_ARMS, seed=0)
daband.fit_log(large_policy, folder / "*.parquet")
print(large_policy)
