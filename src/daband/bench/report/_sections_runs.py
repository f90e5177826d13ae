"""Sections that open the runs' folders: assessments, learning, what a policy sees, settings, and what to warn of."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from daband._arrays import AnyArray, FloatArray, IntArray
from daband.bench._records import TARGET_ACCURACY, Records, decimals, group_by, metric_of
from daband.bench.report import _figures as figures
from daband.bench.report._document import Block, Cell, Drawing, Folded, Section, SideBySide, Table, Text
from daband.bench.report._method_styles import TERMS, label, short
from daband.bench.report._method_summaries import Key, Mean, growth_exponent, key_of, mixing
from daband.bench.report._rendering import caption
from daband.bench.report._run_files import Curve, RunFiles, common_curve
from daband.bench.report._sections_results import class_names, mean_cell, slug
from daband.evaluation._collapse_watch import CollapseWatch
from daband.trust._assessment import Assessment

_MOST_CURVES = 8
"""Curves in a figure; more cannot be told apart."""
_MOST_CLASSES = 60
_MOST_COLUMNS = 8
_MOST_WARNINGS = 12
_LATENTS = ("latent_before", "latent_after", "latent_domain", "latent_arm")
_WRONG = ("wrong_images", "wrong_position", "wrong_chosen", "wrong_right", "wrong_regret", "wrong_mean")
_ENVIRONMENT = {
    "daband": "daband", "commit": "commit", "python": "Python", "numpy": "numpy", "torch": "torch", "numba": "numba",
    "system": "system", "processor": "processor", "cpus": "cores", "device": "device", "accelerator": "accelerator",
}  # fmt: skip
Episodes = Sequence[list[dict[str, Any]]]
"""What training measured: a list of episodes for each run."""


def assessment_sections(runs: Sequence[RunFiles]) -> list[Section]:
    """What is estimated of policies in the target without a reward from there; nothing where no run was assessed."""
    assessed = [(run, assessment) for run in runs if (assessment := run.assessment()) is not None]
    if not assessed:
        return []
    assessments = [assessment for _, assessment in assessed]
    digits = metric_of([run.record for run, _ in assessed]).digits(*(assessment.value for assessment in assessments))
    several = len({run.record["pair"] for run, _ in assessed}) > 1
    names = [f"{label(*run.key)}, seed {run.record['seed']}" for run, _ in assessed]
    true = [run.record["target_value"] for run, _ in assessed]
    with_pairs = [f"{run.record['pair']}: {name}" for (run, _), name in zip(assessed, names, strict=True)]
    verdicts = [f"{a.verdict} {a.audit_rewards} rewards" if a.audit_rewards else a.verdict for a in assessments]
    table = Table.of_columns(
        "assessments",
        caption("assessments"),
        ("run", with_pairs if several else names),
        ("verdict", verdicts),
        ("estimated", [f"{assessment.value:,.{digits}f}" for assessment in assessments]),
        ("at least", [f"{assessment.low:,.{digits}f}" for assessment in assessments]),
        ("required", [f"{assessment.required:,.{digits}f}" for assessment in assessments]),
        ("true", [Cell("" if value is None else f"{value:,.{digits}f}", muted=True) for value in true]),
        ("agreement", ["" if one.agreement is None else f"{one.agreement:.3f}" for one in assessments]),
        text_columns=2,
    )
    best = max(range(len(assessed)), key=lambda at: assessments[at].low)
    blocks = [Text(f"{names[best]}: {assessments[best].sentence}"), table, *_by_arm(assessments[best])]
    return [Section("May it be trusted in the target?", blocks, 2)]


def _by_arm(assessment: Assessment) -> list[Block]:
    arms = assessment.per_arm
    table = Table.of_columns(
        "assessment-arms",
        caption("assessed_arms"),
        ("arm", assessment.arm_names or [str(arm.arm) for arm in arms]),
        ("chosen in source", [f"{arm.source_share:.1%}" for arm in arms]),
        ("in target", [f"{arm.target_share:.1%}" for arm in arms]),
        ("expected in source", [f"{arm.expected_source:.1%}" for arm in arms]),
        ("in target", [f"{arm.expected_target:.1%}" for arm in arms]),
        ("estimated value", ["" if arm.value is None else f"{arm.value:,.3f}" for arm in arms]),
    )
    return [
        *(Text(reason) for reason in assessment.reasons),
        *(Text(sign, warning=True) for sign in assessment.collapse),
        Folded("By arm", [table]),
        Folded("What this assumes", [Text(sentence) for sentence in assessment.assumptions]),
    ]


def learning_blocks(pair: str, runs: Sequence[RunFiles], best: Key | None) -> list[Block]:
    """Regret in the source, every observable term of the bound, and the discriminator."""
    groups = group_by(runs, lambda run: run.key)
    drawings = _regret_drawings(pair, groups, where="source", alt="Cumulative source regret after all rounds")
    # Only neural methods adapt, and the bound is measured for these alone; the figure shows the best of them.
    measured = {key: [each for each in (run.episodes() for run in of) if each] for key, of in groups.items()}
    with_bound = [key for key, episodes in measured.items() if any("bound_rounds" in each[-1] for each in episodes)]
    tables: list[Block] = []
    if with_bound:
        method = best if best in with_bound else with_bound[-1]
        curves = {name: common_curve(_term(measured[method], name)) for name in TERMS}
        terms = {name: c for name, c in curves.items() if c is not None and c.values[:, -1].max() > 0}
        exponents = {key: _exponents(measured[key]) for key in with_bound}
        means = {name: float(np.mean(values)) for name, values in exponents[method].items() if values}
        about = caption("bound_figure", pair=pair, method=label(*method))
        alt = f"Growth exponents: {'; '.join(f'{TERMS[n][0]} {v:.2f}' for n, v in means.items())}."
        drawings.append(Drawing(f"{slug(pair)}-bound", figures.bound_figure(terms, means), about, alt))
        tables.append(_bound_table(pair, measured, exponents))
    accuracies = {key: _episode_curve(episodes, "discriminator_accuracy") for key, episodes in measured.items()}
    curves_by_key = {key: curve for key, curve in accuracies.items() if curve is not None}
    if curves_by_key:
        curves_by_key = dict(list(curves_by_key.items())[:_MOST_CURVES])
        listed = "; ".join(f"{label(*key)} {curve.values[:, -1].mean():.2f}" for key, curve in curves_by_key.items())
        figure, about = figures.discriminator_figure(curves_by_key), caption("discriminator", pair=pair)
        alt = f"Discriminator accuracy in the last episode: {listed}."
        drawings.append(Drawing(f"{slug(pair)}-discriminator", figure, about, alt))
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
    for key, of in list(groups.items())[:_MOST_CURVES]:
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


def _episode_curve(runs: Episodes, name: str) -> Curve | None:
    curves = []
    for episodes in runs:
        measured = [(e["episode"], e[name]) for e in episodes if e.get(name) is not None]
        if measured:
            numbers, values = zip(*measured, strict=True)
            curves.append((np.array(numbers), np.array(values, np.float64)))
    return common_curve(curves)


def _term(runs: Episodes, name: str) -> list[tuple[AnyArray, FloatArray]]:
    """Rounds and the sum of a term, for each run that knows it; unknown in some episode, so is its sum."""
    terms = []
    for episodes in runs:
        measured = [e for e in episodes if "bound_rounds" in e]
        if measured and all(e.get(f"bound_{name}") is not None for e in measured):
            rounds = np.array([e["bound_rounds"] for e in measured]).astype(np.int64)
            terms.append((rounds, np.array([e[f"bound_{name}"] for e in measured], np.float64)))
    return terms


def _exponents(runs: Episodes) -> dict[str, list[float]]:
    slopes = {name: [growth_exponent(*term) for term in _term(runs, name)] for name in TERMS}
    return {name: [slope for slope in of if not math.isnan(slope)] for name, of in slopes.items()}


def _bound_table(
    pair: str, measured: Mapping[Key, Episodes], exponents: Mapping[Key, Mapping[str, Sequence[float]]]
) -> Table:
    columns: list[tuple[str, Sequence[Cell | str]]] = [("term", [text for text, _ in TERMS.values()])]
    for key, slopes in exponents.items():
        shares = [
            Mean.of([float(values[-1] / rounds[-1]) for rounds, values in _term(measured[key], name)]) for name in TERMS
        ]
        columns.append((f"{label(*key)}, a round", [mean_cell(share, 3, deviation=False) for share in shares]))
        means = [Mean.of(slopes[name]) for name in TERMS]
        cells = [Cell("-", muted=True) if mean.value is None else mean_cell(mean, 2) for mean in means]
        columns.append((f"{label(*key)}, exponent", cells))
    return Table.of_columns(f"{slug(pair)}-bound", caption("bound", pair=pair), *columns)


def policy_blocks(pair: str, runs: Sequence[RunFiles], best: Key | None, rival: Key | None) -> list[Block]:
    """Maps of latents for the best method and its rival; confusion and wrong examples of the best."""
    if best is None:
        return []
    of_best = [run for run in runs if run.key == best]
    if not any(run.artifacts("latent_domain", "confusion") for run in of_best):
        shared = any(run.shared_arms() for run in of_best)
        made_now = any(run.environment() for run in of_best)  # a linear policy without labels has nothing to show
        return [] if shared or made_now else [Text(caption("no_artifacts"))]
    classes = class_names([run.record for run in of_best])
    drawings = _maps(pair, runs, [key for key in (rival, best) if key is not None], classes)
    drawings += _confusion(pair, of_best, best, classes)
    first = min(of_best, key=lambda run: run.record["seed"])
    wrong = first.artifacts(*_WRONG)
    about = {"pair": pair, "method": label(*best), "seed": first.record["seed"]}
    blocks: list[Block] = []
    if "wrong_images" in wrong:
        figure = figures.examples_figure(wrong, classes)
        alt = f"{len(wrong['wrong_position'])} target contexts that {label(*best)} gets wrong."
        drawings.append(Drawing(f"{slug(pair)}-wrong", figure, caption("wrong_figure", **about), alt))
    elif "wrong_position" in wrong:
        blocks.append(_wrong_table(f"{slug(pair)}-wrong", caption("wrong", **about), wrong, classes))
    return [SideBySide(drawings), *blocks] if drawings else blocks


def _maps(pair: str, runs: Sequence[RunFiles], keys: Sequence[Key], classes: list[str]) -> list[Drawing]:
    places: dict[str, tuple[FloatArray, IntArray]] = {}  # methods of one seed may start from the same network
    drawings = []
    for key in keys:
        of_key = sorted((run for run in runs if run.key == key), key=lambda run: run.record["seed"])
        artifacts = of_key[0].artifacts(*_LATENTS) if of_key else {}
        if "latent_after" not in artifacts:
            continue
        domain, arm = artifacts["latent_domain"], artifacts["latent_arm"]
        maps, mixed = {}, {}
        for moment in ("before", "after"):
            latents = artifacts[f"latent_{moment}"]
            digest = hashlib.sha256(np.ascontiguousarray(latents).tobytes()).hexdigest()
            if digest not in places:
                places[digest] = figures.embed(latents, domain)
            maps[f"{moment} training"] = places[digest]
            mixed[moment] = f"{mixing(latents.astype(np.float64), domain):.2f}"
        name, seed = label(*key), of_key[0].record["seed"]
        about = caption("map", pair=pair, method=name, seed=seed, many=len(classes) > 10, **mixed)
        figure, alt = figures.map_figure(maps, domain, arm, classes), caption("map_alt", method=name, **mixed)
        drawings.append(Drawing(f"{slug(pair)}-map-{slug(name)}", figure, about, alt))
    return drawings


def _confusion(pair: str, runs: Sequence[RunFiles], key: Key, classes: list[str]) -> list[Drawing]:
    tables = [kept["confusion"] for kept in (run.artifacts("confusion") for run in runs) if kept]
    if not tables or len(classes) > _MOST_CLASSES or any(len(table) != len(classes) for table in tables):
        return []
    counts = np.sum(tables, axis=0)
    mistakes = counts * (1 - np.eye(len(counts), dtype=counts.dtype))
    right, chosen = np.unravel_index(int(mistakes.argmax()), mistakes.shape)
    mistake = f"{classes[right]} taken for {classes[chosen]}" if mistakes.max() > 0 else "none"
    about = caption("confusion", pair=pair, method=label(*key), seeds=len(tables), mistake=mistake)
    alt = f"Confusion matrix of {label(*key)} on the target; the most frequent mistake: {mistake}."
    return [Drawing(f"{slug(pair)}-confusion", figures.confusion_figure(counts, classes), about, alt)]


def _wrong_table(name: str, about: str, wrong: Mapping[str, AnyArray], classes: Sequence[str]) -> Table:
    digits = decimals(*wrong["wrong_mean"].ravel().tolist(), *wrong["wrong_regret"].tolist())
    mean, regret, position = (wrong[f"wrong_{part}"][:12] for part in ("mean", "regret", "position"))
    right, chosen = (wrong[f"wrong_{part}"][:12].astype(int) for part in ("right", "chosen"))
    rows = range(len(position))
    return Table.of_columns(
        name,
        about,
        ("right arm", [classes[arm] for arm in right]),
        ("chosen arm", [classes[arm] for arm in chosen]),
        ("predicted, right", [f"{mean[row, right[row]]:,.{digits}f}" for row in rows]),
        ("predicted, chosen", [f"{mean[row, chosen[row]]:,.{digits}f}" for row in rows]),
        ("regret", [f"{value:,.{digits}f}" for value in regret]),
        ("context", [f"{int(value):,}" for value in position]),
        text_columns=2,
    )


def setup_blocks(runs: Sequence[RunFiles]) -> list[Block]:
    """Settings by method, versions and hardware, each folded."""
    parts = {"Versions and hardware": _environments(runs), "Settings of every method": _settings(runs)}
    blocks: list[Block] = [Folded(title, [table]) for title, table in parts.items() if table is not None]
    return blocks or [Text("The run folders are not here, so their settings are not known.")]


def warnings_of(runs: Sequence[RunFiles]) -> list[str]:
    """What a reader should know before trusting the numbers; each once, with how many runs it concerns."""
    messages: dict[str, list[str]] = {}
    for run in runs:
        name = f"{run.record['pair']}, {label(*run.key)}, seed {run.record['seed']}"
        if run.path is None:
            messages.setdefault("The run's folder is not here: curves and pictures leave it out.", []).append(name)
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
    return [*_uneven(runs), *texts][:_MOST_WARNINGS]


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


def _environments(runs: Sequence[RunFiles]) -> Table | None:
    kinds: dict[tuple[str, ...], list[RunFiles]] = {}
    for run in runs:
        about = run.environment()
        if about:
            kind = tuple("" if about.get(name) is None else str(about[name]) for name in _ENVIRONMENT)
            kinds.setdefault(kind, []).append(run)
    if not kinds:
        return None
    kinds = dict(list(kinds.items())[:_MOST_COLUMNS])
    names = [*_ENVIRONMENT.values(), "finished (UTC)", "time of all runs"]
    columns = []
    for texts, of in kinds.items():
        times = sorted(run.environment().get("finished", "")[:16].replace("T", " ") for run in of)
        hours = sum(float(run.record.get("wall_seconds") or 0.0) for run in of) / 3600
        finished = times[0] if times[0] == times[-1] else f"{times[0]} to {times[-1]}"
        columns.append((f"{len(of)} run{'s' if len(of) > 1 else ''}", [*texts, finished, f"{hours:.2f} h"]))
    shown = [at for at in range(len(names)) if at >= len(_ENVIRONMENT) or any(texts[at] for texts in kinds)]
    return Table.of_columns(
        "environment",
        caption("environment", several=len(kinds) > 1),
        *((heading, [texts[at] for at in shown]) for heading, texts in [("", names), *columns]),
        text_columns=1 + len(kinds),
    )


def _settings(runs: Sequence[RunFiles]) -> Table | None:
    """A row per setting, a column per method: of its first run on the first pair."""
    chosen: dict[Key, dict[str, str]] = {}
    for run in runs:
        if run.key not in chosen and len(chosen) < _MOST_COLUMNS and (config := run.config()):
            chosen[run.key] = _flatten(config)
    if not chosen:
        return None
    names = dict.fromkeys(name for settings in chosen.values() for name in settings)
    columns = []
    for key, settings in chosen.items():
        cells = [Cell(short(settings[name], 40)) if name in settings else Cell("-", muted=True) for name in names]
        columns.append((label(*key), cells))
    texts = ("setting", list(names))
    return Table.of_columns("settings", caption("settings"), texts, *columns, text_columns=1 + len(chosen))


def _flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, inner in value.items():
        if isinstance(inner, Mapping) and inner:
            flat.update(_flatten(inner, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = inner if isinstance(inner, str) else json.dumps(inner)
    return flat
