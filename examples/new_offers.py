"""
New offers
==========

**The next market has offers that were never tried. Can data of the old market show which of them
are good?**

.. image:: images/sphx_glr_new_offers_001.png
   :alt: mean reward in the new market of a uniform choice, a policy without features, and a policy with features

A policy that knows arms only by name must have seen an arm before it can choose it. With a
*catalogue*, a table of arms with features, it learns which kind of offer suits which kind of
customer. The customers are simulated, so that the best choice is known."""

# %%
# The catalogue and the log
# -------------------------
#
# The old market has 24 offers. The new one has 6 of them, and 12 that are new. A catalogue is a
# table. The column ``id`` has the names; the types of the others are detected: numbers, categories,
# and lists of words.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt  # pip install matplotlib
import numpy as np
import polars as pl

import daband

rng = np.random.default_rng(0)
kinds = ["loan", "card", "fund"]
tags = ["green", "travel", "family"]
offers = pl.DataFrame(
    {
        "id": [f"offer {number}" for number in range(36)],
        "price": rng.uniform(1, 20, 36).round(1),
        "kind": rng.choice(kinds, 36),
        "tags": ["|".join(rng.choice(tags, 2, replace=False)) for _ in range(36)],
    }
)
old_offers = offers[:24]
new_offers = offers[18:]


def compute_expected_rewards(customers: pl.DataFrame) -> np.ndarray:
    """Return the expected reward of every offer for every customer, (n, 36). No policy sees it."""
    scaled_income, scaled_age = (
        (customers[name].to_numpy() - centre) / scale
        for name, centre, scale in (("income", 40, 12), ("age", 45, 15))
    )
    scaled_price = (offers["price"].to_numpy() - 10) / 6
    is_fund = (offers["kind"] == "fund").to_numpy()
    is_family = offers["tags"].str.contains("family").to_numpy()
    by_customer = 0.8 * np.outer(scaled_income, scaled_price) + np.outer(scaled_age, is_fund)
    return by_customer + 0.5 * is_family - 0.3 * scaled_price


def draw_customers(n: int, older: float) -> pl.DataFrame:
    """Return n customers of a market."""
    return pl.DataFrame({"age": rng.normal(45 + older, 15, n), "income": rng.normal(40, 12, n)})


customers = draw_customers(3000, older=0.0)
shown_offers = rng.integers(0, 24, 3000)  # the old market showed its offers at random
log = customers.with_columns(
    offer=pl.Series(old_offers["id"].to_numpy()[shown_offers]),
    reward=pl.Series(
        compute_expected_rewards(customers)[np.arange(3000), shown_offers]
        + 0.5 * rng.normal(size=3000)
    ),
    p=1 / 24,
)
new_customers = draw_customers(1000, older=8.0)

# %%
# Learn in the old market
# -----------------------
#
# ``arms`` may be one table, or one for each domain. Arms that a domain does not have are never
# chosen there.

columns = daband.domains.Columns(
    context=["age", "income"], arm="offer", reward="reward", propensity="p"
)
pair = daband.domains.from_table(
    source=log,
    target=new_customers,
    columns=columns,
    arms={"source": old_offers, "target": new_offers},
)
policy = daband.LinUCB.for_pair(pair, seed=0)
daband.train(policy, source=pair.source, target=pair.target)
policy.deploy("target")
print(pair.catalogue, pair.catalogue.table.feature_names)

# %%
# Mean reward in the new market
# -----------------------------
#
# A policy without features can only choose well among the six offers that it knows from the old
# market.

true_rewards = compute_expected_rewards(new_customers)
rows = np.arange(len(new_customers))
contexts = pair.target.read(rows)
arms_by_features = policy.decide(contexts, rule="greedy").arm

pair_without_features = daband.domains.from_log(
    source=(pair.table.contexts(log), shown_offers, log["reward"].to_numpy(), log["p"].to_numpy()),
    target=contexts,
    n_arms=36,
)
policy_without_features = daband.LinUCB.for_pair(pair_without_features, seed=0)
daband.train(
    policy_without_features,
    source=pair_without_features.source,
    target=pair_without_features.target,
)
is_known = (np.arange(36) >= 18) & (np.arange(36) < 24)
arms_by_name = policy_without_features.decide(
    contexts, "target", available=is_known, rule="greedy"
).arm

mean_rewards = {
    "a uniform\nchoice": true_rewards[:, 18:].mean(),
    "names only,\nsix old offers": true_rewards[rows, arms_by_name].mean(),
    "with features": true_rewards[rows, arms_by_features].mean(),
    "the best\nchoice": true_rewards[:, 18:].max(axis=1).mean(),
}
figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
bars = axes.bar(
    list(mean_rewards), list(mean_rewards.values()), color=["0.75", "0.75", "tab:blue", "0.9"]
)
axes.bar_label(bars, fmt="%.2f")
axes.set_ylabel("mean reward in the new market")
figure.show()
print({name.replace("\n", " "): round(float(value), 2) for name, value in mean_rewards.items()})
assert mean_rewards["with features"] > mean_rewards["names only,\nsix old offers"] + 0.1
assert (arms_by_features >= 18).all()

# %%
# Decide among the arms of a request
# ----------------------------------
#
# The exported file has the catalogue. A request names arms by id, or brings the features of an arm
# that is in no catalogue yet.

folder = Path(tempfile.mkdtemp())
daband.export(policy, folder / "market.daband", pair=pair, epsilon=0.1)
deployed = daband.load_deployed(folder / "market.daband")
offered_today = [
    "offer 20",
    "offer 31",
    {"id": "offer 99", "price": 19.0, "kind": "fund", "tags": "family|green"},
]
decision = deployed.decide({"age": 62, "income": 55}, arms=offered_today)
print(decision.arm_name, round(decision.propensity, 3), decision.mean.round(2))

# %%
# Learn about a new arm
# ---------------------
#
# ``add_arm`` takes the features. The prediction for an arm is a function of its features plus an
# intercept of this arm, which is learned from its own rounds. The features explain the rewards of
# the other offers almost completely, so this intercept is learned slowly.

new_arm = policy.add_arm("offer 99", {"price": 19.0, "kind": "fund", "tags": "family|green"})
contexts_of_one = pair.table.contexts([{"age": 62, "income": 55}] * 100)
first_prediction = policy.decide(contexts_of_one[:1]).mean[0, new_arm]
policy.update(contexts_of_one, [new_arm] * 100, np.full(100, first_prediction - 2.0))
last_prediction = policy.decide(contexts_of_one[:1]).mean[0, new_arm]
print(
    f"predicted {first_prediction:.2f}, and {last_prediction:.2f} after 100 rewards of"
    f" {first_prediction - 2:.2f}"
)
assert last_prediction < first_prediction - 0.5
