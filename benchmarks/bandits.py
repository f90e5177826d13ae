"""Play the bandit problems of the literature with daband's policies and other libraries.

    python benchmarks/bandits.py --jobs 8 --out benchmarks/records/bandits.json      (or: make bench)

The problems are those of Riquelme, Tucker and Snoek (ICLR 2018) whose data could be had, with 20,480
rounds drawn at random. Mushrooms: leaving pays 0, eating pays 5, or -35 half of the time if the
mushroom is poisonous. Shuttle: the label pays 1. Wheel: contexts are uniform in the unit disc, four
arms pay 1 and the fifth 1.2, and outside of the radius one arm per quadrant pays 50. Three simulated
problems are like calvera's: ten normal columns, two arms, and the arm that pays 1 is the sign of a
random function plus noise of deviation 1. The function is linear, or has squares or sines of the
columns. Regret is measured against expected rewards, and divided by that of a random policy.

daband's policies run at their defaults, in blocks of 64 rounds with ``adapt`` after each, and see
the contexts and rewards as they are. Other libraries learn after each round, or after each block
where they cannot. They get rewards that are scaled to [0, 1] by their known range and an intercept.
Their settings are those with the least regret in 4,096 rounds of another seed. A library that does
not work here is left out, and the record says why. Every run uses one thread.

The mushrooms and the shuttle are read from ``$DABAND_DATA/bandits``: ``mushroom.csv.gz`` with the
column ``edibility`` and 22 letters (UCI, CC BY 4.0) and ``shuttle.csv.gz`` with nine numbers and a
label. Runs that are in ``--out`` are not repeated.
"""

from __future__ import annotations

import one_thread  # noqa: F401  # isort: skip

import argparse
import csv
import gzip
import json
import multiprocessing
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from machine import commit, machine
from numpy.typing import NDArray
from peers import Peer, list_peers
from scipy.stats import norm

import daband
from daband.domains._registry import get_data_directory

Array = NDArray[Any]
Job = tuple[str, str, int, int, dict[str, Any]]

_ROUNDS = 20_480
_BLOCK = 64
_TUNING_ROUNDS = 4_096
_TUNING_SEED = 100
#: The regret is recorded after every sixteenth of the rounds.
_POINTS = 16
_OURS = ("LinUCB", "Mixture", "Trees", "NeuralLinUCB")


@dataclass(frozen=True)
class Problem:
    """The rounds of a problem, in their order."""

    contexts: Array
    #: The rewards that the arms pay, (rounds, arms).
    rewards: Array
    #: The expected rewards of the arms given the context, (rounds, arms).
    expected: Array

    def measure_regret(self, arms: Array) -> Array:
        """Return the expected regret of each round."""
        chosen = self.expected[np.arange(len(arms)), arms]
        return self.expected[: len(arms)].max(axis=1) - chosen

    @property
    def random_regret(self) -> float:
        """The regret per round of a policy that chooses at random."""
        return float((self.expected.max(axis=1) - self.expected.mean(axis=1)).mean())


def _read_columns(name: str) -> dict[str, Array]:
    """Return the columns of a table of the data directory, as texts."""
    with gzip.open(get_data_directory() / "bandits" / f"{name}.csv.gz", "rt") as file:
        head, *rows = csv.reader(file)
    return dict(zip(head, np.array(rows).T, strict=True))


def _make_mushroom(rng: np.random.Generator, n_rounds: int) -> Problem:
    columns = _read_columns("mushroom")
    is_edible = columns.pop("edibility") == "e"
    letters = np.column_stack(
        [column == letter for column in columns.values() for letter in np.unique(column)]
    ).astype(float)
    rows = rng.integers(len(letters), size=n_rounds)
    is_edible = is_edible[rows]
    rewards, expected = np.zeros((2, n_rounds, 2))
    is_lucky = rng.random(n_rounds) < 0.5
    rewards[:, 1] = np.where(is_edible | is_lucky, 5.0, -35.0)
    expected[:, 1] = np.where(is_edible, 5.0, -15.0)
    return Problem(letters[rows], rewards, expected)


def _make_shuttle(rng: np.random.Generator, n_rounds: int) -> Problem:
    *columns, label = _read_columns("shuttle").values()
    numbers = np.column_stack(columns).astype(float)
    numbers = (numbers - numbers.mean(axis=0)) / numbers.std(axis=0)
    names, labels = np.unique(label, return_inverse=True)
    rows = rng.integers(len(numbers), size=n_rounds)
    rewards = np.eye(len(names))[labels[rows]]
    return Problem(numbers[rows], rewards, rewards)


def _make_wheel(rng: np.random.Generator, n_rounds: int, radius: float) -> Problem:
    angles = rng.uniform(0.0, 2.0 * np.pi, n_rounds)
    radii = np.sqrt(rng.random(n_rounds))
    contexts = np.column_stack([radii * np.cos(angles), radii * np.sin(angles)])
    is_outside = radii > radius
    quadrants = 2 * (contexts[:, 0] < 0) + (contexts[:, 1] < 0)
    expected = np.ones((n_rounds, 5))
    expected[~is_outside, 4] = 1.2
    expected[is_outside, quadrants[is_outside]] = 50.0
    return Problem(contexts, expected + rng.normal(scale=0.01, size=expected.shape), expected)


def _make_simulated(
    rng: np.random.Generator, n_rounds: int, bend: Callable[[Array], Array] | None
) -> Problem:
    contexts = rng.normal(size=(n_rounds, 10))
    features = [np.ones((n_rounds, 1)), contexts, *([bend(contexts)] if bend else [])]
    inputs = np.hstack(features)
    score = inputs @ rng.normal(size=inputs.shape[1])
    probability = norm.cdf(score)
    labels = (score + rng.normal(size=n_rounds) > 0).astype(int)
    return Problem(contexts, np.eye(2)[labels], np.column_stack([1.0 - probability, probability]))


_PROBLEMS: dict[str, Callable[[np.random.Generator, int], Problem]] = {
    "mushroom": _make_mushroom,
    "shuttle": _make_shuttle,
    "wheel .5": lambda rng, n: _make_wheel(rng, n, 0.5),
    "wheel .9": lambda rng, n: _make_wheel(rng, n, 0.9),
    "wheel .95": lambda rng, n: _make_wheel(rng, n, 0.95),
    "wheel .99": lambda rng, n: _make_wheel(rng, n, 0.99),
    "linear": lambda rng, n: _make_simulated(rng, n, None),
    "quadratic": lambda rng, n: _make_simulated(rng, n, np.square),
    "sinus": lambda rng, n: _make_simulated(rng, n, lambda x: np.sin(5 * x)),
}


def make_problem(name: str, seed: int, n_rounds: int = _ROUNDS) -> Problem:
    """Return the rounds of a problem."""
    return _PROBLEMS[name](np.random.default_rng(seed), n_rounds)


def play_ours(problem: Problem, name: str, seed: int) -> Array:
    """Return the arms that one of daband's policies chooses at its defaults."""
    policy = getattr(daband, name)(
        context_shape=problem.contexts.shape[1:], n_arms=problem.rewards.shape[1], seed=seed
    )
    arms = []
    for start in range(0, len(problem.contexts), _BLOCK):
        part = slice(start, start + _BLOCK)
        arms.append(policy.play(problem.contexts[part], problem.rewards[part]).arm)
        policy.adapt()
    return np.concatenate(arms)


def play_peer(problem: Problem, peer: type[Peer], seed: int, setting: dict[str, Any]) -> Array:
    """Return the arms that another library's policy chooses."""
    low, high = problem.rewards.min(), problem.rewards.max()
    rewards = (problem.rewards - low) / (high - low)
    contexts = problem.contexts
    if not peer.has_own_intercept:
        contexts = np.column_stack([np.ones(len(contexts)), contexts])
    policy = peer(contexts.shape[1], rewards.shape[1], seed, **setting)
    arms = np.zeros(len(contexts), int)
    for start in range(0, len(contexts), peer.block):
        rows = np.arange(start, min(start + peer.block, len(contexts)))
        arms[rows] = policy.choose(contexts[rows])
        policy.learn(contexts[rows], arms[rows], rewards[rows, arms[rows]])
    return arms


def run(job: Job) -> dict[str, Any]:
    """Play a problem, and return its regret, curve and time."""
    name, method, seed, n_rounds, setting = job
    warnings.simplefilter("ignore")
    problem = make_problem(name, seed, n_rounds)
    started = time.perf_counter()
    result = {"problem": name, "method": method, "seed": seed, "rounds": n_rounds}
    try:
        if method in _OURS:
            arms = play_ours(problem, method, seed)
        else:
            (peer,) = (peer for peer in list_peers() if peer.name == method)
            arms = play_peer(problem, peer, seed, setting)
    # a library that breaks on a problem must not stop the others
    except Exception as error:
        return result | {"setting": setting, "error": f"{type(error).__name__}: {error}"}
    seconds = time.perf_counter() - started
    regret = problem.measure_regret(arms).cumsum() / (n_rounds * problem.random_regret)
    curve = regret[n_rounds // _POINTS - 1 :: n_rounds // _POINTS]
    return result | {
        "regret": round(float(regret[-1]), 4),
        "second half": round(float(2 * (regret[-1] - regret[n_rounds // 2 - 1])), 4),
        "curve": curve.round(4).tolist(),
        "seconds": round(seconds, 1),
        "setting": setting,
    }


class Record:
    """The record of all runs, which is written after each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: dict[str, Any] = {"runs": [], "tuning": [], "absent": {}, "machines": {}}
        if path.exists():
            self.content = json.loads(path.read_text())
        self.commit = commit()
        self.content["machines"][self.commit] = machine() | {"daband": daband.__version__}

    def add(self, kind: str, result: dict[str, Any]) -> None:
        if kind == "tuning":
            result.pop("curve", None)
        self.content[kind].append(result | {"commit": self.commit})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.content, indent=1) + "\n")

    def has(self, kind: str, job: Job) -> bool:
        """Return whether a job was run, with the same setting while settings are chosen."""
        name, method, seed, n_rounds, setting = job
        return any(
            (run["problem"], run["method"], run["seed"], run["rounds"])
            == (name, method, seed, n_rounds)
            and (kind == "runs" or run["setting"] == setting)
            for run in self.content[kind]
        )

    def choose_setting(self, name: str, method: str) -> dict[str, Any] | None:
        """Return the setting with the least regret, or None if none could be run."""
        runs = [
            run
            for run in self.content["tuning"]
            if (run["problem"], run["method"]) == (name, method) and "regret" in run
        ]
        return min(runs, key=lambda run: run["regret"])["setting"] if runs else None


def parse_seeds(text: str) -> list[int]:
    """Return the seeds of a range such as 0-7, or of a single number."""
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def main() -> None:
    """Choose the settings of peers, play all problems, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--problems", nargs="*", default=list(_PROBLEMS))
    parser.add_argument("--methods", nargs="*", help="beginnings of names; all if not given")
    parser.add_argument("--seeds", default="0-7", help="of daband's policies")
    parser.add_argument("--peer-seeds", default="0-2")
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    arguments = parser.parse_args()
    wanted = tuple(arguments.methods or [""])
    record = Record(arguments.out)
    peers: list[type[Peer]] = []
    for peer in list_peers():
        if peer.name.startswith(wanted):
            reason = peer.find_problem()
            if reason is None:
                peers.append(peer)
                record.content["machines"][record.commit][peer.package] = version(peer.package)
            else:
                record.content["absent"][peer.name] = reason
                print(f"{peer.name} is left out: {reason}", flush=True)

    def run_missing(kind: str, jobs: list[Job]) -> None:
        missing = [job for job in jobs if not record.has(kind, job)]
        for result in pool.imap_unordered(run, missing):
            record.add(kind, result)
            shown = result.get("regret", result.get("error"))
            names = (result["problem"], result["method"], result["seed"])
            print(kind, *names, shown, result.get("seconds"), flush=True)

    n_tuning = min(_TUNING_ROUNDS, arguments.rounds)
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        run_missing(
            "runs",
            [
                (name, method, seed, arguments.rounds, {})
                for seed in parse_seeds(arguments.seeds)
                for method in _OURS
                if method.startswith(wanted)
                for name in arguments.problems
            ],
        )
        run_missing(
            "tuning",
            [
                (name, peer.name, _TUNING_SEED, n_tuning, setting)
                for peer in peers
                if len(peer.list_settings()) > 1
                for name in arguments.problems
                for setting in peer.list_settings()
            ],
        )
        run_missing(
            "runs",
            [
                (name, peer.name, seed, arguments.rounds, setting)
                for seed in parse_seeds(arguments.peer_seeds)
                for peer in peers
                for name in arguments.problems
                for setting in [record.choose_setting(name, peer.name) or peer.list_settings()[0]]
            ],
        )


if __name__ == "__main__":
    main()
