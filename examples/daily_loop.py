"""
Two CSV files, a policy, and every week after
=============================================

**I have a log of the old market. How do I start in the new one, and learn from what happens
there?**

.. image:: images/sphx_glr_daily_loop_001.png
   :alt: euros per round in each of four weeks, against the best constant offer and the best offer for each customer

The input is a log with offers and euros, and a list of customers of the new market. The steps are:
choose a policy, export it, decide for a week, wait for rewards, learn, export again. Each step is
also a command. In the last week the customers change, and the monitor raises an alarm. The
customers are simulated, so that the true rewards are known."""

# %%
# Two files
# ---------
#
# In the new market customers are older, and prices are in another currency. No offer has been made
# there yet. One of the four offers, coffee, also earns less there. The files do not show this; only
# rewards will.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt  # pip install matplotlib
import numpy as np
import polars as pl

import daband

rng = np.random.default_rng(0)
OFFERS = np.array(["coffee", "none", "tea", "voucher"])
EXCHANGE_RATE = 11.0


def draw_customers(
    n: int, *, mean_age: float, exchange_rate: float, first_id: int = 0
) -> pl.DataFrame:
    """Return n customers of a market."""
    return pl.DataFrame(
        {
            "customer": np.arange(first_id, first_id + n),
            "age": rng.normal(mean_age, 12, n).round(),
            "basket": (rng.uniform(5, 110, n) * exchange_rate).round(2),
            "city": rng.choice(["Oslo", "Bergen", "Turku"], n),
        }
    )


def compute_expected_euros(customers: pl.DataFrame, exchange_rate: float) -> np.ndarray:
    """Return the expected reward of every offer, (n, 4). In the new market coffee earns less."""
    age = customers["age"].to_numpy()
    basket = customers["basket"].to_numpy() / exchange_rate
    coffee = (5.0 if exchange_rate == 1.0 else 3.0) + 0.05 * (age - 40)
    voucher = 1 + 4 * (customers["city"] == "Oslo").to_numpy()
    return np.stack([coffee, np.ones(len(customers)), 0.5 + 0.06 * basket, voucher], axis=1)


folder = Path(tempfile.mkdtemp())
old_customers = draw_customers(2000, mean_age=40, exchange_rate=1.0)
offer_indices = rng.integers(4, size=len(old_customers))
expected_rewards = compute_expected_euros(old_customers, 1.0)[np.arange(2000), offer_indices]
rewards = expected_rewards + rng.normal(0, 1, len(old_customers))
log = old_customers.with_columns(
    offer=pl.Series(OFFERS[offer_indices]), euros=pl.Series(rewards.round(2)), p=pl.lit(0.25)
)
log.write_csv(folder / "old.csv")
draw_customers(1000, mean_age=46, exchange_rate=EXCHANGE_RATE).write_csv(folder / "new.csv")

# %%
# Choose
# ------
#
# In a shell: ``daband choose --source old.csv --target new.csv --arm offer --reward euros
# --propensity p --id customer --units basket --out market``. The types of the columns are detected
# from their values.

pair = daband.domains.DataOptions(
    source=str(folder / "old.csv"),
    target=str(folder / "new.csv"),
    arm="offer",
    reward="euros",
    propensity="p",
    id=["customer"],
    units=["basket"],
).read()
choice = daband.choose(pair, unit="euros", seed=0)
print(choice)
print(choice.assessment.sentence)

# %%
# A week: decide, wait, learn
# ---------------------------
#
# The verdict above is an estimate without target rewards. It cannot know that coffee earns less in
# the new market. The rewards of the first weeks show it, and the policy learns them.
#
# On the command line, ``daband export market market.daband --epsilon 0.1`` writes the file,
# ``daband decide market.daband week.csv --out log.csv`` writes the log, and ``daband learn market
# log.csv --id customer`` learns from it. Here every customer has one decision; otherwise use an id
# of the decision. A quarter of the rewards is late. Rounds without a reward are ignored with a
# warning, and are learned when the log is passed again.

policy = choice.policy
others = draw_customers(5000, mean_age=46, exchange_rate=EXCHANGE_RATE)
other_contexts = pair.table.apply(others)


def print_expected_euros(policy: daband.Policy) -> None:
    """Print what the policy earns per round with other customers of the new market."""
    arms = policy.decide(other_contexts, "target", rule="greedy").arm
    euros = compute_expected_euros(others, EXCHANGE_RATE)[np.arange(len(arms)), arms].mean()
    print(f"expected: {euros:.2f} euros per round, coffee for {(arms == 0).mean():.0%}")


print_expected_euros(policy)
weekly_values = []
for week in range(4):
    daband.export(
        policy, folder / "market.daband", pair=pair, domain="target", epsilon=0.1, explore="greedy"
    )
    deployed = daband.load_deployed(folder / "market.daband")
    monitor = deployed.monitor()
    mean_age = 46 if week < 3 else 64  # older customers in the last week
    week_customers = draw_customers(
        500, mean_age=mean_age, exchange_rate=EXCHANGE_RATE, first_id=10_000 * (week + 1)
    )
    decision = monitor.decide(week_customers.drop("customer"))
    expected_rewards = compute_expected_euros(week_customers, EXCHANGE_RATE)
    rewards = expected_rewards[np.arange(len(week_customers)), decision.arm] + rng.normal(
        0, 1, len(week_customers)
    )
    weekly_values.append(
        (rewards.mean(), expected_rewards.mean(axis=0).max(), expected_rewards.max(axis=1).mean())
    )
    log = week_customers.with_columns(
        arm=pl.Series(decision.arm_name),
        propensity=pl.Series(decision.propensity),
        reward=pl.Series(rewards.round(2)),
    )
    is_late = rng.random(len(week_customers)) < 0.25
    log.filter(~pl.Series(is_late)).write_csv(folder / f"log{week}.csv")
    daband.learn_log(policy, folder / f"log{week}.csv", id="customer")
    log.write_csv(folder / f"log{week}.csv")  # now with the late rewards
    daband.learn_log(policy, folder / f"log{week}.csv", id="customer")
    alarm = (
        f"alarm: {', '.join(monitor.report().reasons[:2])}"
        if monitor.report().alarm
        else "no alarm"
    )
    print(
        f"week {week + 1}, version {deployed.version}: {rewards.mean():.2f} euros per round,"
        f" {alarm}"
    )
print_expected_euros(policy)

# %%
# Compared with the best offers
# -----------------------------
#
# After four weeks the policy offers coffee to fewer customers, and earns more, as the two lines
# with expected euros show. Single weeks vary: rewards are noisy, and a tenth of the offers is random.
# The last week has other customers, so its euros are not comparable with the weeks before.
#
# For comparison: the best single offer for everybody, and the best offer for each customer, which
# is unknown in practice.

figure, axes = plt.subplots(figsize=(7, 3))
week_numbers = np.arange(1, 5)
labels = ("the policy", "best constant offer", "best offer")
for values, label in zip(zip(*weekly_values, strict=True), labels, strict=True):
    axes.plot(
        week_numbers, values, marker="o", ls="-" if label == "the policy" else "--", label=label
    )
axes.set(xlabel="week", ylabel="euros per round", xticks=week_numbers)
axes.legend(frameon=False, fontsize=8)
plt.show()
