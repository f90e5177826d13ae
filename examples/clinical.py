"""
The clinical case: what does not work, and why
==============================================

**Doses are known for one population. May I align it with another and act there?**

.. image:: images/sphx_glr_clinical_001.png
   :alt: how often each dose is right in each population, and the right doses of every method

No. This page is about a case in which the method of this library does *not* help, and how to see that before it
harms. Warfarin is a drug whose right dose differs between patients tenfold. The arms are a low, a medium and a high
weekly dose; a domain is a population. It is a benchmark, not medical advice.
"""

# %%
# The data
# --------
#
# They are given out by PharmGKB and cannot come with the package (``daband data check warfarin`` says how to get
# them). Where they are not, this page runs on the pair's made-up small twin, so that its code is still tested, and the
# numbers below say so.

import matplotlib.pyplot as plt
import numpy as np

import daband

try:
    pair, real = daband.domains.load("warfarin", source="white", target="asian", passes=2), True
except daband.DataError:
    pair, real = daband.domains.load("warfarin", tiny=True), False
print("real data" if real else "MADE-UP DATA: the numbers mean nothing", "-", pair.name, pair.class_names)

# %%
# Look at the arms first
# ----------------------
#
# Which dose is right, and how often, differs between the populations: *label shift*. What one can see without labels is
# the source alone. An alignment_summary makes the features of both populations look alike, and with them the choices:
# it carries the source's frequencies over to the target, where they are wrong.

every = np.arange(len(pair.source))
in_source = pair.source.read_rewards(every)[0].mean(axis=0)
test = pair.require_target_test()
in_target = test.read_expected(0, len(test)).mean(axis=0)  # the target's labels: for this page alone
print("best dose, share of patients, source:", dict(zip(pair.class_names, in_source.round(2).tolist(), strict=True)))
print("                              target:", dict(zip(pair.class_names, in_target.round(2).tolist(), strict=True)))

# %%
# Three methods, and always the same dose
# ---------------------------------------
#
# ``Constant`` is the best constant arm. A method that is not above it has learned nothing that helps here. One seed
# and a small budget; :doc:`the records </results/methods>` have five seeds and all six ordered pairs. An age or a
# weight means the same in both populations (a covariate shift), so DABand aligns nothing by itself:
# ``policy.alignment_summary`` says so, and its row is that of Neural-LinUCB.

makers = {
    "Constant": daband.Constant,
    "LinUCB": daband.LinUCB,
    "Neural-LinUCB": daband.NeuralLinUCB,
    "DABand": daband.DABand,
}
found = {}
for name, maker in makers.items():
    settings = {"recipe": "small"} if issubclass(maker, daband.NeuralLinUCB) else {}
    policy = maker.for_pair(pair, seed=0, **settings)
    daband.train(
        policy, source=pair.source, target=pair.target, episodes=40 if real else 4, episode_length=64 if real else 16
    )
    found[name] = daband.evaluate(policy, test)
    one = found[name]
    print(f"{name:14} right {one.accuracy:.3f}, by class {one.accuracy_macro:.3f}, doses given {one.arm_counts}")

figure, axes = plt.subplots(1, 2, figsize=(9, 3), width_ratios=[1, 1.2])
place = np.arange(pair.n_arms)
axes[0].bar(place - 0.2, in_source, 0.4, label=f"source: {pair.name.rpartition('/')[2].partition('-')[0]}")
axes[0].bar(place + 0.2, in_target, 0.4, label=f"target: {pair.name.rpartition('-')[2]}")
axes[0].set(xticks=place, xticklabels=pair.class_names, ylabel="share of patients", title="the right dose")
axes[0].legend(frameon=False)
bars = axes[1].barh(
    list(found), [result.accuracy for result in found.values()], color=["#d55e00", "#9fb3c8", "#9fb3c8", "#0072b2"]
)
axes[1].bar_label(bars, fmt="%.2f", padding=3)
axes[1].axvline(in_target.max(), color="#d55e00", linestyle=":", label="best constant dose of the target")
axes[1].invert_yaxis()
axes[1].set(xlim=(0, 1), xlabel="right doses in the target" + ("" if real else " (made-up data)"))
axes[1].legend(frameon=False, fontsize=8, loc="lower right")
plt.show()

# %%
# What to take away
# -----------------
#
# A network alone is often below what "always the medium dose" gets. Three rules follow:
#
# 1. Compare with the best constant arm and with LinUCB before anything else. ``daband bench`` shows both as rows.
# 2. Accuracy over classes (``accuracy_macro``) tells what a constant arm hides: the high dose is right for 2% of one
#    population.
# 3. Where the *need* differs between domains and not only its appearance, no unlabelled context can tell. A few labels
#    of the target can. :doc:`/concepts/when-not` has the general rule.
