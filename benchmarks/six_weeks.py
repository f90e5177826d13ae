"""Simulate six weeks of a new market, and compare a policy that learns every week with LinUCB.

    python benchmarks/six_weeks.py --seeds 40 50 --out benchmarks/records/six-weeks.json

There are four offers. Customers have an age, an amount spent and a channel; a purchase has reward
1. A log of 8,000 uniform rounds of the home market is known, and contexts of 8,000 customers of the
new market, who are older. Then 2,000 customers of the new market come every week, and their
rewards depend on the world: "same" as at home; "coupon worse"; "one best arm", where effects do
not depend on the context, and the coupon is worse; "reversed", where two arms exchange their
effects of age.

``LogPolicy`` is exported every week with an epsilon of 0.1, decides on all customers of the week,
and learns their rewards afterwards (``learn_log``). LinUCB learns the same log, counts source and
target rounds alike, and learns after every 16 customers, or also once a week. The record has the
expected reward of each week. Policies of a seed have the same customers and the same random numbers
of rewards. Seeds below 40 were seen when the policy was changed.
"""

from __future__ import annotations

import one_thread  # noqa: F401  # isort: skip

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from machine import commit
from parallel import run_jobs

import daband

WORLDS = ("same", "coupon worse", "one best arm", "reversed")
POLICIES = ("LogPolicy", "LinUCB", "LinUCB, weekly")
_N_ARMS = 4
_N_SOURCE = 8000
_N_WEEKS = 6
_PER_WEEK = 2000
_BATCH = 16
_EPSILON = 0.1
_ALPHA = 0.8


def draw_customers(n: int, rng: np.random.Generator, age: float, web: float) -> np.ndarray:
    """Return contexts (n, 5): age, logarithm of the amount spent, and a column per channel."""
    ages = rng.normal(age, 13.0, n).clip(18.0, 90.0).round()
    spent = rng.lognormal(4.0, 0.9, n).round(2)
    channel = rng.choice(3, n, p=[web, (1.0 - web) * 0.7, (1.0 - web) * 0.3])
    return np.column_stack([ages, np.log(spent), channel == 0, channel == 1, channel == 2])


def compute_means(contexts: np.ndarray, world: str, is_target: bool) -> np.ndarray:
    """Return the expected rewards of all arms, (n, 4): coupon, gift, letter, nothing."""
    age = np.tanh((contexts[:, 0] - 45.0) / 13.0)
    web = contexts[:, 2] - 0.5
    spent = np.tanh(contexts[:, 1] - 4.0)
    nothing = np.full(len(contexts), 0.14)
    gift = 0.16 + 0.08 * web + 0.03 * spent
    means = np.stack([0.20 - 0.08 * age, gift, 0.18 + 0.08 * age, nothing], axis=1)
    if world == "one best arm":
        means = np.tile([0.20, 0.16, 0.18, 0.14], (len(contexts), 1))
    if is_target and world in ("coupon worse", "one best arm"):
        means[:, 0] -= 0.07
    if is_target and world == "reversed":
        means[:, 0], means[:, 2] = 0.20 + 0.08 * age, 0.18 - 0.08 * age
    return means


class Market:
    """The source log and the target customers of one seed."""

    def __init__(self, world: str, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.contexts = draw_customers(_N_SOURCE, rng, 42.0, 0.5)
        self.arms = rng.integers(_N_ARMS, size=_N_SOURCE)
        means = compute_means(self.contexts, world, is_target=False)
        self.rewards = (rng.random(_N_SOURCE) < means[np.arange(_N_SOURCE), self.arms]) * 1.0
        self.propensities = np.full(_N_SOURCE, 1.0 / _N_ARMS)
        self.weeks = [draw_customers(_PER_WEEK, rng, 50.0, 0.7) for _ in range(_N_WEEKS)]
        self.means = [compute_means(week, world, is_target=True) for week in self.weeks]
        # one random number decides the rewards of all arms
        self.numbers = rng.random((_N_WEEKS, _PER_WEEK))
        self.known_customers = draw_customers(
            _N_SOURCE, np.random.default_rng([seed, 1]), 50.0, 0.7
        )

    def reward(
        self, week: int, rows: np.ndarray, arms: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the expected and the drawn rewards of arms for some customers of a week."""
        expected = self.means[week][rows, arms]
        return expected, (self.numbers[week][rows] < expected) * 1.0


def run_log_policy(market: Market, seed: int) -> list[float]:
    """Return the mean expected reward of each week for a policy that learns every week."""
    policy = daband.LogPolicy(
        context_shape=(5,), n_arms=_N_ARMS, transform=daband.Standardise(), seed=seed
    )
    policy.prepare(market.contexts, market.known_customers)
    policy.observe_target(market.known_customers)
    policy.update(market.contexts, market.arms, market.rewards, propensities=market.propensities)
    rows = np.arange(_PER_WEEK)
    result = []
    with tempfile.TemporaryDirectory() as folder:
        for week, contexts in enumerate(market.weeks):
            daband.export(policy, Path(folder, "policy.daband"), epsilon=_EPSILON)
            deployed = daband.load_deployed(Path(folder, "policy.daband"))
            decision = deployed.decide(contexts, round_number=week * _PER_WEEK)
            expected, rewards = market.reward(week, rows, np.asarray(decision.arm))
            result.append(float(expected.mean()))
            columns = {f"x{index}": column for index, column in enumerate(contexts.T)}
            columns |= {"arm": decision.arm, "reward": rewards, "propensity": decision.propensity}
            log = Path(folder, f"{week}.parquet")
            pl.DataFrame(columns).write_parquet(log)
            daband.learn_log(policy, log)
    return result


def run_linucb(market: Market, seed: int, n_batch: int) -> list[float]:
    """Return the mean expected reward of each week for LinUCB that learns every ``n_batch``
    customers.
    """
    policy = daband.LinUCB(
        context_shape=(5,),
        n_arms=_N_ARMS,
        alpha=_ALPHA,
        source_worth=1.0,
        transform=daband.Standardise(),
        seed=seed,
    )
    policy.prepare(market.contexts, market.known_customers)
    policy.update(market.contexts, market.arms, market.rewards)
    result = []
    for week, contexts in enumerate(market.weeks):
        total = 0.0
        for start in range(0, _PER_WEEK, n_batch):
            rows = np.arange(start, min(start + n_batch, _PER_WEEK))
            arms = policy.select(contexts[rows], "target").arm
            expected, rewards = market.reward(week, rows, arms)
            total += float(expected.sum())
            policy.update(contexts[rows], arms, rewards, domain="target")
        result.append(total / _PER_WEEK)
    return result


def measure(world: str, seed: int) -> dict[str, Any]:
    """Return the mean expected rewards of each policy in one simulated market."""
    market = Market(world, seed)
    return {
        "world": world,
        "seed": seed,
        "LogPolicy": run_log_policy(market, seed),
        "LinUCB": run_linucb(market, seed, _BATCH),
        "LinUCB, weekly": run_linucb(market, seed, _PER_WEEK),
    }


def summarise(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return means over the markets of a world, and LogPolicy's differences from LinUCB."""
    summary: dict[str, dict[str, Any]] = {}
    for world in WORLDS:
        group = [row for row in rows if row["world"] == world]
        if not group:
            continue
        weeks = {name: np.array([row[name] for row in group]) for name in POLICIES}
        weekly_differences = weeks["LogPolicy"] - weeks["LinUCB"]
        differences = weekly_differences.mean(axis=1)
        summary[world] = {
            "markets": len(group),
            "mean": {name: round(float(values.mean()), 4) for name, values in weeks.items()},
            "deviation": {
                name: round(float(values.mean(axis=1).std(ddof=1)), 4)
                for name, values in weeks.items()
            },
            "weeks": {
                name: values.mean(axis=0).round(4).tolist() for name, values in weeks.items()
            },
            "difference": round(float(differences.mean()), 4),
            "deviation of differences": round(float(differences.std(ddof=1)), 4),
            "differences by week": weekly_differences.mean(axis=0).round(4).tolist(),
            "lowest in the last week": round(float(weekly_differences[:, -1].min()), 4),
        }
    return summary


def main() -> None:
    """Simulate all markets, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs=2, default=(40, 50), metavar=("FIRST", "END"))
    parser.add_argument("--worlds", nargs="*", default=list(WORLDS))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no market later")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    jobs = [(world, seed) for seed in range(*arguments.seeds) for world in arguments.worlds]
    measured = commit()
    results = run_jobs(measure, jobs, arguments.processes, arguments.seconds)
    rows = [row for row in results if row is not None]
    record = {
        "commit": measured,
        "seeds": arguments.seeds,
        "summary": summarise(rows),
        "rows": rows,
    }
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
