"""The page of ``benchmarks/records/latency.json``."""

from __future__ import annotations

from typing import Any

__all__ = ["latency_page"]


def latency_page(record: dict[str, Any]) -> str:
    """The page as text."""
    machine, cases = record["machine"], record["cases"]
    missed = [case["case"] for case in cases if case["met"] is False]
    told = "Every goal is met." if not missed else f"Missed: {', '.join(missed)}."
    lines = [
        "# Latency of a deployed policy",
        "",
        "<!-- Written by benchmarks/results_pages.py from benchmarks/records/latency.json. Do not edit. -->",
        "",
        "One row, one thread, after loading: what `deployed.decide` takes from the row to the decision, checks and",
        f"warnings included. {record['dimensions']} numbers or columns, {record['arms']} arms, small images of",
        f"{' x '.join(str(size) for size in record['image'])}; the networks are those of the default recipe. *Bare* is",
        "the arithmetic alone, in plain numpy (in torch for images), with the norms folded in and nothing checked.",
        "*policy.select* is the policy that was exported, on the array that the row becomes. Medians over",
        f"{record['calls']:,} calls, in turns, in microseconds of the thread's CPU time.",
        "",
        "|  | decide | its fastest call | bare | ratio | policy.select | goal | met |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    for case in cases:
        met = {True: "yes", False: "no", None: ""}[case["met"]]
        lines.append(
            f"| {case['case']} | {case['deployed_us']:,.0f} | {case['fastest_us']:,.0f} | {case['bare_us']:,.0f} "
            f"| {case['ratio']:.2f} | {case['policy_us']:,.0f} | {case['goal']} | {met} |"
        )
    lines += [
        "",
        told,
        "",
        "CPU seconds to import daband once numpy is imported, and to load a file; the best of five processes:",
        "",
        "| file | numba installed | import | load | imports torch |",
        "| --- | --- | ---: | ---: | --- |",
    ]
    for row in record["loading"]:
        lines.append(
            f"| {row['file']} | {'yes' if row['numba'] else 'no'} | {row['import_seconds']:.2f} "
            f"| {row['load_seconds']:.3f} | {'yes' if row['imports_torch'] else 'no'} |"
        )
    lines += [
        "",
        f"Measured on one thread of {machine['processor']} ({machine['cores']} cores, load {machine['load']:.1f} from",
        f"other work), Python {machine['python']}, numpy {machine['numpy']}, torch {machine['torch']}, commit",
        f"{record['commit']}.",
        "",
        "```",
        record["command"],
        "```",
        "",
    ]
    return "\n".join(lines)
