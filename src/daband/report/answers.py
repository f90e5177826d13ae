"""The result in a sentence: which method is best in the target, by how much, and how certain that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from daband.experiments import TARGET_VALUE, AblationRow, Record, ablation_rows, decimals
from daband.report.document import Tile
from daband.report.reference import paper_accuracy
from daband.report.statistics import MethodComparison, pair_family, role_of, verdict
from daband.report.style import label
from daband.report.summary import Mean, labelled, summarise

__all__ = ["Answer", "answer_of", "lead_of"]


@dataclass(frozen=True)
class Answer:
    """A headline, its qualification, and its numbers."""

    headline: str
    detail: str = ""
    tiles: list[Tile] = field(default_factory=list)


def answer_of(records: Sequence[Record]) -> Answer:
    """The answer that the records of one data set give: of a comparison, else of an ablation, else of a sweep."""
    family = pair_family(records[0]["pair"])
    if not labelled(records):
        return _without_labels(family, records)
    compared = [record for record in records if role_of(record) == "comparison"]
    if compared:
        found = verdict(compared)
        if found is None:
            return Answer(f"No method ran on every pair of {family}, so there is no winner yet.")
        return _of_comparison(family, found, compared)
    return _of_ablation(family, records) or _of_sweep(family, records)


def lead_of(records: Sequence[Record]) -> str:
    """What was run, in two sentences."""
    rounds = sorted({record["rounds"] for record in records})
    budget = f"{rounds[0]:,}" if len(rounds) == 1 else f"{rounds[0]:,} to {rounds[-1]:,}"
    rules = sorted({str(record.get("selection", "none")) for record in records} - {"none"})
    chosen = f" Settings were chosen by: {', '.join(rules)}." if rules else ""
    return (
        f"{_count(len(records), 'run')}, {_count(len({record['seed'] for record in records}), 'seed')}, {budget} "
        f"source rounds each. Methods learned from rewards in the source and saw contexts of the target, never a "
        f"reward there.{chosen}"
    )


def _of_comparison(family: str, found: MethodComparison, records: Sequence[Record]) -> Answer:
    winner, what = label(*found.best), found.metric.name
    pairs = len({record["pair"] for record in records})
    over = f", the mean of {pairs} pairs" if pairs > 1 else ""
    digits = found.metric.digits(found.score)
    score = f"{found.score:,.{digits}f}"
    spread = f" ± {found.spread:,.{digits}f}" if found.seeds > 1 else ""
    tiles = [Tile(f"{score}{spread}", f"{what} of {winner}, {_count(found.seeds, 'seed')}{over}")]
    paired, rival = found.paired, found.rival
    headline = f"{winner} reaches a {what} of {score} on {family}{over}."
    detail = ""
    if paired is not None and rival is not None:
        name = label(*rival)
        ahead = f"{paired.difference:,.{digits}f} above {name}"
        between = f"{paired.low:+,.{digits}f} to {paired.high:+,.{digits}f}"
        gain = f"{paired.difference:+,.{digits}f}"
        if math.isnan(paired.low):
            shared = "on a single seed" if found.seeds == 1 else "but shares only one seed with its rival"
            headline = f"{winner} is ahead on {family} with a {what} of {score}, {shared}."
            detail = f"It is {ahead}. One seed says nothing of how sure that is; more seeds would."
            tiles.append(Tile(gain, f"over {name}; one seed in common, so no interval"))
        else:
            tiles.append(Tile(gain, f"over {name}; 95% interval {between}, p = {paired.p_value:.2g}"))
            if abs(paired.difference) < 0.5 * 10.0**-digits:
                headline = f"{winner} and {name} do equally well on {family}: {what} {score}{over}."
                detail = f"The 95% interval of their difference is {between}, paired over {_count(paired.n, 'seed')}."
            elif paired.low > 0:
                headline = f"{winner} is best on {family}: {what} {score}{over}, {ahead}."
                detail = f"The 95% interval of that difference is {between}, paired over {_count(paired.n, 'seed')}."
            else:
                headline = f"{winner} leads on {family} with a {what} of {score}{over}, but not clearly."
                detail = (
                    f"It is {ahead}; the 95% interval of that difference, {between}, paired over "
                    f"{_count(paired.n, 'seed')}, includes no difference at all."
                )
    if found.metric is TARGET_VALUE:
        tiles += _reference_tiles(records)
    paper = paper_accuracy(family)
    if found.best[0] in paper:
        tiles.append(Tile(f"{paper[found.best[0]].average:.4f}", f"{winner} in the paper, for its own data and budget"))
    contexts = {record.get("target_contexts") for record in records}
    if len(contexts) == 1 and None not in contexts:
        tiles.append(Tile(f"{contexts.pop():,}", "target contexts to evaluate on, which no method saw"))
    return Answer(headline, detail, tiles)


def _reference_tiles(records: Sequence[Record]) -> list[Tile]:
    """What values in the user's unit lie between: the best constant arm's and the best arm's of every context."""
    tiles = []
    for name, text in (
        ("target_best_value", "value of the best arm of every context: no policy has more"),
        ("target_constant_value", "value of the best constant arm: what needs no policy"),
        ("logger_value", "what the policy that wrote the log earned in the source"),
    ):
        mean = Mean.of([record.get(name) for record in records])
        if mean.value is not None:
            tiles.append(Tile(f"{mean.value:,.{decimals(mean.value)}f}", text))
    return tiles


def _without_labels(family: str, records: Sequence[Record]) -> Answer:
    methods = _count(len({(record["method"], record["variant"]) for record in records}), "method")
    return Answer(
        f"{methods.capitalize()} ran on {family}; how good they are in the target is not known: the target has no "
        "labels.",
        "The page shows what can be known without them: rewards and regret in the source, which arms are chosen in the "
        "target, and the observable terms of the bound.",
    )


def _of_ablation(family: str, records: Sequence[Record]) -> Answer | None:
    rows = ablation_rows(records)
    full = [row for row in rows if row.letters == "RPD"]
    if not full:
        return None
    sentences, tiles = [], []
    for row in full:
        tested = [r for r in rows if (r.pair, r.base) == (row.pair, row.base) and r.p_holm is not None]
        clear = [r for r in tested if r.p_holm is not None and r.p_holm < 0.05]
        text = f"{row.base} with R, P and D" + (f", {row.pair}" if len({r.pair for r in full}) > 1 else "")
        tiles.append(Tile(_score(row), f"{row.metric.name} of {text}, {_count(len(row.seeds), 'seed')}"))
        if tested:  # the full form itself is not among them
            sentences.append(
                f"Recipe {text}: {len(clear)} of {len(tested)} reduced forms differ beyond chance (Holm, 5%)."
            )
    best = max(full, key=lambda row: -math.inf if row.score is None else row.score)
    headline = f"With R, P and D together, {best.base} reaches a {best.metric.name} of {_score(best)} on {family}."
    return Answer(headline, " ".join(sentences[:4]), tiles[:4])


def _score(row: AblationRow) -> str:
    return Mean(row.score, row.score_spread, 1).text(row.metric.digits(row.score))


def _of_sweep(family: str, records: Sequence[Record]) -> Answer:
    rows = summarise(records)
    best = max(rows, key=lambda row: row.rank)
    settings = _count(len({row.variant for row in rows}), "setting")
    score = Mean(best.score.value, 0.0, 1).text(best.metric.digits(best.score.value))
    detail = "The best is known from the target's rewards, which nobody has before the hand-over."
    headline = (
        f"Of {settings} on {family}, {best.variant} is best: {label(best.method)} has a {best.metric.name} of {score}."
    )
    return Answer(headline, detail)


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"
