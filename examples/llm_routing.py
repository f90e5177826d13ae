"""
Which language model answers which prompt, in a new domain
==========================================================

**A router sends easy prompts to a cheap language model, and gains in our own traffic. A new domain
starts next week. Do we route there, collect 100 marks, or stay with the one model?**

.. image:: images/sphx_glr_llm_routing_001.png
   :alt: mean net reward in two new domains of each model, of the router, and of the choice by 100 marks

The prompts are questions of MMLU with the answers' marks of two models, a sample from RouteLLM that
is in the package. Nothing is downloaded: the features are frequent words. daband is not another
router here. It judges routers before they meet the new domain."""

# %%
# Prompts, marks and prices
# -------------------------
#
# The arms are the models. The reward of an answer is its mark less its price in marks: GPT-4 is worth
# its price of 0.15 if it is right for 15 more prompts of 100. ``daband example routing`` writes these
# files.

import tempfile
from importlib import resources
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import polars as pl

import daband

MODELS = pl.DataFrame(
    {"model": ["mixtral-8x7b", "gpt-4"], "open_weights": [True, False], "price": [0.0, 0.15]}
)
NEW_DOMAINS = ["sociology", "college_computer_science"]
names = MODELS["model"].to_list()
prices = MODELS["price"].to_numpy()
data = resources.files("daband.domains") / "examples" / "routing"  # daband example routing
home = pl.read_csv((data / "home.csv").read_bytes())
new = {domain: pl.read_csv((data / f"{domain}.csv").read_bytes()) for domain in NEW_DOMAINS}
marks = pl.read_csv((data / "rewards.csv").read_bytes())  # of the new domains, to judge
print(f"{len(home)} prompts at home, mean marks {home.select(names).mean().row(0)}")

# %%
# The verdict without a mark from the new domain
# ----------------------------------------------
#
# Both answers of each prompt at home are judged, so the source has the rewards of all arms. The
# target is a file of prompts. Its words mean the same as at home: ``shift="covariate"``.

folder = Path(tempfile.mkdtemp())
columns = daband.domains.Columns(
    context=["prompt"],
    encoders={"prompt": "words"},
    rewards=names,
    costs=dict(zip(names, prices.tolist(), strict=True)),
    id=["prompt_id"],
)


def choose(domain, budget=0):
    pair = daband.domains.from_table(
        source=home, target=new[domain], columns=columns, shift="covariate", source_test=0.3
    )
    ask = {"ask": judge, "budget": budget} if budget else {}
    return daband.choose(pair, incumbent="gpt-4", directory=folder / domain, **ask)


def judge(row, arm):
    """Return the mark of a model's answer to a prompt: here known, in practice a person's."""
    return marks.filter(pl.col("prompt_id") == row["prompt_id"][0])[names[arm[0]]].to_numpy()


first = {domain: choose(domain) for domain in NEW_DOMAINS}
for domain, choice in first.items():
    print(f"{domain}: {choice.assessment.sentence}")

# %%
# Both verdicts follow from the gain at home, and from how much of such a gain was left in other
# shifts between domains. **No prompt without a mark shows that the models themselves are better or
# worse at the new domain.**
#
# A hundred marks
# ---------------
#
# Every mark is used to compare the router, both models and the other candidates. A question is one
# prompt and one model. The seed draws the questions.

judged = {domain: choose(domain, budget=100) for domain in NEW_DOMAINS}
for domain, choice in judged.items():
    print(f"{domain}: {choice.candidate}; {choice.assessment.sentence}")

# %%
# What is true
# ------------
#
# In this sample all marks are known. In sociology the router gains, and in computer science it
# loses: the cheap model fails at prompts whose words look easy.


def read_rewards(domain):
    """Return the net reward of each model for each prompt, (n, 2)."""
    joined = new[domain].join(marks, on="prompt_id", maintain_order="left")
    return joined.select(names).to_numpy() - prices


def get_value(choice, domain):
    """Return the mean net reward of a policy in a new domain."""
    arms = choice.policy.decide(choice.policy.table.contexts(new[domain]), rule="greedy").arm
    return float(read_rewards(domain)[np.arange(len(arms)), arms].mean())


values = {}
for domain in NEW_DOMAINS:
    means = read_rewards(domain).mean(axis=0).tolist()
    values[domain] = {
        **{f"always {name}": mean for name, mean in zip(names, means, strict=True)},
        "router from home": get_value(first[domain], domain),
        "after 100 marks": get_value(judged[domain], domain),
    }
    print(domain, {name: round(value, 3) for name, value in values[domain].items()})

figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
for axis, (domain, bars) in zip(axes, values.items(), strict=True):
    axis.barh(list(bars), list(bars.values()), color=["C7", "C7", "C1", "C0"])
    axis.axvline(bars["always gpt-4"], color="black", linewidth=1, linestyle=":")
    axis.set(title=domain.replace("_", " "), xlabel="mean net reward")
axes[0].invert_yaxis()

society, computing = (values[domain] for domain in NEW_DOMAINS)
assert society["after 100 marks"] > society["always gpt-4"] + 0.05
assert computing["router from home"] < computing["always gpt-4"] - 0.08
assert computing["after 100 marks"] > computing["router from home"] + 0.08
assert judged["college_computer_science"].assessment.verdict != "deploy"

# %%
# In front of the models
# ----------------------
#
# The exported file takes a raw prompt and returns the model to call, with the probability of this
# choice. It contains the words, and needs only numpy. One prompt in ten is routed at random, so that
# its log can be evaluated.

file = folder / "sociology.daband"
daband.export(judged["sociology"].policy, file, epsilon=0.1, incumbent="gpt-4")
router = daband.load_deployed(file)
prompt = "Which sociologist wrote about the iron cage of bureaucracy?"
decision = router.decide({"prompt": prompt})
print(f"{decision.arm_name} (probability {decision.propensity:.2f})")

# %%
# ``daband serve sociology.daband`` answers the same over HTTP. A proxy asks it for each prompt, calls
# the model, and reports the mark when there is one (:doc:`/guide/service`). In CI, ``daband assess DIR
# --fail-unless deploy`` stops a router that is not proven in this domain (:doc:`/guide/routing`).
