"""Write the report of a folder of runs, which is one HTML page and a file per figure.

``write_report`` draws the figures and renders the page. ``build_content`` chooses the sections and
the headline.
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
from daband.base._files import write_bytes
from daband.bench._records import Record, group_by
from daband.bench.report import _method_summaries as summaries
from daband.bench.report import _sections as sections
from daband.bench.report._figures import STYLE_FILE
from daband.bench.report._method_summaries import MethodComparison, get_label
from daband.bench.report._run_files import RunFiles, load_runs
from daband.bench.report._sections import Section, Table, render_caption
from daband.errors import InvalidInput

#: File formats of figures.
FORMATS = ("svg", "png", "pdf")
#: Maximum number of variants of an ablation that are shown in detail.
_MAX_DETAILED_VARIANTS = 4


def write_report(
    folder: str | Path, *, pair: str | None = None, formats: Sequence[str] = FORMATS
) -> Path:
    """Write a report into a folder of runs and return the path of its page.

    ``report.html`` needs no other file. ``report/figures`` gets every figure in ``formats``; older
    figures there are removed.

    Args:
        folder: a folder that ``daband bench``, ``ablate`` or ``run`` wrote.
        pair: the pair that is shown in detail if a data set has several; the first by default.
        formats: file formats of the figures, out of "svg", "png" and "pdf".
    """
    folder = Path(folder)
    figures_folder = folder / "report" / "figures"
    with matplotlib.rc_context(fname=STYLE_FILE):
        content = build_content(folder, pair=pair)
        shutil.rmtree(figures_folder, ignore_errors=True)
        figures_folder.mkdir(parents=True)
        images = {}
        for drawing in (drawing for section in content["sections"] for drawing in section.drawings):
            files = {"svg": _render_figure(drawing.figure, "svg")}
            # the layout is computed; other formats reuse it
            drawing.figure.set_layout_engine("none")
            files |= {
                name: _render_figure(drawing.figure, name) for name in formats if name != "svg"
            }
            for file_format in formats:
                (figures_folder / f"{drawing.name}.{file_format}").write_bytes(files[file_format])
            images[drawing.name] = base64.b64encode(files["svg"]).decode()
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    templates = jinja2.Environment(
        loader=loader,
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


def _render_figure(figure: Figure, file_format: str) -> bytes:
    """Return the content of a figure's file in this format."""
    buffer = io.BytesIO()
    # Dates are omitted, so that equal runs give identical files.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[file_format]
    figure.savefig(buffer, format=file_format, dpi=200, metadata=metadata)
    return buffer.getvalue()


def build_content(folder: Path, *, pair: str | None = None) -> dict[str, Any]:
    """Return the variables of the page's template by name: title, headline, lead (first paragraph)
    and sections.
    """
    runs = load_runs(folder)
    pairs = list(dict.fromkeys(run.record["pair"] for run in runs))
    if pair is not None and pair not in pairs:
        raise InvalidInput(
            f"there is no run of the pair {pair!r} in {folder} (there are: {', '.join(pairs)})"
        )
    runs_by_data_set = group_by(runs, lambda run: summaries.get_data_set(run.record["pair"]))
    result_texts = {
        data_set: _describe_result([run.record for run in data_set_runs], data_set)
        for data_set, data_set_runs in runs_by_data_set.items()
    }
    all_sections: list[Section] = []
    for data_set, data_set_runs in runs_by_data_set.items():
        detailed_pair = (
            pair
            if pair and summaries.get_data_set(pair) == data_set
            else data_set_runs[0].record["pair"]
        )
        texts = [" ".join(result_texts[data_set])] if len(runs_by_data_set) > 1 else []
        all_sections.append(Section(data_set, texts, level=2))
        all_sections += _build_data_set_sections(data_set, data_set_runs, detailed_pair)
    all_sections += [*sections.build_warning_sections(runs), sections.build_setup_section(runs)]
    detail = next(iter(result_texts.values()))[1] if len(runs_by_data_set) == 1 else ""
    return {
        "title": f"daband: {', '.join(runs_by_data_set)}",
        "headline": " ".join(headline for headline, _ in result_texts.values()),
        "lead": f"{detail} {_describe_budget([run.record for run in runs])}".strip(),
        "sections": all_sections,
    }


def _build_data_set_sections(
    data_set: str, runs: Sequence[RunFiles], detailed_pair: str
) -> list[Section]:
    """Return the sections of a data set, with one pair in detail."""
    runs_by_pair = group_by(runs, lambda run: run.record["pair"])
    details = sections.build_detail_sections(
        detailed_pair, _select_runs(runs_by_pair[detailed_pair])
    )
    if len(runs_by_pair) == 1:
        return [*sections.build_result_sections(detailed_pair, runs), *details]
    compared_records = [
        run.record for run in runs if summaries.get_role(run.record) == "comparison"
    ]
    tables = sections.build_pairs_tables(data_set, compared_records)
    all_sections = [Section("All pairs", tables=tables)] if tables else []
    for name, pair_runs in runs_by_pair.items():
        for section in sections.build_result_sections(name, pair_runs):
            all_sections.append(
                replace(section, title=f"{name}: {section.title}", drawings=(), is_folded=True)
            )
    return [
        *all_sections,
        *(replace(section, title=f"{section.title}: {detailed_pair}") for section in details),
    ]


def _select_runs(runs: Sequence[RunFiles]) -> list[RunFiles]:
    """Return the runs of the comparison of methods; if there is none, the runs of the best variants
    of the ablation.
    """
    compared_runs = [run for run in runs if summaries.get_role(run.record) == "comparison"]
    if compared_runs:
        return compared_runs
    ranked_summaries = sorted(
        summaries.summarise([run.record for run in runs]), key=lambda row: -row.sort_score
    )
    best_keys = [row.key for row in ranked_summaries[:_MAX_DETAILED_VARIANTS]]
    return [run for run in runs if run.key in best_keys]


def _describe_result(records: Sequence[Record], data_set: str) -> tuple[str, str]:
    """Return the headline on the result of a data set, and a sentence with details such as the
    interval.
    """
    if not summaries.filter_labelled(records):
        n_methods = len({summaries.get_key(record) for record in records})
        return render_caption("unknown", n_methods=n_methods, data_set=data_set), render_caption(
            "unknown_detail"
        )
    records_by_role = group_by(records, summaries.get_role)
    result = summaries.find_best_method(records_by_role.get("comparison") or records)
    if result is None:
        return f"No method ran on every pair of {data_set}, so there is no winner yet.", ""
    remark = "" if "comparison" in records_by_role else " " + render_caption("chosen_in_the_target")
    headline, detail = _describe_comparison(
        data_set, result, len({record["pair"] for record in records})
    )
    return headline, detail + remark


def _describe_budget(records: Sequence[Record]) -> str:
    """Return a sentence with the number of runs, seeds and rounds."""
    rounds = sorted({record["rounds"] for record in records})
    rounds_text = f"{rounds[0]:,}" if len(rounds) == 1 else f"{rounds[0]:,} to {rounds[-1]:,}"
    rules = sorted({str(record.get("selection", "none")) for record in records} - {"none"})
    n_seeds = len({record["seed"] for record in records})
    return render_caption(
        "lead", n_runs=len(records), n_seeds=n_seeds, rounds=rounds_text, rules=", ".join(rules)
    )


def _describe_comparison(data_set: str, result: MethodComparison, n_pairs: int) -> tuple[str, str]:
    """Return a headline with the best method, and a detail with its difference to
    ``result.rival``.
    """
    n_decimals = result.metric.count_decimals(result.mean.value)
    paired_test = result.paired_test
    caption_values: dict[str, Any] = {
        "kind": "alone",
        "data_set": data_set,
        "best": get_label(*result.best),
        "metric": result.metric.name,
        "n_seeds": result.mean.n_seeds,
        "n_pairs": n_pairs,
        "score": f"{result.mean.value:,.{n_decimals}f}",
    }
    if paired_test is None or result.rival is None:
        return render_caption("winner", **caption_values), ""
    is_equal = abs(paired_test.difference) < 0.5 * 10.0**-n_decimals
    kind = "equal" if is_equal else "clear" if paired_test.low > 0 else "not clear"
    caption_values |= {
        "kind": "one seed" if math.isnan(paired_test.low) else kind,
        "rival": get_label(*result.rival),
        "n_common_seeds": paired_test.n_seeds,
        "difference": f"{paired_test.difference:,.{n_decimals}f}",
        "interval": f"{paired_test.low:+,.{n_decimals}f} to {paired_test.high:+,.{n_decimals}f}",
    }
    return render_caption("winner", **caption_values), render_caption(
        "winner_detail", **caption_values
    )
