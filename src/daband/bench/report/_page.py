"""A folder of runs as a report: the answer first, what is known without labels, each data set, then what ran.

One HTML page, the same as Markdown, tables for LaTeX, and every figure as a file.
"""

from __future__ import annotations

import io
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

import daband
from daband._files import read_json, write_bytes, write_text
from daband.bench._ablation import AblationRow, ablation_rows
from daband.bench._records import TARGET_ACCURACY, TARGET_VALUE, Record, decimals, group_by, metric_of
from daband.bench.report import _method_summaries as summaries
from daband.bench.report import _sections_results as sections_results
from daband.bench.report import _sections_runs as sections_runs
from daband.bench.report._document import Block, Document, Drawing, Folded, Section, Table, Text, Tile
from daband.bench.report._method_styles import FIGURES, label
from daband.bench.report._method_summaries import Mean, MethodComparison, MethodSummary
from daband.bench.report._rendering import caption, render
from daband.bench.report._run_files import RunFiles, load_runs
from daband.errors import InvalidInput

FORMATS = ("svg", "png", "pdf")
_MOST_SWEPT = 4
"""Settings of a sweep that are looked at closely."""
_REFERENCE_TILES = ("target_best_value", "target_constant_value", "logger_value")
"""What values in the user's unit lie between."""


def write_report(folder: str | Path, *, pair: str | None = None, formats: Sequence[str] = FORMATS) -> Path:
    """Write a report into a folder of runs and return the path of its page.

    ``report.html`` stands alone; ``report.md`` has the same content; ``report/figures`` holds every figure in
    ``formats``, and ``report/tables`` every table for LaTeX, with all of them in ``report/tables.tex``. What an earlier
    report left in these two folders is replaced.

    Args:
        folder: what ``daband bench``, ``ablate``, ``sweep`` or ``run`` filled.
        pair: of a data set with several pairs, the one that is looked at closely; by default the first.
        formats: of the figures' files, out of "svg", "png" and "pdf".
    """
    folder = Path(folder)
    with matplotlib.rc_context(fname=FIGURES):
        document = assemble(folder, pair=pair)
        drawn: dict[str, str] = {}
        files: dict[str, bytes] = {}
        for drawing in document.each(Drawing):
            drawn[drawing.name] = _figure_bytes(drawing.figure, "svg").decode()
            drawing.figure.set_layout_engine("none")  # it is laid out now, and the other formats need not do it again
            for ending in formats:
                content = drawn[drawing.name].encode() if ending == "svg" else _figure_bytes(drawing.figure, ending)
                files[f"{drawing.name}.{ending}"] = content
    files_folder = folder / "report"
    for part in ("figures", "tables"):
        shutil.rmtree(files_folder / part, ignore_errors=True)
        (files_folder / part).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (files_folder / "figures" / name).write_bytes(content)
    tables = {table.name: table.latex() for table in document.each(Table)}
    for name, text in tables.items():
        (files_folder / "tables" / f"{name}.tex").write_text(text, encoding="utf-8")
    preamble = "% Tables of a daband report; they need \\usepackage{booktabs} and \\usepackage{graphicx}.\n\n"
    write_text(files_folder / "tables.tex", preamble + "\n".join(tables.values()))
    made_by = f"Made by daband {daband.__version__} from the folder {folder.resolve().name}."
    picture = next((ending for ending in ("png", "svg", "pdf") if ending in formats), None)
    write_text(folder / "report.md", render("report.md", document=document, picture=picture, made_by=made_by))
    page = render("report.html", document=document, drawn=drawn, made_by=made_by)
    write_bytes(folder / "report.html", page.encode())
    return folder / "report.html"


def markdown_table(rows: Sequence[MethodSummary]) -> str:
    """The comparison of methods on one pair as Markdown."""
    return sections_results.comparison_table(rows, name="methods", about="").markdown()


def _figure_bytes(figure: Figure, ending: str) -> bytes:
    content = io.BytesIO()
    # No date in the files: the same runs give the same figures.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[ending]
    figure.savefig(content, format=ending, dpi=200, transparent=ending == "svg", metadata=metadata)
    return content.getvalue()


def assemble(folder: str | Path, *, pair: str | None = None) -> Document:
    """The document of a folder of runs.

    Args:
        folder: what ``daband bench``, ``ablate``, ``sweep`` or ``run`` filled.
        pair: of a data set with several pairs, the one that is looked at closely; by default the first.
    """
    folder = Path(folder)
    runs = load_runs(folder)
    pairs = list(dict.fromkeys(run.record["pair"] for run in runs))
    if pair is not None and pair not in pairs:
        raise InvalidInput(f"there is no run of the pair {pair!r} in {folder} (there are: {', '.join(pairs)})")
    sweep = read_json(folder / "sweep.json") if (folder / "sweep.json").is_file() else {}
    families = group_by(runs, lambda run: summaries.pair_family(run.record["pair"]))
    answers = {family: _answer_of(family, [run.record for run in of]) for family, of in families.items()}
    sections = [*sections_results.decision_sections(runs), *sections_runs.assessment_sections(runs)]
    for family, of in families.items():
        closely = pair if pair is not None and summaries.pair_family(pair) == family else of[0].record["pair"]
        answer = answers[family] if len(families) > 1 else None
        sections += _data_set(family, of, closely, sweep if isinstance(sweep, dict) else {}, answer)
    messages = sections_runs.warnings_of(runs)
    if messages:
        blocks: list[Block] = [Text(message, warning=True) for message in messages]
        sections.append(Section("What to know before trusting this", blocks, 2))
    sections.append(Section("What ran", sections_runs.setup_blocks(runs), 2))
    only = next(iter(answers.values())) if len(families) == 1 else _Answer("")
    return Document(
        title=f"daband: {', '.join(families)}",
        headline=" ".join(answer.headline for answer in answers.values()),
        lead=" ".join(part for part in (only.detail, _lead_of([run.record for run in runs])) if part),
        tiles=only.tiles,
        sections=sections,
    )


@dataclass(frozen=True)
class _Answer:
    """The result in a sentence, its qualification, and its numbers."""

    headline: str
    detail: str = ""
    tiles: list[Tile] = field(default_factory=list)


def _data_set(
    family: str, runs: Sequence[RunFiles], closely: str, sweep: dict[str, Any], answer: _Answer | None
) -> list[Section]:
    pairs = group_by(runs, lambda run: run.record["pair"])
    closer = _closer(closely, pairs[closely])
    heading = Section(family, [], 2)
    if len(pairs) == 1:
        return [heading, *_results(closely, pairs[closely], sweep), *closer]
    if answer is not None:
        heading.blocks.append(Text(f"{answer.headline} {answer.detail}".strip()))
    sections = [heading]
    compared = [run.record for run in runs if summaries.role_of(run.record) == "comparison"]
    if compared:
        sections.append(
            Section("Every pair", sections_results.side_by_side(sections_results.pairs_blocks(family, compared)))
        )
    folded: list[Block] = []
    for name, of_pair in pairs.items():
        results = _results(name, of_pair, sweep, with_figures=False)
        folded.append(Folded(name, [block for section in results for block in section.blocks]))
    sections.append(Section("Each pair by itself", folded))
    if closer:
        sections.append(Section(f"A closer look: {closely}", [Text(caption("closely", pair=closely))]))
    return [*sections, *closer]


def _results(pair: str, runs: Sequence[RunFiles], sweep: dict[str, Any], *, with_figures: bool = True) -> list[Section]:
    """What came out on one pair."""
    roles = group_by([run.record for run in runs], summaries.role_of)
    blocks: dict[str, list[Block]] = {}
    if "comparison" in roles:
        records = roles["comparison"]
        title = "Accuracy in the target" if metric_of(records) is TARGET_ACCURACY else "Value in the target"
        title = title if summaries.labelled(records) else "What is known without target labels"
        blocks[title] = sections_results.comparison_blocks(pair, records, with_figure=with_figures)
        if not runs[0].shared_arms():  # else there are no classes
            blocks[title] += sections_results.by_class_blocks(pair, records, with_figure=with_figures)
        if with_figures and summaries.paper_accuracy(pair):
            blocks[title].append(Text(_budget_note(runs)))
    if "ablation" in roles:
        blocks["What R, P and D are worth"] = sections_results.ablation_blocks(
            pair, roles["ablation"], with_figure=with_figures
        )
    if "sweep" in roles:
        blocks["The sweep"] = sections_results.sweep_blocks(pair, roles["sweep"], sweep, with_figure=with_figures)
    return [Section(title, sections_results.side_by_side(of) if with_figures else of) for title, of in blocks.items()]


def _closer(pair: str, runs: Sequence[RunFiles]) -> list[Section]:
    """How it came about on one pair: of the comparison, or where there is none, of all runs."""
    compared = _runs_to_show(runs)
    records = [run.record for run in compared]
    result = summaries.verdict(records)
    best, rival = (None, None) if result is None else (result.best, result.rival)
    if result is None and compared and not summaries.labelled(records):
        best = compared[-1].key  # nobody knows which is best; presets list the simplest method first
    parts = {
        "In the target, with its rewards": sections_runs.continued_blocks(pair, compared),
        "What the policy sees": sections_runs.policy_blocks(pair, compared, best, rival),
        "Learning in the source": sections_runs.learning_blocks(pair, compared, best),
    }
    return [Section(title, blocks) for title, blocks in parts.items() if blocks]


def _runs_to_show(runs: Sequence[RunFiles]) -> list[RunFiles]:
    """The runs of the comparison; without one the full and the empty form of each ablation, or the best of a sweep."""
    roles = group_by(runs, lambda run: summaries.role_of(run.record))
    if "comparison" in roles:
        return roles["comparison"]
    if "ablation" in roles:
        return [run for run in roles["ablation"] if run.key[1].endswith((":RPD", ":none"))]
    ranked = sorted(summaries.summarise([run.record for run in runs]), key=lambda row: -row.rank)
    best = [row.key for row in ranked[:_MOST_SWEPT]]
    return [run for run in runs if run.key in best]


def _budget_note(runs: Sequence[RunFiles]) -> str:
    """What differs from the paper's experiment, where the paper's numbers stand beside ours."""
    options = next((run.config().get("run", {}).get("pair_options") for run in runs if run.path is not None), None)
    listed = ", ".join(f"{name} = {value}" for name, value in options.items()) if options else "the pair's defaults"
    return caption("budget", rounds=f"{runs[0].record['rounds']:,}", options=listed)


def _answer_of(family: str, records: Sequence[Record]) -> _Answer:
    """The answer that the records of one data set give: of a comparison, else of an ablation, else of a sweep."""
    if not summaries.labelled(records):
        methods = len({(record["method"], record["variant"]) for record in records})
        return _Answer(caption("unknown", methods=methods, family=family), caption("unknown_detail"))
    compared = [record for record in records if summaries.role_of(record) == "comparison"]
    if compared:
        result = summaries.verdict(compared)
        if result is None:
            return _Answer(f"No method ran on every pair of {family}, so there is no winner yet.")
        return _of_comparison(family, result, compared)
    return _of_ablation(family, records) or _of_sweep(family, records)


def _lead_of(records: Sequence[Record]) -> str:
    """What was run, in two sentences."""
    rounds = sorted({record["rounds"] for record in records})
    budget = f"{rounds[0]:,}" if len(rounds) == 1 else f"{rounds[0]:,} to {rounds[-1]:,}"
    rules = sorted({str(record.get("selection", "none")) for record in records} - {"none"})
    seeds = len({record["seed"] for record in records})
    return caption("lead", runs=len(records), seeds=seeds, budget=budget, rules=", ".join(rules))


def _of_comparison(family: str, result: MethodComparison, records: Sequence[Record]) -> _Answer:
    digits, paired = result.metric.digits(result.mean.value), result.paired
    words: dict[str, Any] = {
        "kind": "alone", "family": family, "name": label(*result.best), "metric": result.metric.name,
        "seeds": result.mean.seeds, "pairs": len({record["pair"] for record in records}),
        "score": f"{result.mean.value:,.{digits}f}",
    }  # fmt: skip
    tiles = [Tile(result.mean.text(digits), caption("winner_tile", **words))]
    if paired is not None and result.rival is not None:
        equal = abs(paired.difference) < 0.5 * 10.0**-digits
        clear = "equal" if equal else "clear" if paired.low > 0 else "not clear"
        words |= {
            "kind": "one seed" if math.isnan(paired.low) else clear, "rival": label(*result.rival), "paired": paired.n,
            "ahead": f"{paired.difference:,.{digits}f}", "p": f"{paired.p_value:.2g}",
            "between": f"{paired.low:+,.{digits}f} to {paired.high:+,.{digits}f}",
        }  # fmt: skip
        tiles.append(Tile(f"{paired.difference:+,.{digits}f}", caption("gain_tile", **words)))
    if result.metric is TARGET_VALUE:
        for name in _REFERENCE_TILES:
            value = Mean.of([record.get(name) for record in records]).value
            if value is not None:
                tiles.append(Tile(f"{value:,.{decimals(value)}f}", caption(name)))
    paper = summaries.paper_accuracy(family).get(result.best[0])
    if paper is not None:
        tiles.append(Tile(f"{paper.average:.4f}", f"{words['name']} in the paper, for its own data and budget"))
    contexts = {record.get("target_contexts") for record in records}
    if len(contexts) == 1 and None not in contexts:
        tiles.append(Tile(f"{contexts.pop():,}", "target contexts to evaluate on, which no method saw"))
    detail = "" if words["kind"] == "alone" else caption("winner_detail", **words)
    return _Answer(caption("winner", **words), detail, tiles)


def _of_ablation(family: str, records: Sequence[Record]) -> _Answer | None:
    rows = ablation_rows(records)
    full = [row for row in rows if row.letters == "RPD"]
    if not full:
        return None
    sentences, tiles = [], []
    for row in full:
        corrected = [r.p_holm for r in rows if (r.pair, r.base) == (row.pair, row.base) and r.p_holm is not None]
        text = f"{row.base} with R, P and D" + (f", {row.pair}" if len({r.pair for r in full}) > 1 else "")
        words = {"metric": row.metric.name, "name": text, "seeds": len(row.seeds), "pairs": 1}
        tiles.append(Tile(_score(row), caption("winner_tile", **words)))
        if corrected:  # the full form itself is not among them
            clear = sum(p < 0.05 for p in corrected)
            sentences.append(caption("ablated_form", text=text, clear=clear, tests=len(corrected)))
    best = max(full, key=lambda row: -math.inf if row.score is None else row.score)
    headline = caption("ablated", base=best.base, metric=best.metric.name, score=_score(best), family=family)
    return _Answer(headline, " ".join(sentences[:4]), tiles[:4])


def _score(row: AblationRow) -> str:
    return Mean(row.score, row.score_deviation, 1).text(row.metric.digits(row.score))


def _of_sweep(family: str, records: Sequence[Record]) -> _Answer:
    rows = summaries.summarise(records)
    best = max(rows, key=lambda row: row.rank)
    score = Mean(best.score.value, 0.0, 1).text(best.metric.digits(best.score.value))
    words = {"family": family, "variant": best.variant, "metric": best.metric.name, "score": score}
    headline = caption("swept", settings=len({row.variant for row in rows}), method=label(best.method), **words)
    return _Answer(headline, caption("swept_detail"))
