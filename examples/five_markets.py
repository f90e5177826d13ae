"""
Five old markets and a new one
==============================

**I have five markets, not one. Which of them should a new market learn from, and how far can I trust the answer?**

.. image:: images/sphx_glr_five_markets_001.png
   :alt: on the left the value in the new market of policies of one market, of all pooled and of all weighted; on the
         right the estimate and the value of every market that was left out

Five countries have sold three offers for a while, and a sixth opens. One of the five is trouble: its shop recorded the
offers in the wrong order. Nobody knows that yet.
"""

# %%
# Five sources and a target
# -------------------------
#
# The right offer depends on a customer in the same way everywhere; customers differ from country to country. In
# ``fr`` the log is broken: the offers do not belong to the customers beside them.

import matplotlib.pyplot as plt
import numpy as np

import daband

COUNTRIES = {"de": 0.0, "fr": 0.2, "it": 0.5, "es": 0.7, "uk": -0.3, "pl": 0.4}
TASTE = np.random.default_rng(1).normal(size=(6, 3))


def customers(country, n=700):
    """Contexts of customers, and the offer that each would buy."""
    rng = np.random.default_rng(list(COUNTRIES).index(country))
    contexts = rng.normal(COUNTRIES[country], 1.0, (n, 6))
    bought = (contexts @ TASTE + 0.5 * rng.gumbel(size=(n, 3))).argmax(axis=1)
    return contexts, rng.permutation(bought) if country == "fr" else bought


old = {country: customers(country) for country in COUNTRIES if country != "pl"}
new_contexts, new_bought = customers("pl")
pair = daband.domains.from_arrays(
    sources=old,
    targets={"pl": new_contexts[:350]},
    target_test={"pl": (new_contexts[350:], new_bought[350:])},  # for this page alone: a new market has no such labels
    name="five markets",
)
pair

# %%
# A table with a column for the country does the same: ``from_table(source=table, domain="country", targets=["pl"],
# columns=...)``.
#
# Which source to trust
# ---------------------
#
# ``train`` measures it. Each source in turn is a target whose rewards are known: how well do the other sources predict
# them? Of ``fr`` no other country says anything, so it counts for nothing, and the run is the one without it. The
# others differ, but agree on who buys what: they are pooled.


def trained(pair, weights=None, seed=0):
    policy = daband.LinUCB.for_pair(pair, seed=seed)
    daband.train(policy, source=pair.source, target=pair.target, source_weights=weights)
    return policy


policy = trained(pair)
print(policy.source_weights)

measured = daband.training.measured_source_weights(pair.source, pair.target, like=policy)
for country in old:
    skill, similarity = measured.skill[country], measured.similarity[country]
    print(f"{country}: correlation with what the others predict {skill:+.2f}, {similarity:.0%} look like it")

# %%
# Weights may be said by hand, too: ``daband.train(..., source_weights={"de": 1, "fr": 0.2, ...})``.


def value(policy):
    return daband.evaluate(policy, pair.target_test).value


alone = {country: value(trained(daband.domains.restrict_pair(pair, sources=[country]))) for country in old}
pooled = value(trained(pair, weights=dict.fromkeys(old, 1.0)))
print(f"best single market {max(alone.values()):.3f}, pooled {pooled:.3f}, weighted {value(policy):.3f}")

# %%
# How far to trust it
# -------------------
#
# Without rewards from the new market its value can only be estimated. With several sources the estimate can be tried
# where the answer is known: leave one out, train on the others, estimate, compare. How far the estimates were off there
# bounds how far this one may be off.

healthy = daband.domains.restrict_pair(pair, sources=[country for country in old if policy.source_weights[country] > 0])
calibration = daband.trust._leave_one_source_out(healthy, trained)
print(calibration)

assessment = daband.assess(
    trained(healthy), source=healthy.source_test, target=healthy.target, calibration=calibration, required=0.4
)
print(assessment.sentence)
print(f"in truth {value(policy):.3f}")

# %%
# A bad market left in would show: its estimate is far from what its rewards say, and the bound falls.

with_fr = daband.trust._leave_one_source_out(pair, lambda rest: trained(rest, dict.fromkeys(rest.domains.sources, 1.0)))
print(f"bound with fr {with_fr.low(assessment.value):.2f}, without {calibration.low(assessment.value):.2f}")

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
bars = {**alone, "pooled": pooled, "weighted": value(policy)}
left.barh(list(bars), list(bars.values()), color=["0.75"] * len(alone) + ["tab:blue", "tab:orange"])
left.set(xlabel="value in the new market", xlim=(0, 1))
left.invert_yaxis()
right.plot(calibration.estimates, calibration.values, "o", color="tab:blue", label="left-out market")
right.plot(assessment.value, value(policy), "*", color="tab:orange", markersize=12, label="new market")
right.axline((0, 0), slope=1, color="0.7", linewidth=1)
right.set(xlabel="estimated value", ylabel="value", xlim=(0.4, 1), ylim=(0.4, 1))
right.legend(frameon=False)
plt.show()

# %%
# A market that grows old
# -----------------------
#
# Taste changes. With ``half_life`` a round counts half after so many rounds, or after so much of the ``time`` that
# ``update`` is told; predictions are exactly those of the weighted least squares. Here the two best offers swap half a
# year before the end, and the policy that forgets has found it.

contexts, bought = customers("de", 4000)
swapped = np.where(np.arange(4000) < 3000, bought, np.array([1, 0, 2])[bought])
rewards = np.eye(3)[swapped]
for half_life in (None, 300):
    policy = daband.LinUCB(context_shape=(6,), n_arms=3, transform=daband.Standardise(), half_life=half_life, seed=0)
    policy.prepare(contexts)
    earned = policy.play(contexts, rewards).reward
    print(f"half_life={half_life}: {earned[:3000].mean():.2f} before the change, {earned[-500:].mean():.2f} at the end")
