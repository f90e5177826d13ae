"""Write the report of a folder of runs, which is one HTML page and a file per figure.

``write_report`` draws the figures and renders the page. ``build_content`` chooses the sections and the headline.
"""

from __future__ import annotations

import base64
import io
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import matplotlib
from matplotlib.figure import Figure

import daband
from daband._files import write_bytes
from daband.bench._records import Record, group_by
from daband.bench.report import _method_summaries as summaries
from daband.bench.report import _sections as sections
from daband.bench.report._figures import MPLSTYLE
from daband.bench.report._method_summaries import MethodComparison, label
from daband.bench.report._run_files import RunFiles, load_runs
from daband.bench.report._sections import Section, Table, caption
from daband.errors import InvalidInput

#: File formats of figures.
FORMATS = ("svg", "png", "pdf")
#: Maximum number of variants of an ablation that are shown in detail.
_MAX_VARIANTS = 4


def write_report(folder: str | Path, *, pair: str | None = None, formats: Sequence[str] = FORMATS) -> Path:
    """Write a report into a folder of runs and return the path of its page.

    ``report.html`` needs no other file. ``report/figures`` gets every figure in ``formats``; older figures there are
    removed.

    Args:
        folder: a folder that ``daband bench``, ``ablate`` or ``run`` wrote.
        pair: the pair that is shown in detail if a data set has several; the first by default.
        formats: file formats of the figures, out of "svg", "png" and "pdf".
    """
    folder = Path(folder)
    figures_folder = folder / "report" / "figures"
    with matplotlib.rc_context(fname=MPLSTYLE):
        content = build_content(folder, pair=pair)
        shutil.rmtree(figures_folder, ignore_errors=True)
        figures_folder.mkdir(parents=True)
        images = {}
        for drawing in (drawing for section in content["sections"] for drawing in section.drawings):
            files = {"svg": _figure_bytes(drawing.figure, "svg")}
            drawing.figure.set_layout_engine("none")  # the layout is computed; other formats reuse it
            files |= {suffix: _figure_bytes(drawing.figure, suffix) for suffix in formats if suffix != "svg"}
            for suffix in formats:
                (figures_folder / f"{drawing.name}.{suffix}").write_bytes(files[suffix])
            images[drawing.name] = base64.b64encode(files["svg"]).decode()
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.tests["bold"] = Table.is_bold
    made_by = f"Made by daband {daband.__version__} from the folder {folder.resolve().name}."
    page = templates.get_template("report.html").render(**content, images=images, made_by=made_by)
    write_bytes(folder / "report.html", page.encode())
    return folder / "report.html"


def _figure_bytes(figure: Figure, suffix: str) -> bytes:
    """Return the content of a figure's file in the format ``suffix``."""
    buffer = io.BytesIO()
    # Without dates, so that equal runs give equal files.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[suffix]
    figure.savefig(buffer, format=suffix, dpi=200, metadata=metadata)
    return buffer.getvalue()


def build_content(folder: Path, *, pair: str | None = None) -> dict[str, Any]:
    """Return the values of the page's template: title, headline, ``lead`` (the first paragraph) and sections."""
    runs = load_runs(folder)
    pairs = list(dict.fromkeys(run.record["pair"] for run in runs))
    if pair is not None and pair not in pairs:
        raise InvalidInput(f"there is no run of the pair {pair!r} in {folder} (there are: {', '.join(pairs)})")
    families = group_by(runs, lambda run: summaries.get_data_set(run.record["pair"]))
    descriptions = {
        family: _describe_result([run.record for run in family_runs], family)
        for family, family_runs in families.items()
    }
    all_sections = sections.assessment_sections(runs)
    for family, family_runs in families.items():
        detailed_pair = pair if pair and summaries.get_data_set(pair) == family else family_runs[0].record["pair"]
        text = [" ".join(descriptions[family])] if len(families) > 1 else []
        all_sections += [Section(family, text, level=2), *_build_data_set_sections(family, family_runs, detailed_pair)]
    all_sections += [*sections.warning_sections(runs), sections.setup_section(runs)]
    detail = next(iter(descriptions.values()))[1] if len(families) == 1 else ""
    return {
        "title": f"daband: {', '.join(families)}",
        "headline": " ".join(headline for headline, _ in descriptions.values()),
        "lead": f"{detail} {_describe_budget([run.record for run in runs])}".strip(),
        "sections": all_sections,
    }


def _build_data_set_sections(family: str, runs: Sequence[RunFiles], detailed_pair: str) -> list[Section]:
    """Return the sections of a data set (``family``), with one pair in detail."""
    pairs = group_by(runs, lambda run: run.record["pair"])
    details = sections.detail_sections(detailed_pair, _select_runs(pairs[detailed_pair]))
    if len(pairs) == 1:
        return [*sections.result_sections(detailed_pair, runs), *details]
    compared_records = [run.record for run in runs if summaries.get_role(run.record) == "comparison"]
    tables = sections.pairs_tables(family, compared_records)
    all_sections = [Section("All pairs", tables=tables)] if tables else []
    for name, pair_runs in pairs.items():
        for section in sections.result_sections(name, pair_runs):
            all_sections.append(replace(section, title=f"{name}: {section.title}", drawings=(), folded=True))
    return [*all_sections, *(replace(section, title=f"{section.title}: {detailed_pair}") for section in details)]


def _select_runs(runs: Sequence[RunFiles]) -> list[RunFiles]:
    """Return the runs of the comparison of methods; if there is none, the runs of the best variants of the ablation."""
    compared_runs = [run for run in runs if summaries.get_role(run.record) == "comparison"]
    if compared_runs:
        return compared_runs
    ranked = sorted(summaries.summarise([run.record for run in runs]), key=lambda row: -row.rank)
    best_keys = [row.key for row in ranked[:_MAX_VARIANTS]]
    return [run for run in runs if run.key in best_keys]


def _describe_result(records: Sequence[Record], family: str) -> tuple[str, str]:
    """Return the headline on the result of a data set, and a sentence with details such as the interval."""
    if not summaries.filter_labelled(records):
        n_methods = len({summaries.get_key(record) for record in records})
        return caption("unknown", methods=n_methods, family=family), caption("unknown_detail")
    records_by_role = group_by(records, summaries.get_role)
    result = summaries.find_best_method(records_by_role.get("comparison") or records)
    if result is None:
        return f"No method ran on every pair of {family}, so there is no winner yet.", ""
    remark = "" if "comparison" in records_by_role else " " + caption("chosen_in_the_target")
    headline, detail = _describe_comparison(family, result, len({record["pair"] for record in records}))
    return headline, detail + remark


def _describe_budget(records: Sequence[Record]) -> str:
    """Return a sentence with the number of runs, seeds and rounds."""
    rounds = sorted({record["rounds"] for record in records})
    budget = f"{rounds[0]:,}" if len(rounds) == 1 else f"{rounds[0]:,} to {rounds[-1]:,}"
    rules = sorted({str(record.get("selection", "none")) for record in records} - {"none"})
    n_seeds = len({record["seed"] for record in records})
    return caption("lead", runs=len(records), seeds=n_seeds, budget=budget, rules=", ".join(rules))


def _describe_comparison(family: str, result: MethodComparison, n_pairs: int) -> tuple[str, str]:
    """Return a headline with the best method, and a detail with its difference to ``result.rival``."""
    digits, paired = result.metric.count_decimals(result.mean.value), result.paired
    values: dict[str, Any] = {
        "kind": "alone", "family": family, "name": label(*result.best), "metric": result.metric.name,
        "seeds": result.mean.seeds, "pairs": n_pairs, "score": f"{result.mean.value:,.{digits}f}",
    }  # fmt: skip
    if paired is None or result.rival is None:
        return caption("winner", **values), ""
    is_equal = abs(paired.difference) < 0.5 * 10.0**-digits
    kind = "equal" if is_equal else "clear" if paired.low > 0 else "not clear"
    values |= {
        "kind": "one seed" if math.isnan(paired.low) else kind, "rival": label(*result.rival), "paired": paired.n_seeds,
        "ahead": f"{paired.difference:,.{digits}f}",
        "between": f"{paired.low:+,.{digits}f} to {paired.high:+,.{digits}f}",
    }  # fmt: skip
    return caption("winner", **values), caption("winner_detail", **values)
