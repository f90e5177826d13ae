"""
Your own table, from files to a deployed policy
===============================================

**I have rewards of one market, and only a customer table of the next. Which offer do I show there, and to whom?**

.. image:: images/sphx_glr_own_table_001.png
   :alt: two columns of both tables, shifted against each other, and the share of right offers in the new market

Two files: in the old market we know which offer suits each customer, in the new one we know the customers. Other
currency, other habits, not one label. At the end stands one file that takes a raw row and returns an offer. The
customers are made up, so that the tutorial can say how well it went; everything before the last section works without
that.

The data are made up, and were changed until the page shows what it is about: an illustration, not evidence. What was
measured on real data is under Results.
"""

# %%
# Two files
# ---------
#
# Columns may be numbers or categories. The new market's prices are in another currency, its visits are counted by the
# month, and it has a device that the old one did not have.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import polars as pl

import daband

rng = np.random.default_rng(0)
OFFERS = ["discount", "bundle", "newsletter"]
MEASURES = ["basket", "visits", "minutes", "returns", "items", "searches"]
GROUPS = rng.normal(6.0, 1.2, (12, len(MEASURES)))  # twelve groups of customers; each offer suits four of them


def customers(n: int, scale: np.ndarray, offset: np.ndarray, devices: list[str]) -> tuple[pl.DataFrame, np.ndarray]:
    """A table of n customers, and which offer suits each."""
    group = rng.integers(0, len(GROUPS), n)
    numbers = (GROUPS[group] + 0.3 * rng.normal(size=(n, len(MEASURES)))) * scale + offset
    table = pl.DataFrame({name: numbers[:, place].round(3) for place, name in enumerate(MEASURES)})
    return table.with_columns(pl.Series("device", rng.choice(devices, n))), group % len(OFFERS)


ones, zeros = np.ones(len(MEASURES)), np.zeros(len(MEASURES))
scale, offset = rng.uniform(0.5, 2.0, len(MEASURES)), rng.normal(0.0, 2.0, len(MEASURES))

folder = Path(tempfile.mkdtemp())
old, suits = customers(4000, ones, zeros, ["phone", "desktop"])
new, _ = customers(4000, scale, offset, ["phone", "desktop", "television"])
old.with_columns(pl.Series("offer", [OFFERS[kind] for kind in suits])).write_csv(folder / "old_market.csv")
new.write_parquet(folder / "new_market.parquet")
print(pl.read_csv(folder / "old_market.csv").head(3).select("basket", "visits", "minutes", "device", "offer"))

# %%
# A pair of domains
# -----------------
#
# ``Columns`` says which columns are contexts, which of these are categories, and which column tells what pays. A label
# column means: the arm of that name pays 1, every other 0. The transform of columns is fitted on both tables, without
# labels.

pair = daband.domains.from_table(
    source=folder / "old_market.csv",
    target=folder / "new_market.parquet",
    columns=daband.domains.Columns(context=[*MEASURES, "device"], categorical=["device"], label="offer"),
)
print(
    pair.class_names,
    pair.context_shape,
    f"{len(pair.source):,} source rows to learn from, {len(pair.source_test):,} held out",
)
print("labels of the target:", pair.target_test)

# %%
# Train
# -----
#
# ``for_pair`` takes shape, arms and reward range from the pair. ``recipe="small"`` is made for a few seconds on a
# laptop; leave it out for the default. With ``directory=`` a run that is stopped goes on where it was.

policies = {
    "LinUCB": daband.LinUCB.for_pair(pair, seed=0),
    "Neural-LinUCB": daband.NeuralLinUCB.for_pair(pair, recipe="small", seed=0),
    "DABand": daband.DABand.for_pair(pair, recipe="small", seed=0),
}
for name, policy in policies.items():
    daband.train(policy, source=pair.source, target=pair.target, episodes=40)
    held_out = daband.evaluate(policy, pair.source_test, as_domain="source")
    print(f"{name:14} right on held-out rows of the old market: {held_out.accuracy:.3f}")

# %%
# What is right for the old market says nothing of the new one: nobody has a label there. :doc:`trust` shows what can be
# said about it all the same, and how to choose.

# %%
# Deploy
# ------
#
# One file with everything that a decision needs: the columns, the policy, the names of the offers. No row of either
# table is in it. A category that training never saw, or a number far outside, is a warning in the decision.

daband.export(policies["DABand"], folder / "market.daband", pair=pair, domain="target")
deployed = daband.load_deployed(folder / "market.daband")
print(deployed)

row = new.row(0, named=True)
decision = deployed.decide(row)
print({name: row[name] for name in ("basket", "visits", "device")}, "->", decision.arm_name)
print(deployed.decide({**row, "device": "fridge"}).warnings)

# %%
# From a shell it is ``python -m daband.serving market.daband < rows.jsonl``, one JSON object a line, and numpy is all
# that it needs there.

# %%
# How well did it go?
# -------------------
#
# Only because the customers are made up: 2,000 more of the new market, and what suits them.

strangers, truth = customers(2000, scale, offset, ["phone", "desktop", "television"])
contexts = pair.table.apply(strangers)
names = pair.class_names
right = {
    name: float(
        np.mean([names[arm] == OFFERS[kind] for arm, kind in zip(p.decide(contexts, "target").arm, truth, strict=True)])
    )
    for name, p in policies.items()
}
print({name: round(share, 3) for name, share in right.items()})
offered = deployed.decide(strangers).arm_name
print("the deployed file:", np.mean([offer == OFFERS[kind] for offer, kind in zip(offered, truth, strict=True)]))
assert right["DABand"] > right["LinUCB"] + 0.05

figure, (left, middle) = plt.subplots(1, 2, figsize=(8, 3), width_ratios=[1, 1.1])
for market, table in (("old market, with rewards", old), ("new market, no rewards", new)):
    left.scatter(table["basket"][:600], table["visits"][:600], s=5, alpha=0.6, label=market)
left.set(xlabel="basket", ylabel="visits")
left.legend(frameon=False, fontsize=8)
bars = middle.barh(list(right), list(right.values()), color=["#9fb3c8", "#9fb3c8", "#0072b2"])
middle.bar_label(bars, fmt="%.2f", padding=3)
middle.invert_yaxis()
middle.set(xlim=(0, 1.12), xlabel="right offers in the new market")
plt.show()

# %%
# LinUCB draws straight lines through the old market, in its units. Neural-LinUCB and DABand normalise each domain by
# its own statistics, which takes a shift of scale and offset out; where that is the whole shift, as here, the simpler
# of the two is enough. :doc:`/concepts/terms` says what the rest of DABand adds, and where.
