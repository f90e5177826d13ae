"""
From an A/B test in one market to a policy for the next
=======================================================

**We ran an A/B test in one market. Whom should we send which offer in the next one?**

.. image:: images/sphx_glr_ab_test_001.png
   :alt: the gain of choosing by customer over the best offer, estimated from the test, for two products

An A/B test is a log: for every customer it has attributes known before the test, the offer that was
drawn at random, its probability, and the reward in euros. Usually one offer is best for nearly
everybody, and a policy that chooses by customer loses money. So daband chooses by customer only if
the test proves a gain. Customers here are simulated, so that the truth is known."""

# %%
# The test
# --------
#
# Two products were tested in Norway with the same three offers. Few customers buy, and the amounts
# that they spend differ a lot. For *shoes* the coupon is best for everybody; for *tents* it is best
# for customers below 45, and a visit is best for the others.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt  # pip install matplotlib
import numpy as np
import polars as pl

import daband

OFFERS = ["coupon", "nothing", "visit"]
COSTS = np.array([1.0, 0.0, 2.0])  # euros, if the customer buys
rng = np.random.default_rng(0)


def draw_customers(n: int, mean_age: float) -> pl.DataFrame:
    """Return n customers of a market with this mean age."""
    return pl.DataFrame(
        {
            "age": rng.normal(mean_age, 12, n).clip(18, 90).round(),
            "spent": rng.lognormal(4, 1, n).round(2),
            "channel": rng.choice(["web", "shop", "phone"], n),
        }
    )


def compute_buy_probabilities(customers: pl.DataFrame, product: str) -> np.ndarray:
    """Return the probability that each customer buys with each offer, (n, 3)."""
    is_young = customers["age"].to_numpy() < 45
    if product == "shoes":
        return np.tile([0.12, 0.06, 0.09], (len(customers), 1))
    return np.stack(
        [
            np.where(is_young, 0.20, 0.04),
            np.full(len(customers), 0.05),
            np.where(is_young, 0.05, 0.15),
        ],
        axis=1,
    )


def simulate_test(product: str, n: int = 12_000) -> pl.DataFrame:
    """Return the log of a test: half of the customers got nothing, a quarter the coupon, a quarter
    a visit.
    """
    customers = draw_customers(n, mean_age=45)
    probabilities = np.array([0.25, 0.5, 0.25])
    offer_indices = rng.choice(3, n, p=probabilities)
    buys = (
        rng.random(n) < compute_buy_probabilities(customers, product)[np.arange(n), offer_indices]
    )
    euros = (buys * (rng.lognormal(3.5, 0.7, n) - COSTS[offer_indices])).round(2)
    return customers.with_columns(
        offer=pl.Series([OFFERS[index] for index in offer_indices]),
        euros=euros,
        p=probabilities[offer_indices],
    )


tests = {product: simulate_test(product) for product in ("shoes", "tents")}
sweden = draw_customers(5000, mean_age=52)  # the next market: older customers, and no test yet
tests["tents"].head(5)

# %%
# Does choosing by customer gain?
# -------------------------------
#
# ``choose`` finds the offer with the largest mean reward for the customers of Sweden, by doubly
# robust estimates (inverse propensity weights with a reward model). Then it learns how much each
# customer would gain from another offer, and tests this by cross-fitting, on customers that were
# not used for learning. ``choice.rule`` has the estimated gain in euros per customer, with its
# standard error. For tents, the visit is the best offer in Sweden, where customers are older.

columns = daband.domains.Columns(
    context=["age", "spent", "channel"],
    categorical=["channel"],
    arm="offer",
    reward="euros",
    propensity="p",
)
pairs = {}
choices = {}
for product, test in tests.items():
    pairs[product] = daband.domains.from_table(
        source=test, target=sweden, columns=columns, name=product
    )
    choices[product] = daband.choose(pairs[product], unit="euros", seed=0)
    print(f"{product}: {choices[product].rule}")

# %%
# The estimate for Sweden
# -----------------------
#
# The assessment compares the policy with the incumbent, by default the best offer in Norway. It
# uses the whole test: what is estimated for a customer was learned from other customers. Swedish
# customers may behave differently from Norwegian customers of the same age, which no test in Norway
# can show. The assessment allows for this: its lower limit is based on how much effects differed
# between the sites of real experiments.

for product, choice in choices.items():
    print(f"{product}: {choice.assessment.sentence}")
print(choices["tents"].assessment)

# %%
# The truth
# ---------
#
# In the simulation we know every probability, so we can compare the estimate with the true gain in
# Sweden.

sale_rewards = np.exp(3.5 + 0.7**2 / 2) - COSTS
figure, axes = plt.subplots(figsize=(7, 2.4))
for row, (product, choice) in enumerate(choices.items()):
    pair, policy, evidence = pairs[product], choice.policy, choice.policy.evidence
    true_rewards = compute_buy_probabilities(sweden, product) * sale_rewards
    chosen_offers = policy.select(pair.table.apply(sweden), "target").arm
    gain = (
        true_rewards[np.arange(len(chosen_offers)), chosen_offers].mean()
        - true_rewards[:, evidence.arm].mean()
    )
    print(
        f"{product}: in Sweden the policy really gains {gain:+.2f} euros over always"
        f" {OFFERS[evidence.arm]}"
    )
    axes.plot(
        [evidence.gain - 2 * evidence.error, evidence.gain + 2 * evidence.error],
        [row, row],
        color="#9fb3c8",
        linewidth=8,
    )
    axes.plot(
        evidence.gain,
        row,
        "o",
        color="#0072b2",
        label="estimate from the test" if row == 0 else None,
    )
    axes.plot(
        gain, row, "|", color="black", markersize=22, label="truth in Sweden" if row == 0 else None
    )
axes.axvline(0.0, color="#d55e00", linestyle=":")
axes.set(
    yticks=[0, 1],
    yticklabels=list(choices),
    ylim=(-0.6, 1.6),
    xlabel="euros per customer over the best offer",
)
axes.legend(frameon=False, loc="lower right")
plt.tight_layout()
plt.show()

# %%
# Deploy it
# ---------
#
# The policy is exported to one file, which needs only numpy and safetensors. It decides on a
# customer given as a mapping from column to value. Every decision here has probability 1. To learn
# from the log of these decisions later, export with ``epsilon=0.05``, so that every offer is
# sometimes chosen at random.

file = Path(tempfile.mkdtemp()) / "tents.daband"
daband.export(choices["tents"].policy, file)
deployed = daband.load_deployed(file)
for customer in (
    {"age": 24, "spent": 80.0, "channel": "web"},
    {"age": 71, "spent": 80.0, "channel": "phone"},
):
    print(customer, "->", deployed.decide(customer).arm_name)
