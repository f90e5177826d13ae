"""The answer in a sentence: who is best in the target, by how much, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from daband.experiments.ablation import ablation_rows
from daband.report.document import Tile
from daband.report.reference import paper_accuracy
from daband.report.runs import Record
from daband.report.statistics import Verdict, pair_family, role_of, verdict
from daband.report.style import label

__all__ = ["Answer", "answer_of", "lead_of"]


@dataclass(frozen=True)
class Answer:
    """A headline, what qualifies it, and its numbers."""

    headline: str
    detail: str = ""
    tiles: list[Tile] = field(default_factory=list)


def answer_of(records: Sequence[Record]) -> Answer:
    """The answer that the records of one data set give: of a comparison, else of an ablation, else of a sweep."""
    family = pair_family(records[0]["pair"])
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


def _of_comparison(family: str, found: Verdict, records: Sequence[Record]) -> Answer:
    winner = label(*found.best)
    pairs = len({record["pair"] for record in records})
    over = f", the mean of {pairs} pairs" if pairs > 1 else ""
    spread = f" ± {found.spread:.3f}" if found.seeds > 1 else ""
    tiles = [Tile(f"{found.accuracy:.3f}{spread}", f"target accuracy of {winner}, {_count(found.seeds, 'seed')}{over}")]
    paired, rival = found.paired, found.rival
    headline = f"{winner} reaches a target accuracy of {found.accuracy:.3f} on {family}{over}."
    detail = ""
    if paired is not None and rival is not None:
        name = label(*rival)
        ahead = f"{paired.difference:.3f} above {name}"
        between = f"{paired.low:+.3f} to {paired.high:+.3f}"
        if math.isnan(paired.low):
            headline = (
                f"{winner} is ahead on {family} with a target accuracy of {found.accuracy:.3f}, on a single seed."
            )
            detail = f"It is {ahead}. One seed says nothing of how sure that is; more seeds would."
            tiles.append(Tile(f"{paired.difference:+.3f}", f"over {name}; one seed, so no interval"))
        else:
            tiles.append(
                Tile(f"{paired.difference:+.3f}", f"over {name}; 95% interval {between}, p = {paired.p_value:.2g}")
            )
            if abs(paired.difference) < 0.0005:
                headline = (
                    f"{winner} and {name} do equally well on {family}: target accuracy {found.accuracy:.3f}{over}."
                )
                detail = f"The 95% interval of their difference is {between}, paired over {_count(paired.n, 'seed')}."
            elif paired.low > 0:
                headline = f"{winner} is best on {family}: target accuracy {found.accuracy:.3f}{over}, {ahead}."
                detail = f"The 95% interval of that difference is {between}, paired over {_count(paired.n, 'seed')}."
            else:
                headline = (
                    f"{winner} leads on {family} with a target accuracy of {found.accuracy:.3f}{over}, but not clearly."
                )
                detail = (
                    f"It is {ahead}; the 95% interval of that difference, {between}, paired over "
                    f"{_count(paired.n, 'seed')}, includes no difference at all."
                )
    paper = paper_accuracy(family)
    if found.best[0] in paper:
        tiles.append(Tile(f"{paper[found.best[0]].average:.4f}", f"{winner} in the paper, for its own data and budget"))
    contexts = {record.get("target_contexts") for record in records}
    if len(contexts) == 1 and None not in contexts:
        tiles.append(Tile(f"{contexts.pop():,}", "target contexts to judge by, which no method saw"))
    return Answer(headline, detail, tiles)


def _of_ablation(family: str, records: Sequence[Record]) -> Answer | None:
    rows = ablation_rows(records)
    full = [row for row in rows if row.letters == "RPD"]
    if not full:
        return None
    said, tiles = [], []
    for row in full:
        tested = [r for r in rows if (r.pair, r.base) == (row.pair, row.base) and r.p_holm is not None]
        clear = [r for r in tested if r.p_holm is not None and r.p_holm < 0.05]
        text = f"{row.base} with R, P and D" + (f", {row.pair}" if len({r.pair for r in full}) > 1 else "")
        tiles.append(Tile(f"{row.accuracy:.3f}", f"target accuracy of {text}, {_count(len(row.seeds), 'seed')}"))
        if tested:  # the full form itself is not among them
            said.append(f"Recipe {text}: {len(clear)} of {len(tested)} reduced forms differ beyond chance (Holm, 5%).")
    best = max(full, key=lambda row: row.accuracy)
    headline = f"With R, P and D together, {best.base} reaches a target accuracy of {best.accuracy:.3f} on {family}."
    return Answer(headline, " ".join(said[:4]), tiles[:4])


def _of_sweep(family: str, records: Sequence[Record]) -> Answer:
    groups: dict[tuple[str, str, str], list[float]] = {}
    for record in records:
        key = (record["pair"], record["method"], record["variant"])
        groups.setdefault(key, []).append(float(record["target_accuracy"]))
    best = max(groups, key=lambda key: sum(groups[key]) / len(groups[key]))
    mean = sum(groups[best]) / len(groups[best])
    settings = _count(len({variant for _, _, variant in groups}), "setting")
    detail = "The best is known from the target's rewards, which nobody has before the hand-over."
    return Answer(f"Of {settings} on {family}, {best[2]} is best: {label(best[1])} reaches {mean:.3f}.", detail)


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"
