"""Run variants of one method: the paper's ablation of R, P and D, and sweeps over a grid of settings.

R is the regression error, P the predicted reward, D the divergence. The three letters together are all that DABand adds
to Neural-LinUCB, so ``none`` equals Neural-LinUCB with the same recipe, bit for bit. In the paper D is the adversarial
term. The default recipe aligns domains with further target terms, which belong to D. ``daband sweep`` varies each term
separately (``--grid pseudo_labels=0,0.5``).
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from daband._files import read_json, read_npz, write_json
from daband.bench._methods import check_recipe, policy_settings
from daband.bench._records import Paired, Record, Records, group_by, holm, metric_of, read_results, results_locked
from daband.bench._run import read_spec
from daband.bench._settings import Experiment, RunSpec, put_nested, toml_value, validation_message
from daband.bench.report import _method_summaries as summaries
from daband.bench.report._method_summaries import ABLATION_BASES, ABLATION_LETTERS, Mean, MethodSummary
from daband.domains._contract import Pair
from daband.domains._registry import load, pairs
from daband.errors import DataError, InvalidInput, did_you_mean
from daband.evaluation._model_selection import CRITERIA, SourceHistory, criteria
from daband.policies._checkpoints import load_policy

Grid = Mapping[str, Sequence[Any]]

#: Selection rules by name; "oracle" uses target rewards, which are unknown before deployment.
SELECTION_RULES = (*CRITERIA, "oracle")
_OF_THE_RUN = ("episodes", "episode_length", "components", "rule")


@dataclass(frozen=True)
class AblationRow:
    """One combination of R, P and D on one base and pair, compared with the full method on the same seeds."""

    summary: MethodSummary
    base: str
    letters: str
    #: This combination minus the full method; None for the full method, and if no seed has both.
    paired: Paired | None
    #: The p-value with Holm's correction over the combinations of this base and pair; None without a test.
    p_holm: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        paired = {} if self.paired is None else self.paired.as_dict()
        tested = {name: paired.get(name) for name in ("difference", "low", "high", "p_value")}
        return {**_as_json(self.summary), "base": self.base, "letters": self.letters, **tested, "p_holm": self.p_holm}


@dataclass(frozen=True)
class Point:
    """One combination of a method's settings on one pair, over its seeds: score, and the mean of every criterion."""

    summary: MethodSummary
    criteria: dict[str, float | None]


def _as_json(row: MethodSummary) -> dict[str, Any]:
    return {
        "pair": row.pair, "method": row.method, "variant": row.variant, "seeds": list(row.seeds),
        "metric": row.metric.field, "score": row.score.value, "score_deviation": row.score.deviation,
        "source_regret": row.source_regret.value,
    }  # fmt: skip


def ablation_runs(
    experiment: Experiment, *, bases: Sequence[str] = tuple(ABLATION_BASES), seeds: Sequence[int] | None = None
) -> list[RunSpec]:
    """Return all eight combinations on each base, with method "daband" and variant ``base:letters``.

    The experiment's settings for DABand apply; if they change the recipe of a base, that base is changed.
    """
    for base in bases:
        if base not in ABLATION_BASES:
            raise InvalidInput(f"there is no ablation of the recipe {base!r} (known: {', '.join(ABLATION_BASES)})")
    if not bases:
        raise InvalidInput("an ablation needs at least one base")
    runs = []
    for spec, base, letters in itertools.product(experiment.runs(["daband"], seeds), bases, ABLATION_LETTERS):
        policy = {**spec.policy, "recipe": _ablated(base, letters, spec.policy.get("recipe"))}
        runs.append(spec.model_copy(update={"variant": f"{base}:{letters}", "policy": policy}))
    return runs


def _ablated(base: str, letters: str, recipe: object) -> dict[str, Any]:
    """Return the base, as the experiment changes it, with weight 0 for the terms whose letters are missing."""
    changed = isinstance(recipe, Mapping) and recipe.get("base") == base
    changes: dict[str, Any] = dict(recipe) if changed and isinstance(recipe, Mapping) else {"base": base}
    removed = {term: 0.0 for letter, of in ABLATION_BASES[base].items() if letter not in letters for term in of}
    return {**changes, "weights": {**changes.get("weights", {}), **removed}}


def ablation_rows(records: Sequence[Record]) -> list[AblationRow]:
    """Return the table of an ablation from records of its runs; other records are ignored."""
    full = ABLATION_LETTERS[-1]
    rows = []
    ablated = [record for record in records if summaries.role_of(record) == "ablation"]
    groups = group_by(ablated, lambda record: (record["pair"], record["variant"].partition(":")[0]))
    for (_, base), of_base in groups.items():
        by_letters = {row.variant.partition(":")[2]: row for row in summaries.summarise(of_base)}
        present = [letters for letters in ABLATION_LETTERS if letters in by_letters]
        scores = {name: summaries.score_by_seed(of_base, by_letters[name].key, metric_of(of_base)) for name in present}
        tests = {
            name: summaries.paired_difference(scores[name], scores.get(full, {})) for name in present if name != full
        }
        tested = {name: test for name, test in tests.items() if test is not None}
        corrected = dict(zip(tested, holm([test.p_value for test in tested.values()]), strict=True))
        for name in present:
            p_holm = float(corrected.get(name, math.nan))
            test = (tests.get(name), None if math.isnan(p_holm) else p_holm)
            rows.append(AblationRow(by_letters[name], base, name, *test))
    return rows


def write_ablation(out: str | Path, rows: Sequence[AblationRow]) -> Path:
    """Write ``ablation.json``: the terms of each letter, and the rows."""
    path = Path(out) / "ablation.json"
    letters = {base: ABLATION_BASES[base] for base in dict.fromkeys(row.base for row in rows)}
    with results_locked(Path(out)):
        write_json(path, {"full": ABLATION_LETTERS[-1], "letters": letters, "rows": [row.as_dict() for row in rows]})
    return path


def parse_grid(texts: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Return ``{"lambda": (1, 5), "alpha": (0.1, 0.5)}`` for ``["lambda=1,5", "alpha=0.1,0.5"]``."""
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
    """Return a run for every combination of the grid's values and every seed; ``variant`` names the combination.

    A key is ``lambda`` (the weight of the adversarial term), the name of a term (its weight; the schedule stays),
    ``recipe.`` and a setting of the recipe (``recipe.learning.learning_rate``), a setting of the run (``episodes``,
    ``components``, ...), ``pair_options.`` and an option of the pair, or an argument of the policy (``alpha``).
    """
    if not grid or not all(grid.values()):
        raise InvalidInput("there is nothing to sweep: give a grid, e.g. --grid lambda=1,5,10")
    last_words = [key.rpartition(".")[2] for key in grid]
    labels = [word if last_words.count(word) == 1 else key for key, word in zip(grid, last_words, strict=True)]
    runs = []
    for spec, values in itertools.product(experiment.runs([method], seeds), itertools.product(*grid.values())):
        settings = copy.deepcopy(spec.model_dump())
        for key, value in zip(grid, values, strict=True):
            _put(settings, key, value, method)
        settings["pair_options"] = pairs.get(spec.pair).resolved(settings["pair_options"])
        texts = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
        settings["variant"] = ",".join(f"{name}={text}" for name, text in zip(labels, texts, strict=True))
        try:
            runs.append(RunSpec.model_validate(settings))
        except ValidationError as error:
            raise InvalidInput(f"--grid: {validation_message(error)}") from None
    return runs


def _put(settings: dict[str, Any], key: str, value: Any, method: str) -> None:
    """Change one setting of a run, given as a key of the grid; raise here instead of in the first run."""
    first, _, rest = key.partition(".")
    policy = settings["policy"]
    known = policy_settings(method)
    if key in _OF_THE_RUN:
        settings[key] = value
    elif first == "pair_options" and rest:
        pairs.get(settings["pair"]).check_options([rest])
        settings["pair_options"][rest] = value
    elif key in known:
        policy[key] = value
    elif key == "lambda" or (first == "recipe" and rest) or _is_term(key):
        if "recipe" not in known:
            raise InvalidInput(f"{method!r} has no recipe, so {key!r} cannot be swept")
        before = policy.get("recipe", "default")
        recipe = policy["recipe"] = {"base": before} if isinstance(before, str) else before
        path = rest.split(".") if first == "recipe" else ["weights", "adversarial" if key == "lambda" else key]
        put_nested(recipe, path, value, f"cannot sweep {key!r}")
        check_recipe(recipe)
    else:
        names = ["lambda", *_OF_THE_RUN, *known]
        raise InvalidInput(
            f"{method!r} has nothing called {key!r} to sweep{did_you_mean(key, names)} "
            f"(known: {', '.join(names)}, and names of terms)"
        )


def _is_term(name: str) -> bool:
    from daband.neural.objectives._term import terms  # imports torch, which a sweep over alpha does not need

    return name in terms


def measure(
    records: Sequence[Record], out: str | Path, *, progress: Callable[[Record], None] | None = None
) -> dict[str, dict[str, float | None]]:
    """Return every criterion for every finished run, by folder; computed once and kept in its ``criteria.json``.

    Criteria are computed from the saved policy, with source rewards and unlabelled target contexts.
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
            if wanted not in loaded:  # only one pair at a time is kept
                loaded = {wanted: load(spec.pair, **spec.pair_options)}
            pair = loaded[wanted]
            rounds = read_npz(folder / "rounds.npz")
            if "reward" not in rounds:
                raise DataError(f"{folder / 'rounds.npz'} has no rewards; remove its folder to run it again")
            measured = criteria(
                load_policy(folder / "policy.safetensors"),
                source=pair.source,
                target=pair.target,
                history=SourceHistory(rounds["reward"], spec.seed),
                source_test=pair.source_test,
            )
            write_json(path, measured)
        values[record["folder"]] = measured
        if progress is not None:
            progress(record)
    return values


@dataclass(frozen=True)
class SweepChoice:
    """The choice of one rule on one pair, and its score."""

    pair: str
    rule: str
    variant: str
    score: float | None
    #: The score of the best point minus this score.
    below_best: float | None
    #: Spearman's rank correlation, over points, of the criterion (higher is better) and the score; None for the oracle.
    rank_correlation: float | None


def sweep_points(records: Records, values: Mapping[str, Mapping[str, float | None]]) -> list[Point]:
    """Return a point per pair, method and variant, in the order of first appearance."""
    folders = group_by(records, lambda record: (record["pair"], record["method"], record["variant"]))
    points = []
    for row in summaries.summarise(records):
        of_row = [values[record["folder"]] for record in folders[row.pair, row.method, row.variant]]
        points.append(Point(row, {rule: Mean.of([one[rule] for one in of_row]).value for rule in CRITERIA}))
    return points


def choices(points: Sequence[Point]) -> list[SweepChoice]:
    """Return the choice of every rule on every pair; a rule without a value for some point of a pair has none."""
    picks = []
    for pair, of_pair in group_by(points, lambda point: point.summary.pair).items():
        true = _scores("oracle", of_pair)
        for rule in SELECTION_RULES:
            score = _scores(rule, of_pair)
            if score is None:
                continue
            picked = of_pair[int(score.argmax())].summary
            agreement = None if rule == "oracle" or true is None else _rank_correlation(score, true)
            value = picked.score.value
            below = None if true is None or value is None else float(true.max() - value)
            picks.append(SweepChoice(pair, rule, picked.variant, value, below, agreement))
    return picks


def _scores(rule: str, points: Sequence[Point]) -> Any:
    """Return the rule's value for each point, higher is better; None if one is missing."""
    values = [point.summary.score.value if rule == "oracle" else point.criteria[rule] for point in points]
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
) -> Records:
    """Write ``sweep.json``, and name the rule in the ``selection`` of the chosen records in ``results.json``.

    Return the records that the rule chose: all seeds of one variant per pair.
    """
    out = Path(out)
    chosen = {(choice.pair, choice.variant) for choice in picked if choice.rule == rule}
    if not chosen:
        raise DataError(f"the rule {rule!r} has no value for some of these runs, so it cannot choose between them")
    # The folder may have a sweep of another method over the same settings, to which this rule was not applied.
    swept = {(point.summary.pair, *point.summary.key) for point in points}
    selected = []
    content = {
        "selection": rule,
        "grid": {key: list(values) for key, values in grid.items()},
        "points": [{**_as_json(point.summary), "criteria": point.criteria} for point in points],
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
