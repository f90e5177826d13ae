"""A sweep: one method with every combination of some settings, and which of them each rule of selection would pick."""

from __future__ import annotations

import copy
import itertools
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from daband._files import read_json, read_npz, write_json
from daband.bench._methods import check_recipe, policy_settings
from daband.bench._records import Record, group_by, metric_of, read_results, results_locked, seed_means
from daband.bench._run import read_spec
from daband.bench._settings import Experiment, RunSpec, put_nested, toml_value, validation_message
from daband.domains._contract import Pair
from daband.domains._registry import load, pairs
from daband.errors import DataError, InvalidInput, did_you_mean
from daband.evaluation._model_selection import CRITERIA, SourceHistory, criteria
from daband.policies._checkpoints import load_policy

Grid = Mapping[str, Sequence[Any]]

#: Selection rules by name; "oracle" uses target rewards, which nobody has before the hand-over.
SELECTION_RULES = (*CRITERIA, "oracle")
_OF_THE_RUN = ("episodes", "episode_length", "components", "rule")


def parse_grid(texts: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """``["lambda=1,5", "alpha=0.1,0.5"]`` as ``{"lambda": (1, 5), "alpha": (0.1, 0.5)}``."""
    grid: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        key, equals, listed = text.partition("=")
        if not equals or not key or not listed.strip():
            raise InvalidInput(f"--grid takes key=value,value,..., e.g. lambda=1,5,10, got {text!r}")
        if key in grid:
            raise InvalidInput(f"--grid {key} is given twice; list its values in one")
        try:
            values = tomllib.loads(f"values = [{listed}]")["values"]
        except tomllib.TOMLDecodeError:  # words without quotes
            values = [toml_value(part.strip()) for part in listed.split(",")]
        grid[key] = tuple(values)
    return grid


def sweep_runs(
    experiment: Experiment, *, grid: Grid, method: str = "daband", seeds: Sequence[int] | None = None
) -> list[RunSpec]:
    """A run for every combination of the grid's values and every seed; ``variant`` names the combination.

    A key is ``lambda`` (the weight of the adversarial term), the name of a term (its weight; the schedule stays),
    ``recipe.`` and a setting of the recipe (``recipe.learning.learning_rate``), a setting of the run (``episodes``,
    ``components``, ...), ``pair_options.`` and an option of the pair, or an argument of the policy (``alpha``).
    """
    if not grid or not all(grid.values()):
        raise InvalidInput("there is nothing to sweep: give a grid, e.g. --grid lambda=1,5,10")
    labels = _labels(grid)
    runs = []
    for spec in experiment.runs([method], seeds):
        for values in itertools.product(*grid.values()):
            point = dict(zip(grid, values, strict=True))
            settings = copy.deepcopy(spec.model_dump())
            for key, value in point.items():
                _put(settings, key, value, method)
            settings["pair_options"] = pairs.get(spec.pair).resolved(settings["pair_options"])
            settings["variant"] = ",".join(f"{labels[key]}={_text(value)}" for key, value in point.items())
            try:
                runs.append(RunSpec.model_validate(settings))
            except ValidationError as error:
                raise InvalidInput(f"--grid: {validation_message(error)}") from None
    return runs


def _labels(grid: Grid) -> dict[str, str]:
    """What a key is called in variants: its last word, where that is clear."""
    short = {key: key.rpartition(".")[2] for key in grid}
    return {key: word if list(short.values()).count(word) == 1 else key for key, word in short.items()}


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _put(settings: dict[str, Any], key: str, value: Any, method: str) -> None:
    """Change one setting of a run, given as a key of the grid; what cannot be is told now, not in the first run."""
    first, _, rest = key.partition(".")
    policy = settings["policy"]
    if key in _OF_THE_RUN:
        settings[key] = value
    elif first == "pair_options" and rest:
        pairs.get(settings["pair"]).check_options([rest])
        settings["pair_options"][rest] = value
    elif key == "lambda" or (first == "recipe" and rest) or _is_term(key):
        if "recipe" not in policy_settings(method):
            raise InvalidInput(f"{method!r} has no recipe, so {key!r} cannot be swept")
        before = policy.get("recipe", "default")
        recipe = policy["recipe"] = {"base": before} if isinstance(before, str) else before
        path = rest.split(".") if first == "recipe" else ["weights", "adversarial" if key == "lambda" else key]
        put_nested(recipe, path, value, f"cannot sweep {key!r}")
        check_recipe(recipe)
    else:
        settings_of_policy = policy_settings(method)
        if key not in settings_of_policy:
            names = ["lambda", *_OF_THE_RUN, *settings_of_policy]
            raise InvalidInput(
                f"{method!r} has nothing called {key!r} to sweep{did_you_mean(key, names)} "
                f"(known: {', '.join(names)}, and names of terms)"
            )
        policy[key] = value


def _is_term(name: str) -> bool:
    from daband.neural.objectives._term import terms  # needs torch, which takes seconds; a sweep over alpha does not

    return name in terms


def measure(
    records: Sequence[Record], out: str | Path, *, progress: Callable[[Record], None] | None = None
) -> dict[str, dict[str, float | None]]:
    """Every criterion for every finished run, by folder; read from its ``criteria.json``, or computed and kept there.

    Computed from the saved policy, with source rewards and unlabelled target contexts.
    """
    out = Path(out)
    values: dict[str, dict[str, float | None]] = {}
    loaded: dict[str, Pair] = {}
    for record in records:
        folder = out / record["folder"]
        path = folder / "criteria.json"
        measured = read_json(path) if path.is_file() else {}
        if set(CRITERIA) - set(measured):
            spec = read_spec(folder)
            wanted = json.dumps([spec.pair, spec.pair_options], sort_keys=True)
            if wanted not in loaded:  # one pair at a time is kept
                loaded = {wanted: load(spec.pair, **spec.pair_options)}
            pair = loaded[wanted]
            policy = load_policy(folder / "policy.safetensors")
            rounds = read_npz(folder / "rounds.npz")
            if "reward" not in rounds:
                raise DataError(f"{folder / 'rounds.npz'} has no rewards; remove its folder to run it again")
            history = SourceHistory(rounds["reward"], spec.seed)
            measured = criteria(
                policy, source=pair.source, target=pair.target, history=history, source_test=pair.source_test
            )
            write_json(path, measured)
        values[record["folder"]] = measured
        if progress is not None:
            progress(record)
    return values


@dataclass(frozen=True)
class Point:
    """One combination of a method's settings on one pair, over its seeds: score, and the mean of every criterion."""

    pair: str
    method: str
    variant: str
    seeds: tuple[int, ...]
    #: What ``score`` is: "target_accuracy" where exactly one arm pays 1, else "target_value".
    metric: str
    #: The mean over seeds; None where the target has no labels.
    score: float | None
    score_deviation: float
    source_regret: float | None
    criteria: dict[str, float | None]


@dataclass(frozen=True)
class SweepChoice:
    """What one rule picks on one pair, and how good that is."""

    pair: str
    rule: str
    variant: str
    score: float | None
    #: How much higher the best point's score is.
    below_best: float | None
    #: Spearman's, over points, between the criterion (higher is better) and the score; None for the oracle.
    rank_correlation: float | None


def sweep_points(records: Sequence[Record], values: Mapping[str, Mapping[str, float | None]]) -> list[Point]:
    """A point per pair, method and variant, in the order of first appearance."""
    points = []
    groups = group_by(records, lambda record: (record["pair"], record["method"], record["variant"]))
    for (pair, method, variant), group in groups.items():
        metric = metric_of([record for record in records if record["pair"] == pair])
        measured: dict[str, float | None] = {}
        for rule in CRITERIA:
            each = [value for record in group if (value := values[record["folder"]][rule]) is not None]
            measured[rule] = float(np.mean(each)) if len(each) == len(group) else None
        means = seed_means(group, metric)
        points.append(Point(pair, method, variant, metric=metric.field, criteria=measured, **means))
    return points


def choices(points: Sequence[Point]) -> list[SweepChoice]:
    """What every rule picks on every pair; rules without a value for all of a pair's points pick nothing."""
    picks = []
    for pair, of_pair in group_by(points, lambda point: point.pair).items():
        true = _scores("oracle", of_pair)
        for rule in SELECTION_RULES:
            score = _scores(rule, of_pair)
            if score is None:
                continue
            picked = of_pair[int(score.argmax())]
            agreement = None if rule == "oracle" or true is None else _rank_correlation(score, true)
            below = None if true is None or picked.score is None else float(true.max() - picked.score)
            picks.append(SweepChoice(pair, rule, picked.variant, picked.score, below, agreement))
    return picks


def _scores(rule: str, points: Sequence[Point]) -> Any:
    """The rule's value of each point, higher is better; None where one is missing."""
    values = [point.score if rule == "oracle" else point.criteria[rule] for point in points]
    if any(value is None for value in values):
        return None
    return np.array(values, np.float64) * (1 if rule == "oracle" or CRITERIA[rule].highest else -1)


def _rank_correlation(first: Any, second: Any) -> float | None:
    if len(first) < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(first, second).statistic)


def write_sweep(
    out: str | Path, *, rule: str, grid: Grid, points: Sequence[Point], picked: Sequence[SweepChoice]
) -> list[Record]:
    """Write ``sweep.json``, and name the rule in the ``selection`` of the picked records in ``results.json``.

    Returns the records that the rule picked: all seeds of one variant per pair.
    """
    out = Path(out)
    chosen = {(choice.pair, choice.variant) for choice in picked if choice.rule == rule}
    if not chosen:
        raise DataError(f"the rule {rule!r} has no value for some of these runs, so it cannot choose between them")
    # The folder may hold a sweep of another method over the same settings, which this rule did not look at.
    swept = {(point.pair, point.method, point.variant) for point in points}
    selected = []
    content = {
        "selection": rule,
        "grid": {key: list(values) for key, values in grid.items()},
        "points": [asdict(point) for point in points],
        "choices": [asdict(choice) for choice in picked],
    }
    with results_locked(out):
        records = read_results(out)
        for record in records:
            if (record["pair"], record["method"], record["variant"]) in swept:
                is_chosen = (record["pair"], record["variant"]) in chosen
                record["selection"] = rule if is_chosen else "none"
                selected += [record] * is_chosen
        write_json(out / "results.json", records)
        write_json(out / "sweep.json", content)
    return selected
