"""A folder of runs as a document: the answer first, what is known without labels, each data set, then what ran."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from daband.errors import InvalidInput
from daband.experiments import TARGET_ACCURACY, Record, metric_of
from daband.files import read_json
from daband.report.answers import Answer, answer_of, lead_of
from daband.report.document import Block, Document, Folded, Section, Text
from daband.report.reference import paper_accuracy
from daband.report.runs import RunFiles, load_runs
from daband.report.sections_assessment import assessment_sections
from daband.report.sections_decision import decision_sections
from daband.report.sections_learning import continued_blocks, learning_blocks
from daband.report.sections_policy import policy_blocks
from daband.report.sections_results import by_class_blocks, comparison_blocks, pairs_blocks, side_by_side
from daband.report.sections_setup import setup_blocks, warnings_of
from daband.report.sections_variants import ablation_blocks, sweep_blocks
from daband.report.statistics import pair_family, role_of, verdict
from daband.report.summary import labelled, summarise

__all__ = ["assemble"]

_MOST_SWEPT = 4
"""Settings of a sweep that are looked at closely."""


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
    sweep = _sweep_notes(folder)
    families = list(dict.fromkeys(pair_family(name) for name in pairs))
    answers = {
        family: answer_of([run.record for run in runs if pair_family(run.record["pair"]) == family])
        for family in families
    }
    sections = [*decision_sections(runs), *assessment_sections(runs)]
    messages = warnings_of(runs)
    for family in families:
        mine = [run for run in runs if pair_family(run.record["pair"]) == family]
        closely = pair if pair is not None and pair_family(pair) == family else mine[0].record["pair"]
        sections += _data_set(family, mine, closely, sweep, answers[family] if len(families) > 1 else None)
    if messages:
        sections.append(
            Section("What to know before trusting this", [Text(message, warning=True) for message in messages], 2)
        )
    sections.append(Section("What ran", setup_blocks(runs), 2))
    only = answers[families[0]] if len(families) == 1 else None
    return Document(
        title=f"daband: {', '.join(families)}",
        headline=" ".join(answer.headline for answer in answers.values()),
        lead=" ".join(part for part in (only.detail if only else "", lead_of([run.record for run in runs])) if part),
        tiles=only.tiles if only else [],
        sections=sections,
    )


def _data_set(
    family: str, runs: Sequence[RunFiles], closely: str, sweep: dict[str, Any], answer: Answer | None
) -> list[Section]:
    pairs = list(dict.fromkeys(run.record["pair"] for run in runs))
    compared = [run for run in runs if role_of(run.record) == "comparison"]
    here = [run for run in runs if run.record["pair"] == closely]
    heading = Section(family, [], 2)
    if len(pairs) == 1:
        return [heading, *_results(closely, here, sweep), *_closer(closely, here)]
    if answer is not None:
        heading.blocks.append(Text(f"{answer.headline} {answer.detail}".strip()))
    sections = [heading]
    if compared:
        sections.append(Section("Every pair", side_by_side(pairs_blocks(family, [run.record for run in compared]))))
    folded: list[Block] = []
    for name in pairs:
        mine = [run for run in runs if run.record["pair"] == name]
        blocks = [block for section in _results(name, mine, sweep, with_figures=False) for block in section.blocks]
        folded.append(Folded(name, blocks))
    sections.append(Section("Each pair by itself", folded))
    closer = _closer(closely, here)
    if closer:
        note = f"The figures below are of one pair, {closely}; the option --pair of daband report chooses another."
        sections.append(Section(f"A closer look: {closely}", [Text(note)]))
    return [*sections, *closer]


def _results(pair: str, runs: Sequence[RunFiles], sweep: dict[str, Any], *, with_figures: bool = True) -> list[Section]:
    """What came out on one pair."""
    records: dict[str, list[Record]] = {"comparison": [], "ablation": [], "sweep": []}
    for run in runs:
        records[role_of(run.record)].append(run.record)
    arrange = side_by_side if with_figures else list
    sections = []
    if records["comparison"]:
        blocks = comparison_blocks(pair, records["comparison"], with_figure=with_figures)
        shared = any(run.config().get("policy", {}).get("arms") == "shared" for run in runs[:1])
        # With shared arms, arm 3 is another thing in every round: there are no classes.
        classes = [] if shared else by_class_blocks(pair, records["comparison"], with_figure=with_figures)
        sections.append(Section(_title(records["comparison"]), arrange([*blocks, *classes])))
        note = _budget_note(pair, runs)
        if note and with_figures:
            sections[-1].blocks.append(Text(note))
    if records["ablation"]:
        sections.append(
            Section(
                "What R, P and D are worth",
                arrange(ablation_blocks(pair, records["ablation"], with_figure=with_figures)),
            )
        )
    if records["sweep"]:
        sections.append(
            Section("The sweep", arrange(sweep_blocks(pair, records["sweep"], sweep, with_figure=with_figures)))
        )
    return sections


def _closer(pair: str, runs: Sequence[RunFiles]) -> list[Section]:
    """How it came about on one pair: of the comparison, or where there is none, of all runs."""
    compared = _looked_at(runs)
    found = verdict([run.record for run in compared])
    best, rival = (None, None) if found is None else (found.best, found.rival)
    if found is None and compared and not labelled([run.record for run in compared]):
        best = compared[-1].key  # nobody knows which is best; presets list the simplest method first
    sections = []
    continued = continued_blocks(pair, compared)
    if continued:
        sections.append(Section("In the target, with its rewards", continued))
    seen = policy_blocks(pair, compared, best, rival)
    if seen:
        sections.append(Section("What the policy sees", seen))
    learning = learning_blocks(pair, compared, best)  # the bound stands last: an assessment says more
    if learning:
        sections.append(Section("Learning in the source", learning))
    return sections


def _title(records: Sequence[Record]) -> str:
    if not labelled(records):
        return "What is known without target labels"
    return "Accuracy in the target" if metric_of(records) is TARGET_ACCURACY else "Value in the target"


def _looked_at(runs: Sequence[RunFiles]) -> list[RunFiles]:
    """The runs of the comparison; without one the full and the empty form of each ablation, or the best of a sweep."""
    roles = {role: [run for run in runs if role_of(run.record) == role] for role in ("comparison", "ablation")}
    if roles["comparison"]:
        return roles["comparison"]
    if roles["ablation"]:
        return [run for run in roles["ablation"] if run.key[1].endswith((":RPD", ":none"))]
    ranked = sorted(summarise([run.record for run in runs]), key=lambda row: -row.rank)
    best = [(row.method, row.variant) for row in ranked[:_MOST_SWEPT]]
    return [run for run in runs if run.key in best]


def _budget_note(pair: str, runs: Sequence[RunFiles]) -> str:
    """What differs from the paper's experiment, where the paper's numbers stand beside ours."""
    if not paper_accuracy(pair):
        return ""
    options = next((run.config().get("run", {}).get("pair_options") for run in runs if run.path is not None), None)
    told = ", ".join(f"{name} = {value}" for name, value in options.items()) if options else "the pair's defaults"
    rounds = f"{runs[0].record['rounds']:,}"
    return (
        f"The paper's numbers are for its own data and budget; these runs had {rounds} source rounds and {told}. "
        "Numbers side by side are comparable only as far as these agree."
    )


def _sweep_notes(folder: Path) -> dict[str, Any]:
    path = folder / "sweep.json"
    if not path.is_file():
        return {}
    content = read_json(path)
    return content if isinstance(content, dict) else {}
