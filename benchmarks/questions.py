"""Measure choices and intervals from target rewards, on stored predictions, and compare with two
other methods.

    python benchmarks/predictions.py --sets natural_tables more_tables amazon office_caltech warfarin --out predictions
    python benchmarks/questions.py --predictions predictions --record benchmarks/records/questions.json

Constants of ``daband.trust._questions`` were chosen on the development half: within each kind,
every other data set by name. *Uniform* draws contexts uniformly and one of the proposed arms, and
takes the largest estimate. *CODA* (Kay et al., ICCV 2025) asks for the best arm of a context, which
is more informative than a reward, and needs rewards of 0 and 1.

Verdicts are those of ``choose`` after 50 rewards: in the target as it is, in one whose contexts
have the rewards of other contexts (*unrelated*), and in one whose rewards are reversed (*flipped*).
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from machine import commit
from scipy.special import betainc

from daband.linear._reward_moments import RewardMoments
from daband.trust._assessment import VERDICT_CONFIDENCE, Assessment
from daband.trust._questions import Interval, Questions, summarise_rewards

BUDGETS = (10, 25, 50, 100, 200)
N_DRAWS = 10
N_CODA_DRAWS = 2
CODA_BUDGETS = (10, 25, 50, 100)
_N_CODA_CONTEXTS = 100
"""Number of contexts that CODA compares before each question."""
_GRID = np.linspace(1e-6, 1 - 1e-6, 128)


class StoredChoices(NamedTuple):
    """The arms and rewards of the C distinct candidates and of the incumbent, for L contexts of one
    data set.
    """

    name: str
    default: int
    means: Any  # predicted target rewards, (C, L, K)
    arms: Any  # target arms, (C + 1, L); the last are the incumbent's
    rewards: Any  # target rewards, (L, K)
    source_values: Any  # mean source rewards of the candidates, (C,)
    deviation: float  # standard deviation of source rewards
    skewness: float  # skewness of source rewards

    @classmethod
    def load(cls, path: Path) -> StoredChoices:
        """Read a file that ``predictions.py`` wrote."""
        stored = np.load(path)
        candidates = _find_distinct(stored["target_means"])
        means = stored["target_means"][candidates].astype(float)
        rewards = stored["target_rewards"].astype(float)
        source_rewards = stored["source_rewards"].astype(float)
        source_arms = stored["source_means"][candidates].argmax(axis=2)
        chosen_rewards = source_rewards[np.arange(len(source_rewards)), source_arms]
        incumbent_arms = np.full((1, len(rewards)), source_rewards.mean(axis=0).argmax())
        arms = np.concatenate([means.argmax(axis=2), incumbent_arms])
        name = path.stem.rpartition("__")[0]
        default = candidates.index(int(stored["default"]))
        source_values = chosen_rewards.mean(axis=1)
        moments = RewardMoments(standardise=True)
        moments.add(chosen_rewards.ravel())
        return cls(name, default, means, arms, rewards, source_values, *summarise_rewards(moments))

    def ask(
        self, rewards: Any, budget: int, draw: int, confidence: float = 0.95
    ) -> tuple[int, Interval]:
        """Return the candidate that is chosen after some rewards, and the interval of its
        advantage.
        """
        questions = Questions(
            self.arms,
            self.means.mean(axis=0),
            reward_deviation=self.deviation,
            reward_skewness=self.skewness,
            seed=draw,
        )
        evidence = questions.compute_evidence(
            {asked: rewards[asked] for asked in questions.draw_first(budget)}
        )
        chosen = evidence.choose_candidate(self.default, self.source_values)
        intervals = evidence.compute_intervals(
            len(self.means), confidence=confidence, budget=budget
        )
        return chosen, intervals[chosen]


def measure_choices(path: Path) -> list[dict[str, Any]]:
    """Return a row per way of asking, budget and draw for one data set."""
    stored = StoredChoices.load(path)
    rewards, arms, reward_range = stored.rewards, stored.arms, float(np.ptp(stored.rewards)) or 1.0
    values = rewards[np.arange(len(rewards)), arms].mean(axis=1)
    losses = ((values[:-1].max() - values) / reward_range).tolist()
    common_fields = {"set": stored.name, "default": losses[stored.default]}
    rows = []
    for draw, budget in product(range(N_DRAWS), BUDGETS):
        chosen, interval = stored.ask(rewards, budget, draw)
        row = {**common_fields, "way": "questions", "rewards": budget, "lost": losses[chosen]}
        if (arms[chosen] != arms[-1]).any():
            row["true"] = bool(
                interval.low - 1e-9 <= values[chosen] - values[-1] <= interval.high + 1e-9
            )
            row["width"] = float((interval.high - interval.low) / reward_range)
        rows.append(row)
        chosen = _choose_uniform(arms[:-1], stored.means.mean(axis=0), rewards, budget, draw)
        rows.append({**common_fields, "way": "uniform", "rewards": budget, "lost": losses[chosen]})
    if np.isin(rewards, (0.0, 1.0)).all() and (rewards.sum(axis=1) == 1.0).all():
        for draw in range(N_CODA_DRAWS):
            for budget, chosen in _choose_coda(stored.means, rewards.argmax(axis=1), draw).items():
                rows.append(
                    {**common_fields, "way": "coda", "rewards": budget, "lost": losses[chosen]}
                )
    return rows


def measure_verdicts(path: Path) -> list[dict[str, Any]]:
    """Return the verdict after 50 rewards in the target as it is, unrelated and flipped, with the
    true advantage.
    """
    stored = StoredChoices.load(path)
    real = stored.rewards
    rng = np.random.default_rng(0)
    targets = {
        "real": real,
        "unrelated": rng.permutation(real),
        "flipped": real.max() + real.min() - real,
    }
    rows = []
    for target, rewards in targets.items():
        values = rewards[np.arange(len(rewards)), stored.arms].mean(axis=1)
        for draw in range(N_DRAWS):
            chosen, interval = stored.ask(rewards, 50, draw, VERDICT_CONFIDENCE)
            gain = float(values[chosen] - values[-1]) / (float(np.ptp(rewards)) or 1.0)
            rows.append(
                {
                    "set": stored.name,
                    "target": target,
                    "verdict": _get_verdict(interval),
                    "gain": gain,
                }
            )
    return rows


def _get_verdict(interval: Interval) -> str:
    """Return the verdict of ``Assessment.with_rewards``.

    Fields that do not affect the verdict are empty.
    """
    empty_fields: dict[str, Any] = dict.fromkeys(Assessment.__dataclass_fields__, 0)
    return (
        Assessment(**{**empty_fields, "doubts": [], "high": None, "guardrail": None})
        .with_rewards(interval, interval, 50)
        .verdict
    )


def count_verdicts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return how often each target led to a deployment, and how often that was wrong."""
    counts = []
    for target in ("real", "unrelated", "flipped"):
        target_rows = [row for row in rows if row["target"] == target]
        deployed_rows = [row for row in target_rows if row["verdict"] == "deploy"]
        good_rows = [row for row in target_rows if row["gain"] >= 0.05]
        counts.append(
            {
                "target": target,
                "runs": len(target_rows),
                "deployed": len(deployed_rows),
                "good": len(good_rows),
                "good_deployed": sum(row["verdict"] == "deploy" for row in good_rows),
                "worse": sum(row["gain"] < 0.0 for row in deployed_rows),
                "clearly_worse": sum(row["gain"] < -0.02 for row in deployed_rows),
            }
        )
    return counts


def _find_distinct(means: Any) -> list[int]:
    """Return the candidates that do not predict the same as an earlier one."""
    return [
        i
        for i, own in enumerate(means)
        if not any(np.array_equal(own, other) for other in means[:i])
    ]


def _choose_uniform(arms: Any, predicted_rewards: Any, rewards: Any, budget: int, draw: int) -> int:
    rng = np.random.default_rng(draw)
    estimates = predicted_rewards[np.arange(arms.shape[1]), arms].mean(axis=1)
    for context in rng.integers(arms.shape[1], size=budget):
        proposed_arms = np.unique(arms[:, context])
        arm = rng.choice(proposed_arms)
        residual = (
            (rewards[context, arm] - predicted_rewards[context, arm]) * len(proposed_arms) / budget
        )
        estimates = estimates + np.where(arms[:, context] == arm, residual, 0.0)
    return int(estimates.argmax())


def _choose_coda(means: Any, labels: Any, draw: int) -> dict[int, int]:
    """Return the model that CODA takes after each budget; settings of its paper: prior 0.1,
    learning rate 0.01.
    """
    rng, (n_models, _, n_arms) = np.random.default_rng(draw), means.shape
    scores = np.maximum(means, 1e-6) / np.maximum(means, 1e-6).sum(axis=2, keepdims=True)
    choices = means.argmax(axis=2)
    consensus = np.eye(n_arms)[scores.mean(axis=0).argmax(axis=1)]
    soft_confusion = np.einsum("nc,hnj->hcj", consensus, scores)
    soft_confusion /= np.maximum(soft_confusion.sum(axis=2, keepdims=True), 1e-6)
    wrong_count = 1.0 / max(n_arms - 1, 1)
    counts = (
        np.full((n_arms, n_arms), wrong_count)
        + np.eye(n_arms) * (1.0 - wrong_count)
        + 0.1 * soft_confusion
    )
    disputed_rows = np.flatnonzero((choices != choices[0]).any(axis=0))
    chosen_models = {}
    for n_asked in range(max(CODA_BUDGETS) + 1):
        if n_asked in CODA_BUDGETS:
            frequencies, _ = _compute_frequencies(counts, scores)
            chosen_models[n_asked] = int(
                (_rate_models(counts) * frequencies[:, None]).sum(axis=0).argmax()
            )
        if not len(disputed_rows):
            continue
        rows = rng.choice(disputed_rows, min(_N_CODA_CONTEXTS, len(disputed_rows)), replace=False)
        frequencies, per_row = _compute_frequencies(counts, scores, rows)
        best_probabilities = _rate_models(counts)
        mean_probabilities = (frequencies[:, None] * best_probabilities).sum(axis=0)
        information_gains = np.zeros(len(rows))
        for arm in range(n_arms):  # what each answer would change
            is_right = choices[:, rows] == arm
            alpha = counts[:, arm, arm][:, None] + is_right
            beta = counts[:, arm].sum(axis=1)[:, None] - counts[:, arm, arm][:, None] + ~is_right
            changes = _rate_largest(alpha, beta) - best_probabilities[arm][:, None]
            new_probabilities = mean_probabilities[:, None] + frequencies[arm] * changes
            information_gains -= per_row[:, arm] * _compute_entropy(new_probabilities)
        asked_row = int(rows[information_gains.argmax()])
        counts[np.arange(n_models), labels[asked_row], choices[:, asked_row]] += 0.01
        disputed_rows = disputed_rows[disputed_rows != asked_row]
    return chosen_models


def _compute_frequencies(counts: Any, scores: Any, rows: Any = slice(None)) -> tuple[Any, Any]:
    per_row = np.einsum("hcs,hns->nc", counts, scores)
    per_row /= per_row.sum(axis=1, keepdims=True)
    return per_row.mean(axis=0), per_row[rows]


def _rate_models(counts: Any) -> Any:
    """Return the probability that each model is the most accurate for each true arm, (K, H)."""
    diagonal = np.diagonal(counts, axis1=1, axis2=2)
    return np.stack([*map(_rate_largest, diagonal.T, (counts.sum(axis=2) - diagonal).T)])


def _rate_largest(alpha: Any, beta: Any) -> Any:
    """Return the probability that each Beta variable (H, ...) is the largest."""
    distribution = np.maximum(betainc(alpha[..., None], beta[..., None], _GRID), 1e-30)
    other_products = np.exp(np.log(distribution).sum(axis=0) - np.log(distribution))
    midpoints = (other_products[..., 1:] + other_products[..., :-1]) / 2.0
    probabilities = (np.diff(distribution, axis=-1) * midpoints).sum(axis=-1)
    return probabilities / np.maximum(probabilities.sum(axis=0), 1e-30)


def _compute_entropy(raw_probabilities: Any) -> Any:
    probabilities = np.maximum(raw_probabilities, 1e-12)
    return -(probabilities * np.log2(probabilities)).sum(axis=0)


def assign_halves(names: list[str]) -> dict[str, str]:
    """Return the half of each data set: within a kind, every other one by name is for
    development.
    """
    names_by_kind: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        names_by_kind.setdefault(name.split("__")[0], []).append(name)
    return {
        name: ("development", "report")[i % 2]
        for own in names_by_kind.values()
        for i, name in enumerate(own)
    }


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return means by half, way of asking and budget; ``gain`` is against the default, ``worst`` of
    a data set.
    """
    half_by_name = assign_halves([row["set"] for row in rows])
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((half_by_name[row["set"]], row["way"], row["rewards"]), []).append(row)
    summaries = []
    for (half, way, rewards), group_rows in sorted(groups.items()):
        gains: dict[str, list[float]] = {}
        for row in group_rows:
            gains.setdefault(row["set"], []).append(row["default"] - row["lost"])
        means = [float(np.mean(values)) for values in gains.values()]
        fields = {"half": half, "way": way, "rewards": rewards, "sets": len(means)}
        fields["default_within"] = float(np.mean([row["default"] <= 0.03 for row in group_rows]))
        fields["within"] = float(np.mean([row["lost"] <= 0.03 for row in group_rows]))
        fields |= {"gain": float(np.mean(means)), "worst": min(means)}
        if intervals := [row for row in group_rows if "true" in row]:
            fields |= {
                name: float(np.mean([row[name] for row in intervals])) for name in ("true", "width")
            }
        summaries.append(
            {name: round(v, 4) if isinstance(v, float) else v for name, v in fields.items()}
        )
    return summaries


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--predictions", type=Path, required=True)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--commit", help="the commit, where there is no checkout")
    arguments = parser.parse_args()
    with ProcessPoolExecutor(arguments.jobs) as pool:
        files = sorted(arguments.predictions.glob("*__0.npz"))
        verdict_counts = count_verdicts(
            [row for file_rows in pool.map(measure_verdicts, files) for row in file_rows]
        )
        print(*verdict_counts, sep="\n", flush=True)
        rows = summarise(
            [row for file_rows in pool.map(measure_choices, files) for row in file_rows]
        )
        print(*rows, sep="\n")
    if arguments.record:
        record = {"commit": arguments.commit or commit(), "verdicts": verdict_counts, "rows": rows}
        arguments.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
