"""
The clinical case: what does not work, and why
==============================================

**Doses are known for one population. May I align it with another and act there?**

.. image:: images/sphx_glr_clinical_001.png
   :alt: how often each dose is right in each population, and the right doses of every method

No. In this case alignment does *not* help, and this page shows how to see that before it does harm.
The right dose of the drug warfarin differs a lot between patients. The arms are a low, a medium and
a high weekly dose; a domain is a population. It is a benchmark, not medical advice."""

# %%
# The data
# --------
#
# The data are published by PharmGKB and cannot be part of the package (``daband data check
# warfarin`` says how to download them). Without them, this page uses small simulated data, and its
# output says so.

import matplotlib.pyplot as plt
import numpy as np

import daband

try:
    pair = daband.domains.load("warfarin", source="white", target="asian", passes=2)
    is_real = True
except daband.DataError:
    pair = daband.domains.load("warfarin", tiny=True)
    is_real = False
print(
    "real data" if is_real else "MADE-UP DATA: the numbers mean nothing",
    "-",
    pair.name,
    pair.class_names,
)

# %%
# Look at the arms first
# ----------------------
#
# The frequencies of the right doses differ between the populations, but without target labels only
# those of the source are known. Alignment makes the features of both populations similar. Each dose
# is then chosen about as often as it is right in the source, which is wrong in the target.

source_rows = np.arange(len(pair.source))
source_fractions = pair.source.read_rewards(source_rows)[0].mean(axis=0)
target_test = pair.target_test
# target labels, used only on this page
target_fractions = target_test.read_expected(0, len(target_test)).mean(axis=0)
for domain, fractions in (("source", source_fractions), ("target", target_fractions)):
    fraction_by_dose = dict(zip(pair.class_names, fractions.round(2).tolist(), strict=True))
    print(f"best dose, share of patients, {domain}: {fraction_by_dose}")

# %%
# Three methods, and always the same dose
# ---------------------------------------
#
# ``Constant`` is the best constant arm. A method that is not better has learned nothing useful.
# This page has one seed and a small budget; :doc:`the results </results/methods>` have five seeds
# and all six ordered pairs. An age or a weight means the same in both populations (a covariate
# shift), so by default DABand aligns nothing here and equals Neural-LinUCB;
# ``policy.recipe.weights`` has no term for the target.

policy_classes = {
    "Constant": daband.Constant,
    "LinUCB": daband.LinUCB,
    "Neural-LinUCB": daband.NeuralLinUCB,
    "DABand": daband.DABand,
}
results = {}
for name, policy_class in policy_classes.items():
    settings = {"recipe": "small"} if issubclass(policy_class, daband.NeuralLinUCB) else {}
    policy = policy_class.for_pair(pair, seed=0, **settings)
    episodes, episode_length = (40, 64) if is_real else (4, 16)
    daband.train(
        policy,
        source=pair.source,
        target=pair.target,
        episodes=episodes,
        episode_length=episode_length,
    )
    result = results[name] = daband.evaluate(policy, target_test)
    print(
        f"{name:14} right {result.accuracy:.3f}, by class {result.accuracy_macro:.3f}, doses"
        f" {result.arm_counts}"
    )

figure, axes = plt.subplots(1, 2, figsize=(9, 3), width_ratios=[1, 1.2])
positions = np.arange(pair.n_arms)
axes[0].bar(
    positions - 0.2,
    source_fractions,
    0.4,
    label=f"source: {pair.name.rpartition('/')[2].partition('-')[0]}",
)
axes[0].bar(positions + 0.2, target_fractions, 0.4, label=f"target: {pair.name.rpartition('-')[2]}")
axes[0].set(
    xticks=positions,
    xticklabels=pair.class_names,
    ylabel="share of patients",
    title="the right dose",
)
axes[0].legend(frameon=False)
bars = axes[1].barh(
    list(results),
    [result.accuracy for result in results.values()],
    color=["#d55e00", "#9fb3c8", "#9fb3c8", "#0072b2"],
)
axes[1].bar_label(bars, fmt="%.2f", padding=3)
axes[1].axvline(
    target_fractions.max(), color="#d55e00", linestyle=":", label="best constant dose of the target"
)
axes[1].invert_yaxis()
axes[1].set(
    xlim=(0, 1), xlabel="right doses in the target" + ("" if is_real else " (made-up data)")
)
axes[1].legend(frameon=False, fontsize=8, loc="lower right")
plt.show()

# %%
# What to take away
# -----------------
#
# A network is often worse than "always the medium dose". Three rules follow:
#
# 1. Compare with the best constant arm and with LinUCB before anything else. ``daband bench`` shows
#    both as rows.
# 2. Also compare the mean accuracy over classes (``accuracy_macro``): a constant arm is never right
#    for the other doses.
# 3. If the same patient would need another dose in the target, unlabelled contexts cannot show it.
#    A few target labels can. :doc:`/concepts/when-not` has the general rule.
