"""Off-policy estimates: how often intervals hold the truth, and whether the values are those of obp.

    python benchmarks/off_policy.py --out record.json                      # 500 logs of 2,000 rounds, and obp's data
    python benchmarks/off_policy.py --out record.json --studies coverage --logs 100
    python benchmarks/off_policy.py --out part0.json --part 0/4            # a quarter of the problems

The study "obp" needs the package obp (Apache licence 2.0), which ships with a sample of the Open Bandit Dataset; no row
of it is written down, only what obp and daband estimate from it. It also compares the two on a generated log
(``generated_log``), which a test repeats where obp is not installed.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import daband
from daband._arrays import AnyArray, FloatArray
from daband.evaluation._off_policy import ESTIMATORS, compare_estimators
from daband.evaluation._off_policy_estimators import (
    direct_method,
    doubly_robust,
    importance_weights,
    inverse_propensity,
    self_normalised,
    switch_doubly_robust,
)
from daband.linear._reward_model import cross_fitted_rewards

ARMS, FEATURES, ROUNDS, TARGETS, MANY = 5, 6, 2_000, 2_000, 400_000
SMALLEST = 0.05
THRESHOLD = 5.0


@dataclass(frozen=True)
class Problem:
    """Rewards, a logging policy and, where the policy is valued in a target, how its contexts differ."""

    name: str
    nonlinear: bool
    sharpness: float
    """Of the logging policy: at 0 it is even, and with large ones most propensities are the smallest allowed."""
    shift: str = ""


PROBLEMS = (
    Problem("linear rewards", False, 0.7),
    Problem("nonlinear rewards", True, 0.7),
    Problem("nonlinear rewards, sharp log", True, 3.0),
    Problem("linear rewards, normal shift", False, 0.7, "normal"),
    Problem("nonlinear rewards, normal shift", True, 0.7, "normal"),
    Problem("linear rewards, shift of a product", False, 0.7, "product"),
    Problem("nonlinear rewards, shift of a product", True, 0.7, "product"),
    Problem("linear rewards, shift of a wave", False, 0.7, "wave"),
    Problem("nonlinear rewards, shift of a wave", True, 0.7, "wave"),
)
"""A wave's shift is none that the ratio's features, products of two at most, can represent."""

_FIXED = np.random.default_rng(2020)
SLOPES, LOGGING, WAVES = (_FIXED.normal(size=(ARMS, FEATURES)) / np.sqrt(FEATURES) for _ in range(3))
SHIFT, SCALE = np.array([0.4, -0.3, 0.2, 0.0, 0.0, 0.3]), 0.9


def source_contexts(rng: np.random.Generator, n: int) -> AnyArray:
    return rng.normal(size=(n, FEATURES))


def target_contexts(rng: np.random.Generator, n: int, shift: str) -> AnyArray:
    """Contexts of the target, or source contexts of which some are kept with a probability of their own.

    With "product" those whose first two features agree in sign are more frequent, with "wave" those whose first
    feature is near 0 or 2.
    """
    if shift == "normal":
        moved: FloatArray = rng.normal(size=(n, FEATURES)) * SCALE + SHIFT
        return moved
    found = rng.normal(size=(3 * n, FEATURES))
    score = 2 * found[:, 0] * found[:, 1] if shift == "product" else 2 * np.cos(3 * found[:, 0])
    kept = rng.random(3 * n) < 1 / (1 + np.exp(-score))
    some: FloatArray = found[kept][:n]
    return some


def expected_rewards(contexts: AnyArray, problem: Problem) -> AnyArray:
    scores = 0.2 * contexts @ SLOPES.T
    if problem.nonlinear:
        scores = 0.5 * scores + 0.25 * np.cos(3 * contexts @ WAVES.T)
    clipped: FloatArray = np.clip(0.5 + scores, 0.05, 0.95)
    return clipped


def propensities(contexts: AnyArray, problem: Problem) -> AnyArray:
    raised = np.exp(2 * problem.sharpness * contexts @ LOGGING.T)
    shares: FloatArray = SMALLEST + (1 - ARMS * SMALLEST) * raised / raised.sum(axis=1, keepdims=True)
    return shares


def draw_log(rng: np.random.Generator, problem: Problem, n: int) -> tuple[AnyArray, AnyArray, AnyArray, AnyArray]:
    """Contexts, arms, rewards and propensities of n rounds."""
    contexts = source_contexts(rng, n)
    shares = propensities(contexts, problem)
    arms = (rng.random(n)[:, None] > shares.cumsum(axis=1)).sum(axis=1).clip(max=ARMS - 1)
    rewards = (rng.random(n) < expected_rewards(contexts, problem)[np.arange(n), arms]).astype(np.float64)
    return contexts, arms, rewards, shares[np.arange(n), arms]


def trained_policy(problem: Problem) -> daband.LinUCB:
    """The policy to value: it has learned from a log of its own, and explores a little."""
    policy = daband.LinUCB(context_shape=(FEATURES,), n_arms=ARMS, epsilon=0.1, seed=1)
    contexts, arms, rewards, _ = draw_log(np.random.default_rng(7), problem, 1_000)
    policy.update(contexts, arms, rewards)
    return policy


def true_value(policy: daband.LinUCB, problem: Problem) -> float:
    rng = np.random.default_rng(8)
    contexts = target_contexts(rng, MANY, problem.shift) if problem.shift else source_contexts(rng, MANY)
    return float((policy.probabilities(contexts) * expected_rewards(contexts, problem)).sum(axis=1).mean())


def coverage(problem: Problem, logs: int) -> dict[str, Any]:
    """Every estimator on ``logs`` independent logs."""
    policy = trained_policy(problem)
    truth = true_value(policy, problem)
    found: dict[str, list[daband.LogEstimate]] = {name: [] for name in ESTIMATORS}
    for seed in range(logs):
        rng = np.random.default_rng([seed, 9])
        log = draw_log(rng, problem, ROUNDS)
        target = target_contexts(rng, TARGETS, problem.shift) if problem.shift else None
        for name, estimate in compare_estimators(policy, log, target=target).items():
            found[name].append(estimate)
    rows = {}
    for name, estimates in found.items():
        errors = np.array([one.value for one in estimates]) - truth
        rows[name] = {
            "coverage": float(np.mean([one.low <= truth <= one.high for one in estimates])),
            "bias": float(errors.mean()),
            "rmse": float(np.sqrt((errors**2).mean())),
            "mean_error": float(np.mean([one.error for one in estimates])),
            "effective_sample_size": float(np.mean([one.effective_sample_size for one in estimates])),
            "warned": float(np.mean([bool(one.warnings) for one in estimates])),
        }
    return {"problem": problem.name, "shift": problem.shift, "value": truth, "logs": logs, "estimators": rows}


def generated_log(n: int = 400) -> dict[str, AnyArray]:
    """A log made of whole numbers and divisions alone, so that every machine makes the same one."""
    numbers = np.arange(n * ARMS, dtype=np.int64).reshape(n, ARMS)
    odd = (numbers * 7919 + 104_729) % 97 + 1
    even = (numbers * 6_007 + 3) % 89 + 1
    return {
        "rewards": ((np.arange(n) * 31 % 17) / 16.0),
        "arms": np.arange(n) * 13 % ARMS,
        "propensities": (np.arange(n) * 29 % 19 + 1) / 20.0,
        "probabilities": odd / odd.sum(axis=1, keepdims=True),
        "predicted": even / 90.0,
    }


def our_values(log: dict[str, AnyArray]) -> dict[str, float]:
    """What daband's estimators say, of the arrays of ``generated_log``."""
    rows = np.arange(len(log["arms"]))
    weights = importance_weights(log["probabilities"], log["arms"], log["propensities"])
    direct = (log["probabilities"] * log["predicted"]).sum(axis=1)
    own = log["predicted"][rows, log["arms"]]
    return {
        "dm": direct_method(direct).value,
        "ips": inverse_propensity(log["rewards"], weights).value,
        "snips": self_normalised(log["rewards"], weights).value,
        "dr": doubly_robust(log["rewards"], weights, own, direct).value,
        "switch-dr": switch_doubly_robust(log["rewards"], weights, own, direct, threshold=THRESHOLD).value,
    }


def obp_values(log: dict[str, AnyArray]) -> dict[str, float]:
    """What obp's estimators say of the same."""
    from obp import ope

    arrays = {
        "reward": log["rewards"],
        "action": log["arms"],
        "pscore": log["propensities"],
        "action_dist": log["probabilities"][:, :, None],
        "estimated_rewards_by_reg_model": log["predicted"][:, :, None],
        "position": np.zeros(len(log["arms"]), np.int64),
    }
    estimators = {
        "dm": ope.DirectMethod(),
        "ips": ope.InverseProbabilityWeighting(),
        "snips": ope.SelfNormalizedInverseProbabilityWeighting(),
        "dr": ope.DoublyRobust(),
        "switch-dr": ope.SwitchDoublyRobust(tau=THRESHOLD),
    }
    return {name: float(one.estimate_policy_value(**arrays)) for name, one in estimators.items()}


def open_bandit_log(behaviour: str, campaign: str) -> dict[str, AnyArray]:
    """The sample in obp of the Open Bandit Dataset: a LinUCB that learned its first half is valued on the second."""
    import obp
    import polars as pl

    frame = pl.read_csv(Path(obp.__file__).parent / "dataset" / "obd" / behaviour / campaign / f"{campaign}.csv")
    features = frame.select(pl.selectors.starts_with("user_feature")).to_dummies().to_numpy().astype(np.float64)
    contexts = np.concatenate([features, np.ones((len(frame), 1))], axis=1)
    arms, rewards = frame["item_id"].to_numpy().astype(np.int64), frame["click"].to_numpy().astype(np.float64)
    chances = frame["propensity_score"].to_numpy().astype(np.float64)
    n_arms, half = int(arms.max()) + 1, len(arms) // 2
    policy = daband.LinUCB(context_shape=contexts.shape[1:], n_arms=n_arms, epsilon=0.2, explore="greedy")
    policy.update(contexts[:half], arms[:half], rewards[:half])
    rest = slice(half, None)
    return {
        "rewards": rewards[rest],
        "arms": arms[rest],
        "propensities": chances[rest],
        "probabilities": policy.probabilities(contexts[rest]),
        "predicted": cross_fitted_rewards(contexts[rest], arms[rest], rewards[rest], n_arms=n_arms),
    }


def against_obp() -> list[dict[str, Any]]:
    """Both libraries' values on obp's sample and on the generated log."""
    import obp

    logs: dict[str, Callable[[], dict[str, AnyArray]]] = {"generated": generated_log}
    for behaviour in ("random", "bts"):
        for campaign in ("all", "men", "women"):
            logs[f"{behaviour}/{campaign}"] = lambda b=behaviour, c=campaign: open_bandit_log(b, c)  # type: ignore[misc]
    records = []
    for name, make in logs.items():
        log = make()
        records.append(
            {
                "log": name,
                "rounds": len(log["arms"]),
                "arms": log["probabilities"].shape[1],
                "threshold": THRESHOLD,
                "obp_version": obp.__version__,
                "obp": obp_values(log),
                "daband": our_values(log),
            }
        )
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--studies", default="obp,coverage")
    parser.add_argument("--domains", default="source,target", help="where the policy is valued")
    parser.add_argument("--logs", type=int, default=500)
    parser.add_argument("--part", default="0/1", help="I/N: of N processes the I-th")
    parser.add_argument("--commit", default="")
    parser.add_argument("--join", nargs="+", type=Path, help="write the studies of these files to --out, and stop")
    given = parser.parse_args()
    if given.join:
        joined: dict[str, Any] = {}
        for path in given.join:
            more = json.loads(path.read_text())
            lists = {name: [*joined.get(name, []), *more.get(name, [])] for name in ("runs", "obp", "coverage")}
            joined = {**more, **joined, **lists}
        given.out.write_text(json.dumps(joined, indent=1) + "\n")
        return
    given_names = [Path(one).name if one.startswith("/") else one for one in sys.argv[1:]]  # without its folder
    command = shlex.join(["python", "benchmarks/off_policy.py", *given_names])
    part, parts = (int(number) for number in given.part.split("/"))
    run = {
        "command": command,
        "commit": given.commit,
        "machine": platform.machine(),
        "numpy": np.__version__,
    }
    document: dict[str, Any] = {"runs": [run], "rounds": ROUNDS, "smallest_propensity": SMALLEST}
    wanted = [problem for problem in PROBLEMS if ("target" if problem.shift else "source") in given.domains.split(",")]
    if "obp" in given.studies and part == 0:
        document["obp"] = against_obp()
    if "coverage" in given.studies:
        document["coverage"] = []
        for problem in wanted[part::parts]:
            document["coverage"].append(coverage(problem, given.logs))
            given.out.write_text(json.dumps(document, indent=1) + "\n")
    given.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
