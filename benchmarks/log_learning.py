"""Learning from a log with and without its propensities: which ``propensity_weighting`` leaves the better policy?

    python benchmarks/log_learning.py --out record.json
    python benchmarks/log_learning.py --out record.json --policies nlinucb --rounds 4000 --seeds 5
    python benchmarks/log_learning.py --out part0.json --part 0/4          # a quarter of the work, for four processes

A log of Bernoulli rewards is simulated, a policy learns from it, and its greedy choices are valued by the expected
rewards of fresh contexts. The rewards are linear in the context, or not (then linear policies are misspecified); the
logging policy is even, or prefers good arms, bad arms, or arms by the context alone. Numpy and torch are enough.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np

import daband
from daband._arrays import AnyArray, FloatArray
from daband.policies._policy import Policy

ARMS, FEATURES, FRESH = 5, 6, 20_000
LOGS = ("even", "good arms", "bad arms", "by context")
REWARDS = ("linear", "nonlinear")
POLICIES = ("constant", "linucb", "nlinucb")
EPISODE = 128


def expected_rewards(contexts: AnyArray, kind: str, seed: int) -> AnyArray:
    """The mean reward of every arm, (n, K)."""
    rng = np.random.default_rng([seed, 1])
    slopes = rng.normal(size=(ARMS, FEATURES)) / np.sqrt(FEATURES)
    bases = 0.1 * rng.normal(size=ARMS)
    if kind == "linear":
        scores = contexts @ slopes.T
    else:
        waves, phases = rng.normal(size=(ARMS, FEATURES)), rng.uniform(0, 2 * np.pi, ARMS)
        scores = 0.5 * contexts @ slopes.T + 1.5 * np.cos(contexts @ waves.T / np.sqrt(2) + phases)
    clipped: FloatArray = np.clip(0.5 + bases + 0.15 * scores, 0.02, 0.98)
    return clipped


def propensities(contexts: AnyArray, expected: AnyArray, kind: str, seed: int) -> AnyArray:
    """The logging policy's probability of every arm, (n, K): at least .01."""
    scores = {
        "even": np.zeros_like(expected),
        "good arms": 12 * expected,
        "bad arms": -12 * expected,
        "by context": 1.5 * contexts @ np.random.default_rng([seed, 2]).normal(size=(ARMS, FEATURES)).T,
    }[kind]
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares: FloatArray = 0.01 + (1 - 0.01 * ARMS) * raised / raised.sum(axis=1, keepdims=True)
    return shares


def learned(policy: str, weighting: str, log: tuple[AnyArray, ...], seed: int, steps: int) -> Policy:
    """A policy that has learned the log; a neural one takes as many gradient steps after every episode."""
    sizes: dict[str, Any] = {"context_shape": (FEATURES,), "n_arms": ARMS, "seed": seed}
    contexts, arms, rewards, chances = log
    made: Policy
    if policy == "nlinucb":
        made = daband.NeuralLinUCB(**sizes, recipe="small", device="cpu")
    else:
        made = daband.LinUCB(**sizes) if policy == "linucb" else daband.Constant(**sizes)
    size = EPISODE if policy == "nlinucb" else len(arms)
    for start in range(0, len(arms), size):
        part = slice(start, start + size)
        made.update(contexts[part], arms[part], rewards[part], propensity=chances[part], propensity_weighting=weighting)
        made.adapt(steps)
    return made


def study(policy: str, reward: str, kind: str, seed: int, *, rounds: int, steps: int) -> dict[str, Any]:
    """What the policy's greedy choices are worth with each weighting that it offers."""
    rng = np.random.default_rng([seed, 3])

    def with_one(n: int) -> AnyArray:
        contexts = rng.normal(size=(n, FEATURES))
        contexts[:, 0] = 1.0  # an intercept
        return contexts

    contexts, fresh = with_one(rounds), with_one(FRESH)
    expected = expected_rewards(contexts, reward, seed)
    shares = propensities(contexts, expected, kind, seed)
    rows = np.arange(rounds)
    arms = (rng.random(rounds)[:, None] > shares.cumsum(axis=1)).sum(axis=1).clip(max=ARMS - 1)
    paid = (rng.random(rounds) < expected[rows, arms]).astype(np.float64)
    fresh_expected = expected_rewards(fresh, reward, seed)
    values = {}
    for weighting in ("none", "flattened", "importance", "doubly_robust"):
        if policy == "nlinucb" and weighting == "doubly_robust":
            continue  # which it does not offer
        made = learned(policy, weighting, (contexts, arms, paid, shares[rows, arms]), seed, steps)
        chosen = made.decide(fresh, rule="greedy").arm
        values[weighting] = round(float(fresh_expected[np.arange(FRESH), chosen].mean()), 6)
    return {
        "policy": policy, "rewards": reward, "log": kind, "rounds": rounds, "seed": seed,
        "best": round(float(fresh_expected.max(axis=1).mean()), 6), "even": round(float(fresh_expected.mean()), 6),
        "values": values,
    }  # fmt: skip


def write(path: Path, runs: list[dict[str, Any]], records: list[dict[str, Any]]) -> None:
    """A line per record."""
    lines = ",\n".join(json.dumps(record) for record in records)
    path.write_text(f'{{"runs": {json.dumps(runs, indent=1)},\n"records": [\n{lines}\n]}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--logs", default=",".join(LOGS))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rounds", default="1000,4000,20000", help="of the logs, one or more")
    parser.add_argument("--steps", type=int, default=8, help="gradient steps after an episode")
    parser.add_argument("--part", default="0/1", help="I/N: of N processes the I-th")
    parser.add_argument("--commit", default="")
    parser.add_argument("--join", nargs="+", type=Path, help="write the records of these files to --out, and stop")
    given = parser.parse_args()
    if given.join:
        parts_of_it = [json.loads(path.read_text()) for path in given.join]
        runs, found = ([one for some in parts_of_it for one in some[name]] for name in ("runs", "records"))
        write(given.out, runs, found)
        return
    given_names = [Path(one).name if one.startswith("/") else one for one in sys.argv[1:]]  # without its folder
    command = shlex.join(["python", "benchmarks/log_learning.py", *given_names])
    part, parts = (int(number) for number in given.part.split("/"))
    records: list[dict[str, Any]] = []
    work = [
        (policy, reward, kind, rounds, seed)
        for seed in range(given.seeds)
        for policy in given.policies.split(",")
        for reward in REWARDS
        for kind in given.logs.split(",")
        for rounds in map(int, given.rounds.split(","))
    ]
    for number, (policy, reward, kind, rounds, seed) in enumerate(work):
        if number % parts != part:
            continue
        records.append(study(policy, reward, kind, seed, rounds=rounds, steps=given.steps))
        run = {
            "command": command, "commit": given.commit, "machine": platform.machine(), "numpy": np.__version__,
            "arms": ARMS, "features": FEATURES,
        }  # fmt: skip
        write(given.out, [run], records)


if __name__ == "__main__":
    main()
