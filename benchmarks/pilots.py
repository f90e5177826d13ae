"""Replay pilots on real data, and compare them with a 50/50 test and with Thompson sampling.

    python benchmarks/pilots.py --half held-out --out benchmarks/records/pilots.json

A policy learns from the log of one domain and is assessed in the other, as in ``verdicts.py``. For a
table, or a problem in which all rewards are known, the log has arms drawn uniformly. The pilot then
compares it with an arm of today: the source's worst and its middle arm, if the policy differs from
it. A round's reward is drawn from the target: for a log from the rounds with that arm, weighted by
the inverse propensity, so the expectations are exact. Values are rounded to at most 60 numbers.

Targets are as they are, reversed (policy and incumbent exchange their rewards) or shuffled (both
have the same rewards). The pilot, the 50/50 tests and Thompson sampling have the same error and the
same stopping rule. They look once a week for 20 weeks, or daily. Only the pilot also runs with
delayed or missing rewards, and with a change of mix. A decision is ``wrong`` about the mean effect
of its rounds so far, and ``wrong_later`` about all planned rounds.

The planned rounds are twice those that a 50/50 test needs for the assessed advantage, and at least
24,000 (12 weeks of 2,000). Data sets are sorted by name: those with even positions are for
development, the others are held out.

``expected`` costs are those of the plan, which simulates the assessment's advantage. They count
gains as 0, as the cost that is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from machine import commit
from scipy.special import ndtr
from verdicts import list_experiments, load_pair

import daband
from daband.domains import Columns
from daband.logs._controlled_trial import Moments, TrialRule, estimate_effect
from daband.trust._pilot import compute_largest_loss, draw_surprises, make_normal_draw
from daband.trust._pilot_simulation import (
    DEPLOY,
    GO_ON,
    KEEP,
    LIMIT,
    Courses,
    WeekRewards,
    simulate_pilots,
)

DATA = Path(os.environ.get("DABAND_DATA", ""))
N_WEEKS = 20
MAX_LOSS = 0.01
DRIFT = 0.5
#: Squared standard errors after which a 50/50 test that is checked every week usually decides.
_Z_SQUARED = 9.0
#: Smallest and largest number of planned rounds.
_PLANNED_ROUNDS = (24_000, 2_000_000)
#: Maximum number of distinct rewards of an arm.
_MAX_VALUES = 60


class Rewards(NamedTuple):
    """A distribution of rewards."""

    values: np.ndarray
    probabilities: np.ndarray

    @property
    def mean(self) -> float:
        return float(self.values @ self.probabilities)


class Mix(NamedTuple):
    """Contexts of a target: the fraction in which policy and incumbent differ, and rewards."""

    fraction: float
    #: Rewards of policy and incumbent where they differ.
    differing: tuple[Rewards, Rewards]
    #: Their rewards in all rounds.
    all: tuple[Rewards, Rewards]


class Problem(NamedTuple):
    """A policy, an incumbent and a target."""

    name: str
    collection: str
    incumbent: str
    advantage: float
    low: float
    verdict: str
    #: Smallest and largest reward of the source.
    min_reward: float
    mix: Mix
    #: The first and the second half of a pilot whose mix of contexts changes.
    changing: tuple[Mix, Mix]


# Problems.


def compress(rewards: np.ndarray, weights: np.ndarray) -> Rewards:
    """Return a distribution with the same mean and at most 60 values. The tail is kept exactly."""
    values, inverse = np.unique(rewards, return_inverse=True)
    probabilities = np.bincount(inverse, weights) / weights.sum()
    if len(values) > _MAX_VALUES:
        left = np.cumsum(probabilities) - 0.5 * probabilities
        # finer at both ends
        bins = ((0.5 - 0.5 * np.cos(np.pi * left)) * (_MAX_VALUES - 1e-9)).astype(int)
        totals = np.bincount(bins, probabilities, _MAX_VALUES)
        sums = np.bincount(bins, probabilities * values, _MAX_VALUES)
        values, probabilities = sums[totals > 0] / totals[totals > 0], totals[totals > 0]
    return Rewards(values, probabilities / probabilities.sum())


def build_mix(
    rewards_of: Callable[[np.ndarray, np.ndarray], Rewards | None],
    arms: np.ndarray,
    incumbent: int,
    rows: np.ndarray,
) -> Mix | None:
    """Return the mix of target rows (n,) of booleans; None if an arm has too few rewards."""
    incumbents = np.full(len(arms), incumbent)
    differ = rows & (arms != incumbent)
    pools = [
        rewards_of(choices, subset) for subset in (differ, rows) for choices in (arms, incumbents)
    ]
    if any(pool is None for pool in pools):
        return None
    fraction = float(differ.sum() / rows.sum())
    return Mix(fraction, (pools[0], pools[1]), (pools[2], pools[3]))  # type: ignore[arg-type]


def build_problems(
    name: str,
    collection: str,
    pair: Any,
    contexts: np.ndarray,
    rewards_of: Callable[[np.ndarray, np.ndarray], Rewards | None],
) -> list[Problem]:
    """Return a problem for the worst and the middle arm of the source as incumbents."""
    policy = daband.LogPolicy.for_pair(pair, seed=0)
    daband.train(policy, source=pair.source, target=pair.target)
    arms = policy.decide(contexts, "target", rule="greedy").arm
    logged_arms, logged_rewards, propensities = pair.source.read_log(np.arange(len(pair.source)))[
        :3
    ]
    weights = np.equal.outer(logged_arms, np.arange(pair.n_arms)) / propensities[:, None]
    means = (weights.T @ logged_rewards) / np.maximum(weights.sum(axis=0), 1e-12)
    order = np.argsort(means)
    is_high = contexts[:, 0] > np.median(contexts[:, 0])
    problems = []
    for incumbent in dict.fromkeys((int(order[0]), int(order[(len(order) - 1) // 2]))):
        if (arms != incumbent).mean() < 0.02:
            continue
        assessment = daband.assess(
            policy, source=pair.source, target=pair.target, incumbent=incumbent
        )
        mixes = [
            build_mix(rewards_of, arms, incumbent, rows)
            for rows in (np.ones(len(arms), bool), ~is_high, is_high)
        ]
        if mixes[0] is None or assessment.advantage <= 0.0:
            continue
        changing = (mixes[1] or mixes[0], mixes[2] or mixes[0])
        problems.append(
            Problem(
                name,
                collection,
                assessment.incumbent,
                assessment.advantage,
                assessment.low,
                assessment.verdict,
                float(logged_rewards.min()),
                mixes[0],
                changing,
            )
        )
    return problems


def read_experiment(folder: Path, is_reversed: bool) -> list[Problem]:
    pair, truth = load_pair(folder, is_reversed)
    rounds = truth.source.read_rounds(np.arange(len(truth.source)))

    def rewards_of(choices: np.ndarray, rows: np.ndarray) -> Rewards | None:
        rows = rows & (rounds.arms == choices)
        if rows.sum() < 100:
            return None
        return compress(rounds.rewards[rows], 1.0 / rounds.propensities[rows])

    name = f"{folder.name}{', back' if is_reversed else ''}"
    return build_problems(name, folder.parent.name, pair, rounds.contexts, rewards_of)


def read_table(path: Path) -> list[Problem]:
    """Return the problems of a table with labels, or with the rewards of all arms."""
    if path.is_dir():
        frames = [
            pl.read_csv(path / f"{side}.csv.gz", infer_schema_length=None)
            for side in ("source", "target")
        ]
        names = [c.removeprefix("arm_") for c in frames[0].columns if c.startswith("arm_")]
        rewards = [frame.select(f"arm_{name}" for name in names).to_numpy() for frame in frames]
        frames = [frame.drop(f"arm_{name}" for name in names) for frame in frames]
    else:
        table = pl.read_csv(path, infer_schema_length=None, null_values=["NA", ""])
        table = table.with_columns(pl.col("arm").cast(pl.String))
        names = sorted(set(table["arm"]))
        frames = [table.filter(pl.col("domain") == side) for side in ("source", "target")]
        rewards = [
            np.equal.outer(frame["arm"].to_numpy(), np.array(names)).astype(float)
            for frame in frames
        ]
        frames = [frame.drop("arm", "domain") for frame in frames]
    context = [c for c in frames[0].columns if c != "domain"]
    categorical = [c for c in context if not frames[0][c].dtype.is_numeric()]
    columns = Columns(
        context, categorical, arm="chosen_arm", reward="reward_", propensity="propensity_"
    )
    drawn = np.random.default_rng(0).integers(0, len(names), len(frames[0]))
    log = frames[0].with_columns(
        chosen_arm=np.array(names)[drawn],
        reward_=rewards[0][np.arange(len(drawn)), drawn],
        propensity_=pl.lit(1.0 / len(names)),
    )
    pair = daband.domains.from_table(
        source=log, target=frames[1], columns=columns, class_names=names
    )
    assert pair.table is not None
    contexts = np.asarray(pair.table.apply(frames[1]), np.float64)

    def rewards_of(choices: np.ndarray, rows: np.ndarray) -> Rewards | None:
        values = rewards[1][np.arange(len(choices)), choices][rows]
        return compress(values, np.ones(len(values))) if len(values) >= 30 else None

    return build_problems(
        path.name.removesuffix(".csv.gz"), path.parent.name, pair, contexts, rewards_of
    )


def read_problems(half: str) -> list[Problem]:
    """Return the problems of one half of the data sets."""
    tables = sorted((DATA / "natural_tables").glob("*.csv.gz"))
    tables += sorted(path for path in (DATA / "full_rewards").iterdir() if path.is_dir())
    part = 0 if half == "development" else 1
    problems = []
    for folder in list_experiments()[part::2]:
        for is_reversed in (False, True):
            problems += read_experiment(folder, is_reversed)
    for path in tables[part::2]:
        problems += read_table(path)
    return problems


# Replays.


def reverse(mix: Mix) -> Mix:
    return Mix(mix.fraction, mix.differing[::-1], mix.all[::-1])


def shuffle(mix: Mix) -> Mix:
    def merge(pools: tuple[Rewards, Rewards]) -> tuple[Rewards, Rewards]:
        values = np.concatenate([pool.values for pool in pools])
        weights = np.concatenate([0.5 * pool.probabilities for pool in pools])
        both = compress(values, weights)
        return both, both

    return Mix(mix.fraction, merge(mix.differing), merge(mix.all))


TARGETS: dict[str, Callable[[Mix], Mix]] = {
    "as it is": lambda mix: mix,
    "reversed": reverse,
    "shuffled": shuffle,
}
CONDITIONS = ("plain", "daily", "delayed", "missing", "changing mix")
#: Conditions in which all methods run.
COMPARED = ("plain", "daily")
_DAYS = 7


def make_draw(
    mixes: list[Mix], n: float, keep: float, seed: int, course: np.ndarray, *, all_rounds: bool
) -> Callable[[int, np.ndarray], WeekRewards]:
    """Return a function that draws the rewards of a week of n rounds, of which ``keep`` arrive.

    It writes the fractions of the policy to ``course`` (R, weeks).
    """
    rng = np.random.default_rng(seed)

    def draw(week: int, fractions: np.ndarray) -> WeekRewards:
        mix = mixes[week]
        course[:, week] = fractions
        pools = mix.all if all_rounds else mix.differing
        n_rounds = rng.poisson(n if all_rounds else n * mix.fraction, len(fractions))
        n_policy = rng.binomial(n_rounds, fractions)
        counts = np.stack([n_policy, n_rounds - n_policy], axis=1)
        counts = rng.binomial(counts, keep)
        sums, squares = np.zeros((2, len(counts), 2))
        for group, pool in enumerate(pools):
            drawn = rng.multinomial(counts[:, group], pool.probabilities)
            sums[:, group] = drawn @ pool.values
            squares[:, group] = drawn @ pool.values**2
        loss = pools[1].mean - pools[0].mean
        return WeekRewards(
            n_policy.astype(float), counts.astype(float), sums, squares, np.full(len(counts), loss)
        )

    return draw


def choose_half(_: TrialRule, moments: Moments, __: float) -> np.ndarray:
    return np.full(moments.n_policy.shape[0], 0.5)


def choose_thompson(_: TrialRule, moments: Moments, __: float) -> np.ndarray:
    """Return the probability that the policy is better, at least 0.02 and at most 0.98."""
    effect = estimate_effect(moments)
    with np.errstate(invalid="ignore"):
        z = np.where(np.isfinite(effect.error), effect.value / effect.error, 0.0)
    return np.clip(ndtr(z), 0.02, 0.98)


def replay(
    problem: Problem, target: str, condition: str, runs: int, seed: int
) -> list[dict[str, Any]]:
    """Return a row per method."""
    mix = TARGETS[target](problem.mix)
    changing = [TARGETS[target](part) for part in problem.changing]
    looks = N_WEEKS * (_DAYS if condition == "daily" else 1)
    mixes = [mix] * looks
    if condition == "changing mix":
        mixes = [changing[week >= N_WEEKS // 2] for week in range(N_WEEKS)]
    incumbent = mix.all[1]
    variance = float(incumbent.values**2 @ incumbent.probabilities) - incumbent.mean**2
    planned = 2.0 * _Z_SQUARED * 4.0 * variance / problem.advantage**2
    planned = float(np.clip(planned, *_PLANNED_ROUNDS))
    per_look = planned / looks
    advantage = mix.fraction * (mix.differing[0].mean - mix.differing[1].mean)
    if condition == "changing mix":
        advantage = float(
            np.mean([m.fraction * (m.differing[0].mean - m.differing[1].mean) for m in mixes])
        )
    if incumbent.mean <= 0.0:
        return []
    deviation = (problem.advantage - problem.low) / 1.2816
    vague = {"reference_rounds": planned * mix.fraction}
    source = {
        **vague,
        "expected_effect": problem.advantage / mix.fraction,
        "expected_error": deviation / mix.fraction,
    }
    loss = (incumbent.mean - problem.min_reward) / mix.fraction
    largest_loss = compute_largest_loss(source["expected_effect"], source["expected_error"])
    limits = {
        "max_cost": MAX_LOSS * planned * incumbent.mean,
        "worst_loss": (1.0 + DRIFT) * loss,
        "drift": DRIFT * loss,
    }
    source_limits = {**limits}
    for name in ("worst_loss", "drift"):
        source_limits[name] = min(limits[name], largest_loss)
    methods: dict[str, tuple[TrialRule, Any, bool]] = {
        "pilot": (TrialRule(**source, **source_limits), TrialRule.choose_fraction, False),
        "pilot without a source": (
            TrialRule(**vague, **limits),
            TrialRule.choose_fraction,
            False,
        ),
        "50/50 where they differ": (TrialRule(**vague), choose_half, False),
        "50/50": (TrialRule(reference_rounds=planned), choose_half, True),
        "Thompson sampling": (TrialRule(**source), choose_thompson, False),
    }
    effect = problem.advantage / mix.fraction
    draws = draw_surprises(np.random.default_rng(seed), runs)
    differing = mix.differing[1]
    spread = float(np.sqrt(differing.values**2 @ differing.probabilities - differing.mean**2))
    if condition != "plain":
        kept = ["pilot"]
        if condition in COMPARED:
            kept += ["50/50 where they differ", "Thompson sampling"]
        methods = {name: methods[name] for name in kept}
    expected = None
    if target == "as it is":
        simulated = simulate_pilots(
            methods["pilot"][0],
            make_normal_draw(
                np.random.default_rng(seed),
                np.maximum(
                    effect + deviation / mix.fraction * draws, problem.min_reward - incumbent.mean
                ),
                incumbent.mean,
                spread,
                per_look * mix.fraction,
            ),
            n_pilots=runs,
            rounds_per_week=per_look * mix.fraction,
            n_weeks=looks,
            delay=int(condition == "delayed"),
        )
        expected = float(np.maximum(simulated.costs[:, -1], 0.0).mean() / limits["max_cost"])
    weights = np.array([part.fraction for part in mixes])
    effects = np.array([part.differing[0].mean - part.differing[1].mean for part in mixes])
    rows = []
    for method, (rule, choose, all_rounds) in methods.items():
        fractions = np.zeros((runs, looks))
        courses: Courses = simulate_pilots(
            rule,
            make_draw(
                mixes,
                per_look,
                0.7 if condition == "missing" else 1.0,
                seed,
                fractions,
                all_rounds=all_rounds,
            ),
            n_pilots=runs,
            rounds_per_week=per_look * (1.0 if all_rounds else mix.fraction),
            n_weeks=looks,
            delay=int(condition == "delayed"),
            choose_fraction=choose,
        )
        decisions = courses.decisions
        is_right = decisions == DEPLOY if advantage > 0.0 else decisions != DEPLOY
        is_wrong_later = decisions == (KEEP if advantage > 0.0 else DEPLOY)
        # the mean effect of the rounds whose rewards had arrived
        ends = np.maximum(courses.weeks - int(condition == "delayed"), 1)
        is_before = np.arange(looks) < ends[:, None]
        so_far = (is_before * fractions * (1.0 - fractions) * weights) @ effects
        is_wrong = ((decisions == KEEP) & (so_far > 0.0)) | (
            (decisions == DEPLOY) & (so_far <= 0.0)
        )
        weeks = np.where(is_right & (decisions != GO_ON), courses.weeks, looks)
        limit = limits["max_cost"]
        largest_costs = courses.costs.max(axis=1, initial=0.0)
        rows.append(
            {
                "problem": problem.name,
                "collection": problem.collection,
                "incumbent": problem.incumbent,
                "target": target,
                "condition": condition,
                "method": method,
                "fraction": mix.fraction,
                "planned": planned,
                "advantage": advantage,
                "right": float(is_right.mean()),
                "wrong": float(is_wrong.mean()),
                "wrong_later": float(is_wrong_later.mean()),
                "limit_reached": float((decisions == LIMIT).mean()),
                "rounds": float(weeks.mean() * per_look),
                "cost": float(np.maximum(courses.costs[:, -1], 0.0).mean() / limit),
                "expected": expected,
                "largest_cost": float(largest_costs.mean() / limit),
                "broken": float((largest_costs > limit).mean()),
            }
        )
    return rows


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per target and condition, with ratios of rounds to those of other methods."""
    table = pl.DataFrame(rows)
    keys = ["problem", "incumbent", "target", "condition"]
    pilot = table.filter(pl.col("method") == "pilot")
    summary = []
    for (target, condition), part in pilot.group_by("target", "condition", maintain_order=True):
        row: dict[str, Any] = {
            "target": target,
            "condition": condition,
            "problems": len(part),
            "broken": part["broken"].mean(),
            "largest_broken": part["broken"].max(),
            "wrong": part["wrong"].mean(),
            "largest_wrong": part["wrong"].max(),
            "wrong_later": part["wrong_later"].mean(),
            "largest_wrong_later": part["wrong_later"].max(),
            "right": part["right"].mean(),
            "cost": part["cost"].mean(),
            "expected": part["expected"].mean(),
        }
        # where the source helps: the policy is better, and some method can show it
        others = table["method"].unique(maintain_order=True).to_list()[1:]
        for method in others if condition in COMPARED else []:
            is_other = (pl.col("method") == method) & (pl.col("condition") == condition)
            other = table.filter(is_other).select(
                *keys, other="rounds", other_right="right", other_wrong="wrong"
            )
            joined = part.join(other, on=keys)
            if joined.is_empty():
                continue
            row[f"wrong, {method}"] = joined["other_wrong"].mean()
            row[f"right, {method}"] = joined["other_right"].mean()
            if target == "as it is":
                joined = joined.filter(
                    (pl.col("advantage") > 0)
                    & ((pl.col("right") >= 0.5) | (pl.col("other_right") >= 0.5))
                )
            ratios = np.log((joined["rounds"] / joined["other"]).to_numpy())
            row[f"ratio, {method}"] = float(np.exp(ratios.mean()))
            row[f"problems, {method}"] = len(joined)
        summary.append(row)
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--half", choices=("development", "held-out"), default="held-out")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--conditions", nargs="*", default=list(CONDITIONS))
    parser.add_argument("--daily-step", type=int, default=1, help="1 of N problems runs daily")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", help="the commit, if this is not a git checkout")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    problems = read_problems(arguments.half)
    print(f"{len(problems)} problems, {time.perf_counter() - start:.0f} s", flush=True)
    rows: list[dict[str, Any]] = []
    record: dict[str, Any] = {
        "commit": arguments.commit or commit(),
        "half": arguments.half,
        "runs": arguments.runs,
        "max_loss": MAX_LOSS,
        "drift": DRIFT,
        "daily_step": arguments.daily_step,
    }
    for seed, problem in enumerate(problems):
        for target in TARGETS:
            for condition in arguments.conditions:
                if condition == "daily" and seed % arguments.daily_step:
                    continue
                rows += replay(problem, target, condition, arguments.runs, seed)
        record["problems"] = f"{seed + 1} of {len(problems)}"
        record["seconds"] = time.perf_counter() - start
        if rows:
            arguments.out.write_text(
                json.dumps({**record, "summary": summarise(rows), "rows": rows}, indent=1) + "\n"
            )
        print(f"{record['problems']} {record['seconds']:.0f} s", flush=True)
    for row in summarise(rows):
        print(row, flush=True)


if __name__ == "__main__":
    main()
