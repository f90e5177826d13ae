"""Sections of what a policy learned: both domains in latent space, the confusion of arms, wrong examples."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from daband.arrays import AnyArray, FloatArray, IntArray
from daband.experiments import decimals
from daband.report.document import Block, Drawing, SideBySide, Text
from daband.report.figures_policy import confusion_figure, embedded, examples_figure, map_figure
from daband.report.runs import RunFiles
from daband.report.sections_results import class_names, slug
from daband.report.statistics import Key, mixing
from daband.report.style import label
from daband.report.tables import Cell, Table

__all__ = ["policy_blocks"]

_OLD = (
    "These runs kept no artifacts (confusion, latents, wrong examples), so there is nothing to show of what the policy "
    "sees. Runs on a log, and runs of versions before 0.2, keep none."
)
_MOST_CLASSES = 60
_LATENTS = ("latent_before", "latent_after", "latent_domain", "latent_arm")


def policy_blocks(pair: str, runs: Sequence[RunFiles], best: Key | None, rival: Key | None) -> list[Block]:
    """Maps of latents for the best method and its rival; confusion and wrong examples of the best."""
    if best is None:
        return []
    mine = [run for run in runs if run.key == best]
    if not any(run.artifacts("latent_domain", "confusion") for run in mine):
        shared = any(run.config().get("policy", {}).get("arms") == "shared" for run in mine)
        made_now = any(run.environment() for run in mine)  # a linear policy without labels has nothing to show
        return [] if shared or made_now else [Text(_OLD)]
    classes = class_names([run.record for run in mine])
    drawn = _maps(pair, runs, [key for key in (rival, best) if key is not None], classes)
    drawn += _confusion(pair, mine, best, classes)
    first = min(mine, key=lambda run: run.record["seed"])
    wrong = first.artifacts(
        "wrong_images", "wrong_position", "wrong_chosen", "wrong_right", "wrong_regret", "wrong_mean"
    )
    blocks: list[Block] = []
    if "wrong_images" in wrong:
        drawn.append(
            Drawing(
                f"{slug(pair)}-wrong",
                examples_figure(wrong, classes),
                f"{pair}: target contexts that {label(*best)} (seed {first.record['seed']}) gets wrong: what each is, "
                "and what was chosen. A few of every class, the first that the evaluation met.",
                f"{len(wrong['wrong_position'])} target contexts that {label(*best)} gets wrong.",
            )
        )
    elif "wrong_position" in wrong:
        blocks.append(_wrong_table(pair, wrong, best, first.record["seed"], classes))
    return [SideBySide(drawn), *blocks] if drawn else blocks


def _maps(pair: str, runs: Sequence[RunFiles], keys: Sequence[Key], classes: list[str]) -> list[Drawing]:
    known: dict[str, tuple[FloatArray, IntArray]] = {}  # methods of one seed may start from the same network
    drawn = []
    for key in keys:
        mine = sorted((run for run in runs if run.key == key), key=lambda run: run.record["seed"])
        artifacts = mine[0].artifacts(*_LATENTS) if mine else {}
        if "latent_after" not in artifacts:
            continue
        domain, arm = artifacts["latent_domain"], artifacts["latent_arm"]
        maps = {}
        for moment in ("before", "after"):
            latents = artifacts[f"latent_{moment}"]
            maps[f"{moment} training"] = _remembered(known, latents, domain)
        name = label(*key)
        colours = "; colours repeat after ten arms" if len(classes) > 10 else ""
        mixed = [mixing(artifacts[f"latent_{moment}"].astype(np.float64), domain) for moment in ("before", "after")]
        drawn.append(
            Drawing(
                f"{slug(pair)}-map-{slug(label(*key))}",
                map_figure(maps, domain, arm, classes),
                f"{pair}: how {name} (seed {mine[0].record['seed']}) sees source and target, by domain above and by "
                f"the right arm below, grey where it is not known (t-SNE of the latents{colours}). How mixed the "
                f"domains are among nearest neighbours, 0 apart and 1 one cloud: {mixed[0]:.2f} before, "
                f"{mixed[1]:.2f} after.",
                f"Mixing of the domains in {name}'s latents: {mixed[0]:.2f} before, {mixed[1]:.2f} after training.",
            )
        )
    return drawn


def _remembered(
    known: dict[str, tuple[FloatArray, IntArray]], latents: AnyArray, domain: AnyArray
) -> tuple[FloatArray, IntArray]:
    mark = hashlib.sha256(np.ascontiguousarray(latents).tobytes()).hexdigest()
    if mark not in known:
        known[mark] = embedded(latents, domain)
    return known[mark]


def _confusion(pair: str, runs: Sequence[RunFiles], key: Key, classes: list[str]) -> list[Drawing]:
    tables = [found["confusion"] for found in (run.artifacts("confusion") for run in runs) if found]
    if not tables or len(classes) > _MOST_CLASSES or any(len(table) != len(classes) for table in tables):
        return []
    counts = np.sum(tables, axis=0)
    apart = counts * (1 - np.eye(len(counts), dtype=counts.dtype))
    worst = np.unravel_index(int(apart.argmax()), apart.shape)
    said = f"{classes[worst[0]]} taken for {classes[worst[1]]}" if apart.max() > 0 else "none"
    return [
        Drawing(
            f"{slug(pair)}-confusion",
            confusion_figure(counts, classes),
            f"{pair}: what {label(*key)} chooses in the target, {len(tables)} seed{'s' if len(tables) > 1 else ''} "
            f"together. Rows sum to 1. The most frequent mistake: {said}.",
            f"Confusion matrix of {label(*key)} on the target; the most frequent mistake: {said}.",
        )
    ]


def _wrong_table(pair: str, wrong: dict[str, AnyArray], key: Key, seed: int, classes: list[str]) -> Table:
    table = Table(
        f"{slug(pair)}-wrong",
        f"{pair}: target contexts that {label(*key)} (seed {seed}) gets wrong, by their number in the evaluation, with "
        "what it predicted both arms would pay, and what the mistake costs.",
        ["right arm", "chosen arm", "predicted, right", "predicted, chosen", "regret", "context"],
        text_columns=2,
    )
    digits = decimals(*wrong["wrong_mean"].ravel().tolist(), *wrong["wrong_regret"].tolist())
    for row in range(min(12, len(wrong["wrong_position"]))):
        right, chosen = int(wrong["wrong_right"][row]), int(wrong["wrong_chosen"][row])
        table.add(
            Cell(classes[right]),
            Cell(classes[chosen]),
            f"{wrong['wrong_mean'][row, right]:,.{digits}f}",
            f"{wrong['wrong_mean'][row, chosen]:,.{digits}f}",
            f"{wrong['wrong_regret'][row]:,.{digits}f}",
            f"{int(wrong['wrong_position'][row]):,}",
        )
    return table
