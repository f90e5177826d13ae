"""
Five old markets and a new one
==============================

**I have five markets, not one. How does a new market learn from all of them, and how do I find one
that misleads?**

.. image:: images/sphx_glr_five_markets_001.png
   :alt: on the left the value in the new market of policies trained on one market, on all, and on all but the broken
         one; on the right the value in each old market of a policy that was trained on the other
         four

Five countries have sold three offers for a while, and a sixth opens. One of the five is broken: its
shop recorded the offers in the wrong order. The analyst does not know this yet."""

# %%
# Five sources and a target
# -------------------------
#
# The right offer depends on a customer in the same way everywhere; customers differ from country to
# country. In ``fr`` the log is broken: offers and customers do not belong together.

import matplotlib.pyplot as plt  # pip install matplotlib
import numpy as np

import daband

COUNTRIES = {"de": 0.0, "fr": 0.2, "it": 0.5, "es": 0.7, "uk": -0.3, "pl": 0.4}
TASTE = np.random.default_rng(1).normal(size=(6, 3))


def draw_customers(country, n=700):
    """Return contexts of customers, and the offer that each would buy."""
    rng = np.random.default_rng(list(COUNTRIES).index(country))
    contexts = rng.normal(COUNTRIES[country], 1.0, (n, 6))
    bought_offers = (contexts @ TASTE + 0.5 * rng.gumbel(size=(n, 3))).argmax(axis=1)
    return contexts, rng.permutation(bought_offers) if country == "fr" else bought_offers


old_markets = {country: draw_customers(country) for country in COUNTRIES if country != "pl"}
new_contexts, new_offers = draw_customers("pl")
pair = daband.domains.from_arrays(
    sources=old_markets,
    targets={"pl": new_contexts[:350]},
    # for this page only: a new market has no such labels
    target_test={"pl": (new_contexts[350:], new_offers[350:])},
    name="five markets",
)
pair

# %% For a table with a column for the country, use ``from_table(source=table, domain="country",
# targets=["pl"], columns=...)``.
#
# Pooled, or one at a time
# ------------------------
#
# ``train`` pools all sources: every round counts once. ``restrict_pair`` keeps some of them.


def train_on(*countries):
    """Return a policy that was trained on these countries."""
    restricted_pair = daband.domains.restrict_pair(pair, sources=countries)
    policy = daband.LinUCB.for_pair(restricted_pair, seed=0)
    daband.train(policy, source=restricted_pair.source, target=restricted_pair.target)
    return policy


def evaluate_in_target(policy):
    """Return the mean reward of a policy in the new market."""
    return daband.evaluate(policy, pair.target_test).value


single_values = {country: evaluate_in_target(train_on(country)) for country in old_markets}
pooled_value = evaluate_in_target(train_on(*old_markets))
print(f"best single market {max(single_values.values()):.3f}, all five {pooled_value:.3f}")
assert pooled_value > min(single_values.values())

# %%
# Find the market that misleads
# -----------------------------
#
# The new market has no rewards, but the old ones do. Train on four of them and measure the value in
# the fifth. Check a market that the other four do not predict, or give it a smaller weight.

agreement = {}
for country, (contexts, bought_offers) in old_markets.items():
    policy = train_on(*(other for other in old_markets if other != country))
    agreement[country] = float(
        np.mean(policy.decide(contexts, "pl", rule="greedy").arm == bought_offers)
    )
    print(
        f"{country}: the other four choose the offer that was bought for {agreement[country]:.0%}"
        " of customers"
    )
assert min(agreement, key=agreement.get) == "fr"

value_without_fr = evaluate_in_target(
    train_on(*(country for country in old_markets if country != "fr"))
)
print(f"without fr {value_without_fr:.3f}")
assert value_without_fr >= pooled_value - 0.02

figure, (market_axes, agreement_axes) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
bars = {**single_values, "all five": pooled_value, "without fr": value_without_fr}
market_axes.barh(
    list(bars),
    list(bars.values()),
    color=["0.75"] * len(single_values) + ["tab:blue", "tab:orange"],
)
market_axes.set(xlabel="value in the new market", xlim=(0, 1))
market_axes.invert_yaxis()
agreement_axes.barh(list(agreement), list(agreement.values()), color="tab:blue")
agreement_axes.axvline(1 / 3, color="0.5", linestyle=":")
agreement_axes.set(xlabel="value of the other four's policy in this market", xlim=(0, 1))
agreement_axes.invert_yaxis()
plt.show()

# %%
# A market that changes
# ---------------------
#
# Taste changes. With ``weights=`` older rounds count less, and predictions are exactly those of the
# weighted least squares. Here the two best offers swap at round 3,000.

contexts, bought_offers = draw_customers("de", 4000)
wanted_offers = np.where(np.arange(4000) < 3000, bought_offers, np.array([1, 0, 2])[bought_offers])
rewards = np.eye(3)[wanted_offers]
recency_weights = 2.0 ** (np.arange(4000) / 300)
value_at_end = {}
for name, weights in {
    "every round counts once": None,
    "half-life of 300 rounds": recency_weights,
}.items():
    policy = daband.LinUCB(context_shape=(6,), n_arms=3, transform=daband.Standardise(), seed=0)
    policy.prepare(contexts)
    reward = policy.play(contexts, rewards, weights=weights).reward
    value_at_end[name] = reward[-500:].mean()
    print(
        f"{name}: {reward[:3000].mean():.2f} before the change, {reward[-500:].mean():.2f} at"
        " the end"
    )
assert value_at_end["half-life of 300 rounds"] > value_at_end["every round counts once"] + 0.2
