"""Route prompts to language models under a budget per prompt.

    python benchmarks/budgets.py --out benchmarks/records/budgets.json

A LinUCB learns the marks of four models on one half of the prompts of ParetoBandit, from features
of the text, net of their costs: the table has a column of costs per model, multiplied by a price in
marks per dollar. The price is the one at which the predicted cost of the other half's prompts is the
budget, as ``export`` finds prices on the target's contexts. Predictions for prompts that were learned
would differ too much from each other. The policy is exported with the budget as a limit, and decides
on the other half in a random order. The cost of a model for a prompt is not known before the
decision: actual costs are counted afterwards. Marks and costs of the held-out half are used for
nothing else. Data: ``$DABAND_DATA/routing``.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from machine import commit
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

import daband
from daband.logs._mean_estimates import estimate_mean

#: The budgets in dollars per prompt.
BUDGETS = (0.0002, 0.0004, 0.0006, 0.001, 0.002, 0.004, 0.008, 0.012)
#: The number of text features.
N_FEATURES = 48
#: The seeds of the orders of the held-out prompts.
ORDERS = (0, 1, 2, 3, 4)


class Prompts:
    """Both halves of the prompts: features (n, d), marks (n, K) and costs (n, K)."""

    def __init__(self, path: Path) -> None:
        frame = pl.read_csv(path)
        halves = [frame.filter(pl.col("split") == name) for name in ("val", "test")]
        self.models = [name[7:] for name in frame.columns if name.startswith("reward:")]
        words = TfidfVectorizer(sublinear_tf=True, min_df=2)
        components = TruncatedSVD(N_FEATURES - 1, random_state=0)
        first = components.fit_transform(words.fit_transform(halves[0]["prompt"]))
        texts = [first, components.transform(words.transform(halves[1]["prompt"]))]
        lengths = [np.log(half["prompt"].str.len_chars().to_numpy())[:, None] for half in halves]
        self.features = [
            np.concatenate(columns, axis=1) for columns in zip(texts, lengths, strict=True)
        ]
        self.marks, self.costs = (
            [half.select([f"{kind}:{name}" for name in self.models]).to_numpy() for half in halves]
            for kind in ("reward", "cost")
        )


def train(prompts: Prompts, rewards: np.ndarray, costs: np.ndarray | None = None) -> daband.LinUCB:
    """Return a policy of rewards (n, K) of the first half, net of costs (n, K)."""
    names = [f"x{index}" for index in range(N_FEATURES)]
    models = prompts.models
    columns = dict(zip(names, prompts.features[0].T, strict=True))
    columns |= dict(zip(models, rewards.T, strict=True))
    cost_names = [f"cost {model}" for model in models]
    columns |= dict(zip(cost_names, (0.0 * rewards if costs is None else costs).T, strict=True))
    pair = daband.domains.from_table(
        source=pl.DataFrame(columns),
        target=pl.DataFrame(dict(zip(names, prompts.features[1].T, strict=True))),
        columns=daband.domains.Columns(
            names, rewards=models, costs=dict(zip(models, cost_names, strict=True))
        ),
        source_test=None,
        shift="covariate",
        name="routing",
    )
    policy = daband.LinUCB.for_pair(pair, alpha=0.0, seed=0)
    daband.train(policy, source=pair.source, target=pair.target)
    policy.deploy("target")
    return policy


def read_contexts(policy: daband.LinUCB, prompts: Prompts, half: int) -> np.ndarray:
    """Return the contexts (n, d) of a half."""
    names = policy.table.names
    columns = dict(zip(names, prompts.features[half].T, strict=True))
    return policy.table.contexts(pl.DataFrame(columns))


def find_price(marks: np.ndarray, costs: np.ndarray, budget: float) -> float:
    """Return the price in marks per dollar at which the predicted mean cost is the budget."""

    def spend(price: float) -> float:
        arms = (marks - price * costs).argmax(axis=1)
        return float(costs[np.arange(len(arms)), arms].mean())

    low, high = 0.0, 1e5
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if spend(middle) > budget else (low, middle)
    return high


def export_router(
    prompts: Prompts, predictions: list[np.ndarray], budget: float, file: Path
) -> float:
    """Write a policy that keeps the budget, and return its price."""
    marks, costs_of_rows = predictions
    price = find_price(marks, costs_of_rows, budget)
    policy = train(prompts, prompts.marks[0], price * prompts.costs[0])
    arms = policy.decide(read_contexts(policy, prompts, 0), "source", rule="greedy").arm
    # the mean cost of a model for the prompts that it gets
    costs = {
        model: float(
            (prompts.costs[0][arms == arm] if (arms == arm).any() else prompts.costs[0])[
                :, arm
            ].mean()
        )
        for arm, model in enumerate(prompts.models)
    }
    daband.export(
        policy,
        file,
        arm_names=prompts.models,
        reference=read_contexts(policy, prompts, 1),
        max_cost=max(budget, min(costs.values())),
        costs=costs,
        explore="greedy",
    )
    return price


def decide_all(
    deployed: daband.serving.DeployedPolicy, prompts: Prompts, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the marks (n,) and costs (n,) of decisions on the held-out half, in a random order.

    Rows are those of the half, not the order of decisions.
    """
    arms = np.zeros(len(prompts.marks[1]), np.int64)
    names = deployed.columns
    assert names is not None
    assert deployed.limiter is not None
    for row in np.random.default_rng(seed).permutation(len(arms)):
        values = prompts.features[1][row].tolist()
        arms[row] = deployed.decide(dict(zip(names, values, strict=True))).arm
        deployed.limiter.record_use(arms[row], prompts.costs[1][row, arms[row]])
    rows = np.arange(len(arms))
    return prompts.marks[1][rows, arms], prompts.costs[1][rows, arms]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    prompts = Prompts(Path(os.environ["DABAND_DATA"]) / "routing" / "four_models.csv.gz")
    marks, costs = prompts.marks[1], prompts.costs[1]
    single: list[dict[str, Any]] = [
        {"model": name, "mark": float(marks[:, arm].mean()), "cost": float(costs[:, arm].mean())}
        for arm, name in enumerate(prompts.models)
    ]
    predictions = []
    for values in (prompts.marks[0], prompts.costs[0]):
        policy = train(prompts, values)
        predictions.append(policy.decide(read_contexts(policy, prompts, 1), "target").mean)
    predictions[1] = np.maximum(predictions[1], prompts.costs[0].min())
    budgets = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "router.daband"
        for budget in BUDGETS:
            price = export_router(prompts, predictions, budget, file)
            orders = [decide_all(daband.load_deployed(file), prompts, seed) for seed in ORDERS]
            mark, cost = np.mean(orders, axis=0)
            best = max(
                (arm for arm, model in enumerate(single) if model["cost"] <= budget),
                key=lambda arm: single[arm]["mark"],
            )
            gain = estimate_mean(mark - marks[:, best])
            budgets.append(
                {
                    "budget": budget,
                    "price": price,
                    "marks": [float(order[0].mean()) for order in orders],
                    "costs": [float(order[1].mean()) for order in orders],
                    "interval": estimate_mean(mark).compute_interval(0.95),
                    "best_single": single[best],
                    "gain": [gain.value, *gain.compute_interval(0.95)],
                }
            )
            print(
                f"{budget:.4f}: cost {cost.mean():.6f}, mark {mark.mean():.4f}, best single"
                f" {single[best]['mark']:.4f}, gain {budgets[-1]['gain']}",
                flush=True,
            )
    record = {
        "commit": commit(),
        "command": "python benchmarks/budgets.py",
        "prompts": [len(half) for half in prompts.marks],
        "best_per_prompt": float(marks.max(axis=1).mean()),
        "single": single,
        "budgets": budgets,
    }
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
