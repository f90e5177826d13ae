"""Does the interval of ``daband.audit`` hold, and is it narrower than Wilson's from as many evenly drawn rewards?

    python benchmarks/audit.py policies --out DIR                              # train, and keep what they predict
    python benchmarks/audit.py simulate --policies DIR --out benchmarks/records/audit.json

The first takes some 30 minutes on a core. It keeps, for every target context, the predicted rewards, the arm, and what
the arm pays, which the audits then draw from. ``--commit`` names the commit where there is no git directory.

A simulated audit is that of the library: the plan, then the interval from the answers. The interval is held against the
mean reward over the target's contexts; a second time against that of the domain, where each simulation draws the
target's contexts anew, with replacement. ``rivals`` are intervals of the literature, from as many rewards.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from daband._arrays import FloatArray
from daband.trust._audit import certainty
from daband.trust._audit_plan import Plan, plan_draws, plan_strata
from daband.trust._confidence_intervals import Counts, score_limits

BUDGETS = (100, 200)
MOST_CONTEXTS = 5000
"""Of a larger target the first so many are what is audited: plans take their time to sort."""
Z = 1.959963984540054
EPISODE = 64

Recorded = tuple[str, str, str, int]
"""Data set, pair, method, and after how many episodes."""


def main() -> None:
    """Train policies, or simulate audits of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("policies")
    train.add_argument("--out", type=Path, required=True)
    train.add_argument("--only", default="", help="a data set")
    run = commands.add_parser("simulate")
    run.add_argument("--policies", type=Path, required=True)
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--only", default="", help="a data set; records of the others in --out are kept")
    run.add_argument("--simulations", type=int, default=500)
    run.add_argument("--commit", default="")
    options = parser.parse_args()
    if options.command == "policies":
        options.out.mkdir(parents=True, exist_ok=True)
        train_policies(options.out, options.only)
        return
    found = sorted(options.policies.glob(f"{options.only}*.npz"))
    if not found:
        sys.exit(f"no policies in {options.policies}")
    begun = time.perf_counter()
    records: list[dict[str, Any]] = []
    if options.only and options.out.is_file():
        known = json.loads(options.out.read_text())["records"]
        records = [record for record in known if record["data"] != options.only]
    for path in found:
        for budget in BUDGETS:
            records.append(simulated(path, budget, options.simulations))
            print(f"{path.stem} {budget}: {records[-1]['coverage']:.3f} {records[-1]['width_ratio']:.3f}", flush=True)
    content = {
        "command": f"python benchmarks/audit.py simulate --simulations {options.simulations}",
        "commit": options.commit or _commit(),
        "machine": f"{platform.machine()}, {platform.system()}, numpy {np.__version__}",
        "seconds": round(time.perf_counter() - begun),
        "simulations": options.simulations,
        "records": records,
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n")


def simulated(path: Path, budget: int, simulations: int) -> dict[str, Any]:
    """Audits of one policy: how often the interval holds, and how wide it is beside Wilson's and others."""
    with np.load(path) as kept:
        mean, arm, paid = (kept[name][:MOST_CONTEXTS] for name in ("mean", "arm", "reward"))
        recipe_hash = str(kept["recipe_hash"]) if "recipe_hash" in kept else None
    predicted = certainty(mean.astype(np.float64), arm)
    truth, n = float(paid.mean()), len(paid)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ("anytime", *RIVALS)}
    samples: dict[str, list[tuple[FloatArray, FloatArray]]] = {"audit": [], "domain": [], EVEN: []}
    for seed in range(simulations):
        generator = np.random.default_rng([seed, budget])
        samples["audit"].append(_counts(plan_strata(predicted, budget=budget, seed=seed), paid))
        again = generator.integers(n, size=n)
        samples["domain"].append(_counts(plan_strata(predicted[again], budget=budget, seed=seed), paid[again]))
        samples[EVEN].append(_counts(even_strata(predicted, budget, generator), paid))
        if seed < simulations // 5 or seed < 5:  # these take longest
            plan = plan_draws(predicted, budget=budget, seed=seed)
            own = plan.interval(paid[plan.ids], confidence=0.95)
            found["anytime"].append((own.low, own.high))
        for name, rival in RIVALS.items():
            found[name].append(rival(predicted, paid, budget, generator))
    found |= {name: _limits(own, n) for name, own in samples.items()}
    found[WALD] = wald(samples["audit"])
    limits = {name: np.array(own) for name, own in found.items()}
    holds = {name: float(((own[:, 0] <= truth) & (truth <= own[:, 1])).mean()) for name, own in limits.items()}
    widths = {name: float((own[:, 1] - own[:, 0]).mean()) for name, own in limits.items()}
    ratios = {name: own / widths["Wilson, even draw"] for name, own in widths.items()}
    data, pair, method, episodes = described(path.stem)
    return {
        "data": data, "pair": pair, "method": method, "episodes": episodes, "budget": budget,
        "recipe_hash": recipe_hash,
        "contexts": n, "accuracy": truth, "predicted": float(predicted.mean()),
        "coverage": holds["audit"], "coverage_domain": holds["domain"],
        "width": widths["audit"], "wilson_width": widths["Wilson, even draw"],
        "width_ratio": ratios["audit"], "width_ratio_domain": ratios["domain"],
        "anytime_coverage": holds["anytime"], "anytime_ratio": ratios["anytime"],
        "rivals": {name: {"coverage": holds[name], "width_ratio": ratios[name]} for name in (*RIVALS, EVEN, WALD)},
    }  # fmt: skip


def _counts(plan: Plan, paid: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Zeros and ones among the answers of each stratum, (H, 2), and the strata's shares, (H,)."""
    assert plan.strata is not None
    assert plan.shares is not None
    drawn, n_strata = paid[plan.ids], len(plan.shares)
    rows = [np.bincount(plan.strata, weights=drawn == value, minlength=n_strata) for value in (0, 1)]
    return np.stack(rows, axis=1), plan.shares


def _limits(samples: list[tuple[FloatArray, FloatArray]], n_contexts: int) -> list[tuple[float, float]]:
    """The interval of ``Plan.interval`` for rewards 0 and 1, of all simulations at once."""
    counts, shares = (np.stack(own) for own in zip(*samples, strict=True))
    values = np.broadcast_to([0.0, 1.0], counts.shape)
    low, high = score_limits(Counts(values, counts), shares, n_contexts=n_contexts)
    return list(zip(low.tolist(), high.tolist(), strict=True))


# What else an interval could be: predictions (N,), rewards (N,), budget, generator -> limits.


def wilson(_: FloatArray, paid: FloatArray, budget: int, generator: np.random.Generator) -> tuple[float, float]:
    """Wilson's interval from an even draw without replacement."""
    drawn = generator.permutation(len(paid))[:budget]
    share, square = float(paid[drawn].mean()), Z * Z / budget
    centre = (share + square / 2) / (1 + square)
    half = float(np.sqrt(square * share * (1 - share) + square * square / 4)) / (1 + square)
    return centre - half, centre + half


def prediction_powered(
    predicted: FloatArray, paid: FloatArray, budget: int, generator: np.random.Generator
) -> tuple[float, float]:
    """PPI++ (Angelopoulos, Duchi and Zrnic, 2023): an even draw, predictions as control variate, a normal interval."""
    drawn = generator.permutation(len(paid))[:budget]
    spread = predicted[drawn].var()
    slope = 0.0 if spread == 0 else float(np.cov(paid[drawn], predicted[drawn], ddof=0)[0, 1] / spread)
    slope = min(max(slope / (1.0 + budget / len(paid)), 0.0), 1.0)
    rest = paid[drawn] - slope * predicted[drawn]
    value = slope * predicted.mean() + rest.mean()
    half = Z * np.sqrt(rest.var(ddof=1) / budget + slope**2 * predicted.var() / len(paid))
    return float(value - half), float(value + half)


def active(predicted: FloatArray, paid: FloatArray, budget: int, generator: np.random.Generator) -> tuple[float, float]:
    """Active inference (Zrnic and Candes, 2024): contexts asked with their own probability, weighted by its inverse."""
    deviation = np.maximum(np.sqrt(predicted * (1.0 - predicted)), np.sqrt(2.0 / budget))
    probability = np.minimum(budget / len(paid) * (0.5 + 0.5 * deviation / deviation.mean()), 1.0)
    asked = generator.random(len(paid)) < probability
    drawn = predicted + np.where(asked, (paid - predicted) / probability, 0.0)
    half = Z * drawn.std(ddof=1) / np.sqrt(len(paid))
    return float(drawn.mean() - half), float(drawn.mean() + half)


def wald(samples: list[tuple[FloatArray, FloatArray]]) -> list[tuple[float, float]]:
    """The same strata and answers as the audit's, with the textbook's normal interval."""
    counts, shares = (np.stack(own) for own in zip(*samples, strict=True))
    sizes = counts.sum(axis=2)
    means = counts[:, :, 1] / sizes
    value = (shares * means).sum(axis=1)
    half = Z * np.sqrt((shares**2 * means * (1 - means) / np.maximum(sizes - 1, 1)).sum(axis=1))
    return list(zip((value - half).tolist(), (value + half).tolist(), strict=True))


def even_strata(predicted: FloatArray, budget: int, generator: np.random.Generator) -> Plan:
    """Strata of equal size, for the audit's interval: what remains where predictions do not guide the draw."""
    ranks = np.empty(len(predicted))
    ranks[np.lexsort((generator.random(len(predicted)), predicted))] = np.arange(len(predicted))
    stratum = (ranks * 10 // len(predicted)).astype(np.int64)
    drawn = [generator.permutation(np.flatnonzero(stratum == row))[: budget // 10] for row in range(10)]
    ids = np.concatenate(drawn)
    return Plan(ids=ids, n_contexts=len(stratum), strata=stratum[ids], shares=np.bincount(stratum) / len(stratum))


EVEN, WALD = "strata of equal size, score", "the audit's strata, Wald"
RIVALS: dict[str, Callable[[FloatArray, FloatArray, int, np.random.Generator], tuple[float, float]]] = {
    "Wilson, even draw": wilson,
    "prediction-powered, even draw": prediction_powered,
    "active inference": active,
}


# The policies.


def train_policies(out: Path, only: str) -> None:
    """Policies good and bad, each trained once; seed 0."""
    import daband

    warnings.simplefilter("ignore")
    if only in ("", "made-up"):
        make_up(out)
    kinds: dict[str, Any] = {"linucb": daband.LinUCB, "nlinucb": daband.NeuralLinUCB, "daband": daband.DABand}
    for data, names, options, methods in plan_of_training():
        for name in names if only in ("", data) else ():
            pair = daband.domains.load(data if name == "all" else f"{data}/{name}", **options)
            for method, (settings, marks) in methods.items():
                policy = kinds[method].for_pair(pair, seed=0, **settings)
                train_one(policy, pair, marks, out / f"{data}_{name}_{method}")


def make_up(out: Path) -> None:
    """Policies that are nearly always right, with predictions that are right on average; no data set here has such."""
    for percent in (95, 98, 99):
        generator = np.random.default_rng(percent)
        fail = 1.0 - percent / 100
        reward = 1.0 - generator.beta(0.5, 0.5 / fail * (1.0 - fail), size=MOST_CONTEXTS)
        paid = (generator.random(MOST_CONTEXTS) < reward).astype(np.float64)
        mean, arm = np.stack([reward, 1.0 - reward], axis=1), np.zeros(MOST_CONTEXTS, np.int64)
        np.savez_compressed(out / f"made-up_{percent}_calibrated-0.npz", mean=mean, arm=arm, reward=paid)


def train_one(policy: Any, pair: Any, marks: tuple[int, ...], stem: Path) -> None:
    """Train a policy, and keep what it predicts after these episodes; 0 is after the last that the source gives."""
    import daband

    last = pair.source.rounds_available // EPISODE if 0 in marks else max(marks)

    def keep(record: dict[str, Any]) -> None:
        episode = int(record["episode"]) + 1
        if episode in (mark or last for mark in marks):
            kept = predicted_of(policy, pair)
            if policy.learns_by_gradients:
                kept["recipe_hash"] = np.array(policy.recipe.fingerprint())
            np.savez_compressed(f"{stem}-{episode}.npz", **kept)
            print(f"{stem.name}-{episode}: {kept['reward'].mean():.3f}", flush=True)

    daband.train(policy, source=pair.source, target=pair.target, episodes=last, episode_length=EPISODE, progress=keep)


def plan_of_training() -> Iterator[tuple[str, tuple[str, ...], dict[str, Any], dict[str, Any]]]:
    """Data set, pairs, options, and by method its settings and after which episodes to keep it; 0 is after the last."""
    small = {"recipe": "small"}
    both = {"linucb": ({}, (8, 0)), "daband": (small, (0,))}
    yield "warfarin", ("white-asian", "asian-white", "white-black"), {"passes": 2}, both
    both = {"linucb": ({}, (10, 0)), "daband": (small, (20, 0))}
    yield "amazon", ("books-dvd", "elec-kitchen", "kitchen-elec", "dvd-elec"), {"passes": 3}, both
    networks = {"nlinucb": (small, (15, 40)), "daband": (small, (20, 40, 60, 80, 100, 140))}
    yield "digit", ("all",), {"form": "embedded"}, networks


def predicted_of(policy: Any, pair: Any) -> dict[str, Any]:
    """Predicted rewards (N, K), arms (N,) and their rewards (N,) on the target's contexts."""
    domain = pair.target_labelled
    means, arms = [], []
    for start in range(0, len(domain), 1024):
        batch = domain.read(np.arange(start, min(start + 1024, len(domain))))
        decision = policy.decide(batch, "target", rule="ucb", round_offset=start)
        means.append(decision.mean.astype(np.float32))
        arms.append(decision.arm)
    arm = np.concatenate(arms)
    rewards = domain.read_rewards(np.arange(len(domain)))[0]
    return {"mean": np.concatenate(means), "arm": arm, "reward": rewards[np.arange(len(arm)), arm]}


def described(stem: str) -> Recorded:
    """What the name of a kept policy says."""
    data, pair, rest = stem.split("_")
    method, episodes = rest.rsplit("-", 1)
    return data, pair, method, int(episodes)


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
