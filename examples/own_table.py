"""
Your own table, from files to a deployed policy
===============================================

**I know the best choice for the people of one group. How do I choose for a group for which I know
no best choices?**

.. image:: images/sphx_glr_own_table_001.png
   :alt: blood pressure and body mass of both groups, and the fraction of correct choices in the target group

The input is two files. For the women of a diabetes study we know how the disease progressed in the
following year, so we know which of three plans suits each of them. For the men we only have the
measurements of the first day. The result is one file that takes a raw row and returns a plan.

The table is from scikit-learn (442 patients, Efron et al. 2004). It is an ordinary case: small,
noisy, and the two groups differ little. It is not medical advice."""

# %%
# Two files
# ---------
#
# The plan follows from the progress of the disease; each plan suits a third of all patients.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt  # pip install matplotlib
import numpy as np
import polars as pl
from sklearn.datasets import load_diabetes

import daband

table = load_diabetes(scaled=False)
PLANS = np.array(["check once a year", "check monthly", "treat now"])
patients = pl.DataFrame(table.data, schema=table.feature_names).with_columns(
    pl.Series(
        "plan", PLANS[np.searchsorted(np.quantile(table.target, [1 / 3, 2 / 3]), table.target)]
    )
)
women, men = (patients.filter(pl.col("sex") == code).drop("sex") for code in (1, 2))

folder = Path(tempfile.mkdtemp())
women.write_csv(folder / "women.csv")
men.drop("plan").write_csv(folder / "men.csv")
print(women.head(3))

# %%
# A pair of domains
# -----------------
#
# ``Columns`` names the context columns and the label: the arm with the name in the label column has
# reward 1, every other arm 0.
#
# ``shift`` states what may differ between the two groups. A blood pressure of 120 means the same
# for both, and only its distribution differs: ``"covariate"``. :doc:`/concepts/assumptions` has the
# other answers.

MEASURES = [name for name in women.columns if name != "plan"]
pair = daband.domains.from_table(
    source=folder / "women.csv",
    target=folder / "men.csv",
    columns=daband.domains.Columns(context=MEASURES, label="plan"),
    shift="covariate",
    source_test=0.25,
)
print(f"{len(pair.source)} women to learn from, {len(pair.source_test)} held out")
print("labels of the men:", pair.target_test)

# %%
# Choose
# ------
#
# ``choose`` trains several candidates, from a constant arm to networks, and returns one of them
# with an assessment. It does not use the men's plans.

choice = daband.choose(pair, seed=0)
print(f"{choice.candidate}: {choice.rule}")
for row in choice.table:
    print(
        f"{row['candidate']:28} in the source {row['source_value']:.2f}, advantage"
        f" {row['source_advantage']:+.2f}"
    )

# %%
print(choice.assessment)

# %% The assessment says whether to deploy, to collect some rewards first, or to keep the incumbent.
# With rewards for a few men, ``choose(pair, ask=..., budget=50)`` decides by them:
# :doc:`/guide/choose`.

# %%
# Deploy
# ------
#
# The exported file has everything that a decision needs: the columns, the policy and the names of
# the plans. It contains no row of either table. A number far outside the training data is a warning
# in the decision.

daband.export(choice.policy, folder / "plans.daband", pair=pair, domain="target")
deployed = daband.load_deployed(folder / "plans.daband")
row = men.drop("plan").row(0, named=True)
print({name: row[name] for name in ("age", "bmi", "bp")}, "->", deployed.decide(row).arm_name)
print(deployed.decide({**row, "bmi": 300.0}).warnings)

# %%
# Was it right?
# -------------
#
# The men's plans were not used so far. They show how often each policy is right. The baseline is
# the constant plan that is best for the women.

policies = {
    "constant plan": daband.Constant.for_pair(pair, seed=0),
    "LinUCB": daband.LinUCB.for_pair(pair, seed=0),
}
episodes = 4 * len(pair.source) // 64
for policy in policies.values():
    daband.train(policy, source=pair.source, target=pair.target, episodes=episodes)
contexts = pair.table.apply(men.drop("plan"))
truth = men["plan"].to_numpy()
names = np.array(pair.class_names)
accuracies = {
    name: float(np.mean(names[policy.decide(contexts, "target").arm] == truth))
    for name, policy in {**policies, f"chosen: {choice.candidate}": choice.policy}.items()
}
print({name: round(accuracy, 2) for name, accuracy in accuracies.items()})

figure, (scatter_axes, bar_axes) = plt.subplots(1, 2, figsize=(8, 3), width_ratios=[1, 1.1])
for group, frame in (("women, with rewards", women), ("men, no rewards", men)):
    scatter_axes.scatter(frame["bmi"], frame["bp"], s=6, alpha=0.6, label=group)
scatter_axes.set(xlabel="body mass index", ylabel="blood pressure")
scatter_axes.legend(frameon=False, fontsize=8)
bars = bar_axes.barh(
    list(accuracies), list(accuracies.values()), color=["#9fb3c8", "#9fb3c8", "#0072b2"]
)
bar_axes.bar_label(bars, fmt="%.2f", padding=3)
bar_axes.invert_yaxis()
bar_axes.set(xlim=(0, 1.12), xlabel="right plans for the men")
plt.show()

# %% With 207 men, a difference of 0.07 or less between two policies may be due to chance. On a
# table as small as this, a linear model is hard to beat; :doc:`/concepts/when-not` describes when
# to expect more, and when less.
