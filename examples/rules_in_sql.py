"""
From an A/B test to a view in SQL
=================================

**Can our database decide who gets which offer, by a rule that everybody can read?**

.. image:: images/sphx_glr_rules_in_sql_001.png
   :alt: the true gain of the best offer, of a rule with two conditions, and of the full policy

A policy is often a model in a file, and a campaign is often a table in a database. If a small tree
is nearly as good as the model, the database needs no model. daband finds the best tree, and offers
it only if the test proves a gain. Customers here are simulated, so that the truth is known."""

# %%
# The test
# --------
#
# Three offers were drawn at random. The coupon is best for customers below 45, and the visit for
# others, except in the web shop, where nothing is best.

import sqlite3

import matplotlib.pyplot as plt
import numpy as np
import polars as pl

import daband

OFFERS = ["coupon", "nothing", "visit"]
rng = np.random.default_rng(0)


def draw_customers(n: int, mean_age: float) -> pl.DataFrame:
    """Return n customers of a market with this mean age."""
    return pl.DataFrame(
        {
            "customer": np.arange(n),
            "age": rng.normal(mean_age, 12, n).clip(18, 90).round(),
            "spent": rng.lognormal(4, 1, n).round(2),
            "channel": rng.choice(["web", "shop", "phone"], n),
        }
    )


def compute_means(customers: pl.DataFrame) -> np.ndarray:
    """Return the mean reward of each offer for each customer, in euros, (n, 3)."""
    age, channel = (customers[name].to_numpy() for name in ("age", "channel"))
    coupon = np.where(age < 45, 9.0, 4.0)
    visit = np.where((age >= 45) & (channel != "web"), 9.0, 4.0)
    return np.stack([coupon, np.full(len(customers), 5.0), visit], axis=1)


norway = draw_customers(8000, mean_age=45)
arms = rng.integers(0, 3, len(norway))
test = norway.with_columns(
    offer=pl.Series([OFFERS[arm] for arm in arms]),
    euros=compute_means(norway)[np.arange(len(arms)), arms] + rng.normal(0, 6, len(arms)),
    p=pl.lit(1 / 3),
)
sweden = draw_customers(5000, mean_age=52)
columns = daband.domains.Columns(
    context=["age", "spent", "channel"],
    categorical=["channel"],
    arm="offer",
    reward="euros",
    propensity="p",
    id=["customer"],
)
pair = daband.domains.from_table(source=test, target=sweden, columns=columns)

# %%
# The rule
# --------
#
# ``choose`` finds the policy, and ``rules`` the tree with at most two conditions per customer that is
# best for the customers of Sweden. The gain is estimated on customers that the tree was not learned
# from. The loss compares the tree with the full policy.

candidates = [daband.trust.Candidate("log", "log", preferred=True)]
choice = daband.choose(pair, candidates=candidates, unit="euros", seed=0)
rules = daband.rules(choice, pair=pair, max_depth=2)
print(rules.to_text())

# %%
# The view
# --------
#
# The rule is a query, which most databases understand. It never explores: the column ``propensity``
# is 1. To try other offers for a few customers, export the rule (``daband.export``).

query = rules.rule.to_sql("customers")
print(query)
database = sqlite3.connect(":memory:")
database.execute("CREATE TABLE customers (customer INTEGER, age REAL, spent REAL, channel TEXT)")
database.executemany("INSERT INTO customers VALUES (?, ?, ?, ?)", sweden.iter_rows())
database.execute(f"CREATE VIEW offers AS {query}")
database.execute("SELECT arm, COUNT(*) FROM offers GROUP BY arm").fetchall()

# %%
# The same decisions elsewhere
# ----------------------------
#
# The tree is also JSON, and the policy decides in Python. Both give the same offers as the view.

by_policy = list(rules.policy.as_deployed().decide(sweden).arm_name)
by_sql = [arm for (arm,) in database.execute("SELECT arm FROM offers ORDER BY customer")]
assert by_policy == by_sql
print(rules.rule.to_json())

# %%
# The truth
# ---------
#
# In the simulation we know the mean reward of every offer.

means = compute_means(sweden)
rows = np.arange(len(sweden))
contexts = pair.target.read(rows)
best = OFFERS.index(rules.best_arm)
values = {
    f"always {rules.best_arm}": means[:, best],
    "the rule": means[rows, rules.policy.decide(contexts, rule="greedy").arm],
    "the full policy": means[rows, choice.policy.decide(contexts, rule="greedy").arm],
    "the best possible": means.max(axis=1),
}
gains = {name: (value - means[:, best]).mean() for name, value in values.items()}
assert rules.proven
assert gains["the rule"] > 0.8 * gains["the full policy"]
figure, axes = plt.subplots(figsize=(7, 2.2))
axes.barh(list(gains), list(gains.values()), color=["#9fb3c8", "#0072b2", "#9fb3c8", "#9fb3c8"])
axes.invert_yaxis()
axes.set(xlabel=f"true gain over always {rules.best_arm} in Sweden, euros per customer")
plt.tight_layout()
plt.show()
