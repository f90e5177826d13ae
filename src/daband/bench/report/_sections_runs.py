"""Sections that open the runs' folders: assessments, learning, what a policy sees, settings, and what to warn of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from daband._arrays import AnyArray, FloatArray
from daband.bench._records import TARGET_ACCURACY, Records, decimals, group_by, metric_of
from daband.bench.report import _figures as figures
from daband.bench.report._document import Block, Cell, Drawing, Section, SideBySide, Table, Text
from daband.bench.report._method_styles import label
from daband.bench.report._method_summaries import Key, Mean, growth_exponent, key_of
from daband.bench.report._rendering import caption
from daband.bench.report._run_files import RunFiles, common_curve
from daband.bench.report._sections_results import class_names, mean_cell, slug
from daband.evaluation._collapse_watch import CollapseWatch

#: Curves in a figure; more cannot be told apart.
_MAX_CURVES = 8
_MAX_CLASSES = 60
_MAX_ENVIRONMENTS = 8
_MAX_WARNINGS = 12
_MAP = ("latent", "latent_domain", "latent_arm")
_WRONG = ("wrong_images", "wrong_chosen", "wrong_right")
_ENVIRONMENT = {
    "daband": "daband", "commit": "commit", "python": "Python", "numpy": "numpy", "torch": "torch", "numba": "numba",
    "system": "system", "processor": "processor", "cpus": "cores", "device": "device", "accelerator": "accelerator",
}  # fmt: skip
#: The observable terms of the bound, as training measures them.
TERMS = {
    "source_regret": "source regret", "regression_error": "regression error", "divergence": "divergence",
    "predicted_reward_target": "predicted reward, target", "predicted_reward_source": "predicted reward, source",
    "exploration": "exploration", "total": "sum, without psi",
}  # fmt: skip
#: What training measured: a list of episodes for each run.
Episodes = Sequence[list[dict[str, Any]]]


def assessment_sections(runs: Sequence[RunFiles]) -> list[Section]:
    """Return the advantages of runs over the incumbent; empty if no run was assessed."""
    assessed = [(run, assessment) for run in runs if (assessment := run.assessment()) is not None]
    if not assessed:
        return []
    names = [f"{run.record['pair']}: {label(*run.key)}, seed {run.record['seed']}" for run, _ in assessed]
    texts = [Text(f"{name}: {one.sentence}") for name, (_, one) in zip(names, assessed, strict=True)]
    return [Section("Advantage over the incumbent", [*texts], 2)]


def learning_blocks(pair: str, runs: Sequence[RunFiles]) -> list[Block]:
    """Return the source regret, and the observable terms of the bound for methods that measure them."""
    groups = group_by(runs, lambda run: run.key)
    drawings = _regret_drawings(pair, groups, where="source", alt="Cumulative source regret after all rounds")
    measured = {key: [each for each in (run.episodes() for run in of) if each] for key, of in groups.items()}
    with_bound = {
        key: episodes for key, episodes in measured.items() if any("bound_rounds" in each[-1] for each in episodes)
    }
    tables: list[Block] = [_bound_table(pair, with_bound)] if with_bound else []
    return [SideBySide(drawings), *tables] if drawings else tables


def continued_blocks(pair: str, runs: Sequence[RunFiles]) -> list[Block]:
    """What the head start is worth once rewards arrive in the target; nothing where no run was continued."""
    continued = [(run, record) for run in runs if (record := run.continued())]
    if not continued:
        return []
    table = continued_table(pair, [record for _, record in continued])
    groups = group_by([run for run, _ in continued], lambda run: run.key)
    drawings = _regret_drawings(pair, groups, where="target", alt="Cumulative target regret")
    if not drawings:
        return [Text("The target does not tell its expected rewards, so there is no regret to draw."), table]
    return [SideBySide(drawings), table]


def continued_table(pair: str, records: Records) -> Table:
    """Regret in the target before and with its rewards, by method: of records as ``continue_run`` gives them."""
    groups = group_by(records, key_of)
    in_unit = metric_of(records) is not TARGET_ACCURACY
    fields = {"continued regret": "continued_regret", "zero-shot regret": "zero_shot_regret", "total": "total_regret"}
    fields = {"reward a round": "continued_reward", **fields} if in_unit else fields
    totals = [Mean.of([record["total_regret"] for record in of]).value for of in groups.values()]
    least = min((value for value in totals if value is not None), default=None) if len(groups) > 1 else None
    columns: list[tuple[str, Sequence[Cell | str]]] = [
        ("method", [label(*key) for key in groups]),
        ("target rounds", [f"{of[0]['rounds']:,}" for of in groups.values()]),
    ]
    for heading, field in fields.items():
        digits = decimals(*(record[field] for record in records), significant=4) if in_unit else 1
        means = [Mean.of([record[field] for record in of]) for of in groups.values()]
        wins = [field == "total_regret" and total is not None and total == least for total in totals]
        columns.append((heading, [mean_cell(mean, digits, bold=won) for mean, won in zip(means, wins, strict=True)]))
    columns.append(("seeds", [str(len(of)) for of in groups.values()]))
    return Table.of_columns(f"{slug(pair)}-continued", caption("continued", pair=pair), *columns)


def _regret_drawings(pair: str, groups: Mapping[Key, Sequence[RunFiles]], *, where: str, alt: str) -> list[Drawing]:
    """Cumulative regret over the rounds in a domain; nothing where no run has one."""
    curves = {}
    for key, of in list(groups.items())[:_MAX_CURVES]:
        curve = common_curve([run.regret(where) for run in of])
        if curve is not None:
            curves[key] = curve
    if not curves:
        return []
    listed = "; ".join(f"{label(*key)} {curve.values[:, -1].mean():,.0f}" for key, curve in curves.items())
    about = caption(f"{where}_regret", pair=pair)
    return [
        Drawing(f"{slug(pair)}-{where}-regret", figures.regret_figure(curves, where=where), about, f"{alt}: {listed}.")
    ]


def _term(runs: Episodes, name: str) -> list[tuple[AnyArray, FloatArray]]:
    """Rounds and the sum of a term, for each run that knows it; unknown in some episode, so is its sum."""
    terms = []
    for episodes in runs:
        measured = [e for e in episodes if "bound_rounds" in e]
        if measured and all(e.get(f"bound_{name}") is not None for e in measured):
            rounds = np.array([e["bound_rounds"] for e in measured]).astype(np.int64)
            terms.append((rounds, np.array([e[f"bound_{name}"] for e in measured], np.float64)))
    return terms


def _bound_table(pair: str, measured: Mapping[Key, Episodes]) -> Table:
    columns: list[tuple[str, Sequence[Cell | str]]] = [("term", list(TERMS.values()))]
    for key, episodes in measured.items():
        sums = [_term(episodes, name) for name in TERMS]
        shares = [Mean.of([float(values[-1] / rounds[-1]) for rounds, values in of]) for of in sums]
        slopes = [[growth_exponent(rounds, values) for rounds, values in of] for of in sums]
        means = [Mean.of([slope for slope in of if not math.isnan(slope)]) for of in slopes]
        columns.append((f"{label(*key)}, per round", [mean_cell(share, 3, deviation=False) for share in shares]))
        cells = [Cell("-", muted=True) if mean.value is None else mean_cell(mean, 2) for mean in means]
        columns.append((f"{label(*key)}, exponent", cells))
    return Table.of_columns(f"{slug(pair)}-bound", caption("bound", pair=pair), *columns)


def policy_blocks(pair: str, runs: Sequence[RunFiles], best: Key | None) -> list[Block]:
    """Return a map of latent features, the confusion matrix and wrong images of the best method."""
    of_best = sorted((run for run in runs if run.key == best), key=lambda run: int(run.record["seed"]))
    if best is None or not of_best:
        return []
    classes = class_names([run.record for run in of_best])
    first = of_best[0]
    kept = first.artifacts(*_MAP, *_WRONG)
    about = {"pair": pair, "method": label(*best), "seed": first.record["seed"]}
    drawings = []
    if "latent" in kept:
        figure, alt = figures.map_figure(kept, classes), f"Latent features of {label(*best)} after training."
        drawings.append(Drawing(f"{slug(pair)}-map", figure, caption("map", **about), alt))
    drawings += _confusion(pair, of_best, best, classes)
    if "wrong_images" in kept:
        figure = figures.examples_figure(kept, classes)
        alt = f"{len(kept['wrong_images'])} target images for which {label(*best)} is wrong."
        drawings.append(Drawing(f"{slug(pair)}-wrong", figure, caption("wrong_figure", **about), alt))
    return [SideBySide(drawings)] if drawings else []


def _confusion(pair: str, runs: Sequence[RunFiles], key: Key, classes: list[str]) -> list[Drawing]:
    tables = [kept["confusion"] for kept in (run.artifacts("confusion") for run in runs) if kept]
    if not tables or len(classes) > _MAX_CLASSES or any(len(table) != len(classes) for table in tables):
        return []
    counts = np.sum(tables, axis=0)
    mistakes = counts * (1 - np.eye(len(counts), dtype=counts.dtype))
    right, chosen = np.unravel_index(int(mistakes.argmax()), mistakes.shape)
    mistake = f"{classes[right]} taken for {classes[chosen]}" if mistakes.max() > 0 else "none"
    about = caption("confusion", pair=pair, method=label(*key), seeds=len(tables), mistake=mistake)
    alt = f"Confusion matrix of {label(*key)} on the target; the most frequent mistake: {mistake}."
    return [Drawing(f"{slug(pair)}-confusion", figures.confusion_figure(counts, classes), about, alt)]


def setup_blocks(runs: Sequence[RunFiles]) -> list[Block]:
    """Return versions, hardware, and where the settings of each run are."""
    lines = _environments(runs)[:_MAX_ENVIRONMENTS]
    texts = [Text(line) for line in lines] or [Text("The run folders are missing, so versions are unknown.")]
    return [*texts, Text("config.json in each run's folder has all settings.")]


def warnings_of(runs: Sequence[RunFiles]) -> list[str]:
    """What a reader should know before trusting the numbers; each once, with how many runs it concerns."""
    messages: dict[str, list[str]] = {}
    for run in runs:
        name = f"{run.record['pair']}, {label(*run.key)}, seed {run.record['seed']}"
        if run.path is None:
            messages.setdefault("The run's folder is missing, so curves and images leave it out.", []).append(name)
            continue
        watch = CollapseWatch()
        for message in (message for record in run.episodes() for message in watch.observe(record)):
            sign = f"Training showed a sign of collapse: {message.partition(':')[0]}."
            messages.setdefault(sign, []).append(name)
        error = run.environment().get("artifacts_error")
        if error:
            messages.setdefault(f"Its artifacts could not be kept: {error}.", []).append(name)
    texts = []
    for message, names in messages.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        texts.append(f"{message} ({'; '.join(names[:3])}{more})")
    return [*_uneven(runs), *texts][:_MAX_WARNINGS]


def _uneven(runs: Sequence[RunFiles]) -> list[str]:
    """Methods that are compared on other seeds or budgets than the rest."""
    messages = []
    for pair, of_pair in group_by(runs, lambda run: run.record["pair"]).items():
        seeds = {key: {run.record["seed"] for run in of} for key, of in group_by(of_pair, lambda run: run.key).items()}
        rounds = group_by(of_pair, lambda run: run.record["rounds"])
        if len({frozenset(of) for of in seeds.values()}) > 1:
            counts = ", ".join(f"{label(*key)} {len(of)}" for key, of in list(seeds.items())[:8])
            messages.append(
                f"{pair}: methods ran on different seeds ({counts}); differences use the seeds that both have."
            )
        if len(rounds) > 1:
            names = {n: list(dict.fromkeys(label(*run.key) for run in of)) for n, of in sorted(rounds.items())}
            budgets = "; ".join(f"{n:,} rounds: {', '.join(of[:6])}" for n, of in names.items())
            messages.append(f"{pair}: runs of different budgets stand side by side ({budgets}).")
    return messages


def _environments(runs: Sequence[RunFiles]) -> list[str]:
    """Return a line for each combination of versions and hardware."""
    kinds = group_by(
        [run for run in runs if run.environment()],
        lambda run: ", ".join(
            f"{text} {run.environment()[name]}" for name, text in _ENVIRONMENT.items() if run.environment().get(name)
        ),
    )
    return [f"{len(of)} run{'s' if len(of) > 1 else ''}: {kind}." for kind, of in kinds.items()]
