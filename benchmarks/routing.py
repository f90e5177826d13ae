"""Measure verdicts on routers of language models: does a router that wins at home win elsewhere?

    python benchmarks/routing.py --half report --out benchmarks/records/routing.json
    python benchmarks/routing.py --example src/daband/domains/examples/routing

The domains are the subjects of ``two_models_57_subjects`` and the tasks of ``four_models`` with
150 prompts or more. A pair is a source with the rewards of all models, and a target with prompts.
The reward is net of the price: the mark less 0.15 for each GPT-4 answer, or less 20 per dollar.
Domains are split into a development and a report half, and ordered pairs of each half are drawn
with a fixed seed. Settings were chosen on the development half.

Features of prompts are 32 principal components of TF-IDF, fitted to the prompts of both domains,
with the length and the fraction of digits. All routers have the same features and learn all source
rewards: LinUCB, 20 nearest neighbours, a logistic regression per model, and ``daband.choose``. The
incumbent is the source's best single model.

Each router is judged without target rewards (``assess``), and with 50 and 500 rewards, or one per
prompt if there are fewer prompts (``audit``, ``choose``). LinUCB and the other routers also learn
online from as many prompts. All values are means over all target prompts, a part of which gave the
rewards.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
from machine import commit, machine

import daband
from daband.domains._registry import get_data_directory
from daband.linear._predictor import ContextStep, Predictor, RidgePredictor
from daband.policies import Policy

#: Price of an answer of GPT-4, in marks.
GPT4_PRICE = 0.15
#: Marks per dollar for the four models.
MARKS_PER_DOLLAR = 20.0
#: Subjects of the sample in the package, half of which are worth the price of GPT-4, and two others.
HOME_SUBJECTS = (
    "conceptual_physics",
    "high_school_psychology",
    "machine_learning",
    "marketing",
    "moral_scenarios",
    "nutrition",
    "philosophy",
    "professional_law",
)
NEW_SUBJECTS = ("college_computer_science", "sociology")
#: Smallest number of prompts of a domain.
MIN_PROMPTS = 150
#: Number of principal components of the prompts.
N_COMPONENTS = 32
N_NEIGHBOURS = 20
#: Rewards after which routers are evaluated.
FEW = 50
MANY = 500
#: Routers that are compared with ``choose``.
ROUTERS = ("linucb", "knn", "logistic")


class Router(Policy):
    """A policy that predicts the reward of each arm by a model that is fitted to all its rounds."""

    default_settings: ClassVar = {"explore": "greedy", "epsilon": 0.1}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._rows = np.zeros((0, int(np.prod(self.feature_shape)) + 2))
        self._predictors: list[Any] | None = None

    def _learn(self, rounds: Any, _: int) -> None:
        rows = np.column_stack([rounds.contexts, rounds.arms, rounds.rewards])
        self._rows = np.concatenate([self._rows, rows])
        self._predictors = None

    def _predictor(self, _: int) -> Predictor:
        step = ContextStep(self.feature_shape, self._predict)
        return RidgePredictor(steps=(step,), theta=np.eye(self.n_arms), inverse=None)

    def _predict(self, contexts: Any) -> Any:
        if self._predictors is None:
            arms = [self._rows[self._rows[:, -2] == arm] for arm in range(self.n_arms)]
            self._predictors = [self._fit(rows[:, :-2], rows[:, -1]) for rows in arms]
        return np.column_stack([predict(contexts) for predict in self._predictors])

    def _fit(self, contexts: Any, rewards: Any) -> Any:
        """Return a function from contexts (B, d) to predicted rewards (B,)."""
        raise NotImplementedError

    def _grow(self) -> None:
        self._predictors = None

    def _state(self, **_: bool) -> Any:
        return {"rows": self._rows}

    def _restore(self, state: Any) -> None:
        self._rows, self._predictors = np.array(state["rows"]), None


@daband.policies.policies.register("knn")
class KnnRouter(Router):
    """Predict the mean reward of the 20 nearest prompts."""

    def _fit(self, contexts: Any, rewards: Any) -> Any:
        from sklearn.neighbors import KNeighborsRegressor

        n_neighbours = min(N_NEIGHBOURS, len(rewards))
        return KNeighborsRegressor(n_neighbours).fit(contexts, rewards).predict


@daband.policies.policies.register("logistic")
class LogisticRouter(Router):
    """Predict marks in [0, 1], as probabilities, by a logistic regression."""

    scale_matters = True

    def _fit(self, contexts: Any, rewards: Any) -> Any:
        from sklearn.linear_model import LogisticRegression

        low, high = rewards.min(), rewards.max()
        if low == high:
            return lambda rows: np.full(len(rows), low)
        marks = (rewards - low) / (high - low)
        n = len(marks)
        model = LogisticRegression().fit(
            np.concatenate([contexts, contexts]),
            np.repeat([1, 0], n),
            sample_weight=np.concatenate([marks, 1 - marks]),
        )
        return lambda rows: low + (high - low) * model.predict_proba(rows)[:, 1]


def read_domains() -> dict[str, dict[str, tuple[list[str], np.ndarray]]]:
    """Return prompts and net rewards (n, K) by collection and domain, for those with enough
    prompts.
    """
    folder = get_data_directory() / "routing"
    two = pl.read_csv(folder / "two_models_57_subjects.csv.gz").with_columns(
        pl.col("gpt-4") - GPT4_PRICE
    )
    four = pl.read_csv(folder / "four_models.csv.gz", infer_schema_length=None)
    models = [name.partition(":")[2] for name in four.columns if name.startswith("reward:")]
    four = four.with_columns(
        (pl.col(f"reward:{model}") - MARKS_PER_DOLLAR * pl.col(f"cost:{model}")).alias(model)
        for model in models
    )
    tables = {
        "two_models": (two, "subject", ["mixtral-8x7b", "gpt-4"]),
        "four_models": (four, "task", models),
    }
    return {
        collection: {
            str(domain): (rows["prompt"].to_list(), rows.select(models).to_numpy().astype(float))
            for (domain,), rows in sorted(table.group_by(column, maintain_order=True))
            if len(rows) >= MIN_PROMPTS
        }
        for collection, (table, column, models) in tables.items()
    }


def write_example(folder: Path) -> None:
    """Write the data of ``daband example routing``: prompts and marks of eight subjects, and prompts
    of two others, whose marks are in ``rewards.csv``.
    """
    table = pl.read_csv(get_data_directory() / "routing" / "two_models_57_subjects.csv.gz")
    rng = np.random.default_rng(0)
    parts = []
    for subjects, n_prompts in ((HOME_SUBJECTS, 36), (NEW_SUBJECTS, 100)):
        for subject in subjects:
            rows = table.filter(pl.col("subject") == subject)
            parts.append(rows[np.sort(rng.permutation(len(rows))[:n_prompts])])
    sample = pl.concat(parts).with_row_index("prompt_id", 1000)
    is_home = pl.col("subject").is_in(HOME_SUBJECTS)
    sample.filter(is_home).drop("subject").write_csv(folder / "home.csv")
    for subject in NEW_SUBJECTS:
        prompts = sample.filter(pl.col("subject") == subject).select("prompt_id", "prompt")
        prompts.write_csv(folder / f"{subject}.csv")
    sample.filter(~is_home).drop("subject", "prompt").write_csv(folder / "rewards.csv")


def draw_pairs(domains: Any, half: str, n_pairs: int, seed: int) -> list[tuple[str, str, str]]:
    """Return at most ``n_pairs`` ordered pairs of the half, a quarter of them with four models.

    Their order is random, so that a part of them is a sample too.
    """
    jobs = []
    for collection, share in (("two_models", 0.75), ("four_models", 0.25)):
        rng = np.random.default_rng(seed)
        names = rng.permutation(sorted(domains[collection])).tolist()
        own = sorted(names[::2] if half == "report" else names[1::2])
        pairs = list(itertools.permutations(own, 2))
        chosen = rng.permutation(len(pairs))[: round(n_pairs * share)]
        jobs += [(collection, *pairs[index]) for index in chosen]
    return [jobs[index] for index in np.random.default_rng(seed).permutation(len(jobs))]


def compute_features(source: list[str], target: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the features of the prompts of both domains, (n, 34) each."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    prompts = source + target
    counts = TfidfVectorizer(sublinear_tf=True, min_df=2).fit_transform(prompts)
    components = TruncatedSVD(N_COMPONENTS, random_state=0).fit_transform(counts)
    lengths = np.array([len(prompt) for prompt in prompts])
    digits = np.array([sum(map(str.isdigit, prompt)) for prompt in prompts])
    features = np.column_stack([components, np.log1p(lengths), digits / np.maximum(lengths, 1)])
    return features[: len(source)], features[len(source) :]


def get_value(policy: Policy, contexts: np.ndarray, rewards: np.ndarray) -> float:
    """Return the mean reward of a policy's greedy choices in the target."""
    arms = policy.decide(contexts, "target", rule="greedy").arm
    return float(rewards[np.arange(len(arms)), arms].mean())


def measure(job: tuple[str, str, str], domains: Any, seed: int) -> dict[str, Any]:
    """Return values and verdicts of all routers on one pair."""
    collection, source, target = job
    start = time.process_time()
    (prompts, rewards), (target_prompts, target_rewards) = (
        domains[collection][name] for name in (source, target)
    )
    x, x_target = compute_features(prompts, target_prompts)
    incumbent = int(rewards.mean(axis=0).argmax())
    n = len(x_target)
    budgets = (FEW, min(MANY, n))
    stream = np.random.default_rng(seed).permutation(n)[: budgets[-1]]
    ask = make_ask(x_target, target_rewards)
    pair = daband.domains.from_arrays(
        source=(x, rewards),
        target=x_target,
        feedback="full",
        shift="covariate",
        source_test=0.2,
        name=f"{source}-{target}",
    )

    def describe(result: Any, policy: Policy) -> dict[str, Any]:
        """Return the verdict on a policy, its limit, and what is true."""
        value = get_value(policy, x_target, target_rewards)
        return {
            "value": value,
            "gain": value - float(target_rewards[:, incumbent].mean()),
            "advantage": result.advantage,
            "low": result.low,
            "verdict": result.verdict,
        }

    verdicts: dict[str, list[dict[str, Any]]] = {}
    values: dict[str, list[float]] = {}
    for name in ROUTERS:
        policy = daband.policies.policies.get(name).for_pair(pair, seed=seed)
        daband.train(policy, source=pair.source, target=pair.target)
        assert pair.source_test is not None
        assessment = daband.assess(
            policy, source=pair.source_test, target=pair.target, incumbent=incumbent
        )
        verdicts[name] = [describe(assessment, policy)]
        for budget in budgets:
            audit = daband.audit(
                policy,
                target=pair.target,
                budget=budget,
                ask=ask,
                incumbent=incumbent,
                confidence=0.8,
                seed=seed,
            )
            verdicts[name].append(describe(audit, policy))
        values[name] = [verdicts[name][0]["value"]]
        for first, last in ((0, FEW), (FEW, budgets[-1])):
            learn_online(policy, x_target, target_rewards, stream[first:last])
            values[name].append(get_value(policy, x_target, target_rewards))
    verdicts["choose"] = []
    candidates = []
    with tempfile.TemporaryDirectory() as folder:
        for budget in (0, *budgets):
            choice = daband.choose(
                pair,
                incumbent=incumbent,
                budget=budget,
                ask=ask if budget else None,
                directory=folder,
                seed=seed,
            )
            verdicts["choose"].append(describe(choice.assessment, choice.policy))
            candidates.append(choice.candidate)
    values["choose"] = [verdict["value"] for verdict in verdicts["choose"]]
    return {
        "collection": collection,
        "source": source,
        "target": target,
        "prompts": [len(x), n],
        "singles": target_rewards.mean(axis=0).round(4).tolist(),
        "incumbent": incumbent,
        "budgets": [0, *budgets],
        "candidates": candidates,
        "values": values,
        "verdicts": verdicts,
        "seconds": round(time.process_time() - start, 1),
    }


def learn_online(policy: Policy, contexts: np.ndarray, rewards: np.ndarray, rows: Any) -> None:
    """Let a policy choose for prompts of the target and learn its rewards, ten at a time."""
    for first in range(0, len(rows), 10):
        batch = rows[first : first + 10]
        arms = policy.select(contexts[batch], "target").arm
        policy.update(contexts[batch], arms, rewards[batch, arms], domain="target")


def make_ask(contexts: np.ndarray, rewards: np.ndarray) -> Any:
    """Return the function that answers the questions of ``choose``."""
    row_of = {row.tobytes(): index for index, row in enumerate(contexts)}

    def ask(asked: np.ndarray, arms: np.ndarray) -> list[float]:
        rows = [row_of[np.asarray(row, contexts.dtype).tobytes()] for row in asked]
        return [float(reward) for reward in rewards[rows, arms]]

    return ask


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--example", type=Path, help="write the example of the package instead")
    parser.add_argument("--half", choices=("development", "report"), default="report")
    parser.add_argument("--pairs", type=int, default=48)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.example is not None:
        write_example(arguments.example)
        return
    warnings.simplefilter("ignore")
    domains = read_domains()
    rows = []
    jobs = draw_pairs(domains, arguments.half, arguments.pairs, arguments.seed)
    for number, job in enumerate(jobs, 1):
        rows.append(measure(job, domains, arguments.seed))
        verdicts = [
            f"{row['verdict']} {row['gain']:+.3f}" for row in rows[-1]["verdicts"]["choose"]
        ]
        print(f"{number}/{len(jobs)} {'-'.join(job[1:])}: {', '.join(verdicts)}", flush=True)
        record = {
            "commit": commit(),
            "half": arguments.half,
            "seed": arguments.seed,
            "machine": machine(),
            "rows": rows,
        }
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
