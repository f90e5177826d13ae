"""The page of how fast training is, from the records of the scripts that measure it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median
from typing import Any

from pages.runs import fill
from pages.text import number, recipe_hash

Record = dict[str, Any]


def performance(steps: Record, peers: Sequence[Record], choose: Record, waiting: Record, linear: Record) -> str:
    """The page as Markdown."""
    digit, ten_seeds = steps["digit"], steps["accuracy"][0]["target_accuracy"]
    ran = {run["recipe_hash"] for run in digit}
    first = steps["rows"][0]
    usual = [row for row in steps["rows"] if row["variant"] == first["variant"] and "bytes" in row]
    ways = [row["variant"] for row in steps["rows"] if (row["runs"], row["commit"]) == (first["runs"], first["commit"])]
    by_way = {(row["variant"], row["runs"]): row for row in steps["rows"]}
    stacks = sorted({row["runs"] for row in steps["rows"]})
    again = [run for run in digit if run["runs"] == 1 and run["variant"].startswith("as it is")]
    return fill(
        "performance",
        steps=steps,
        digit=[
            [run["variant"], str(run["runs"]), f"{run['seconds']:.1f}", _mean(run["target_accuracy"]), run["commit"]]
            for run in digit
        ],
        which=f"recipe `{digit[0]['recipe_hash']}`, " + ("today's" if ran == {recipe_hash()} else "**an older one**"),
        repeated=len({(run["commit"], str(run["target_accuracy"]), str(run["source_regret"])) for run in again})
        == len({run["commit"] for run in again}),
        ways=[
            [way, *(cell for runs in stacks for cell in _cells(by_way[way, runs]))]
            for way in ways
            if all((way, runs) in by_way for runs in stacks)
        ],
        ways_head=["step", *(f"{what}, {runs} run{'s' * (runs > 1)}" for runs in stacks for what in ("ms", "kernels"))],
        accuracy=[
            [run["commit"], number(mean(own)), number(min(own)), ", ".join(map(number, own))]
            for run in steps["accuracy"]
            for own in (run["target_accuracy"],)
        ],
        equal=[run["commit"] for run in steps["accuracy"] if run["target_accuracy"] == ten_seeds],
        whole=steps.get("table"),
        roofline=[_roofline(row, steps) for row in usual],
        kinds=_kinds(usual),
        peers=[{**record, "table": [_peer(row) for row in record["rows"]]} for record in peers],
        linear=linear,
        linear_head=["", *linear["libraries"]],
        linear_rows=[
            [
                metric,
                *(
                    f"{median(own['values'][name]):,.0f}" if own["values"].get(name) else ""
                    for name in linear["libraries"]
                ),
            ]
            for metric, own in linear["results"].items()
            if own["unit"].endswith("/s")
        ],
        waiting=waiting,
        demo=waiting.get("demo"),
        imports=[
            [f"`import {name}`", f"{own['seconds']:.2f}", f"{own['cpu_seconds']:.2f}"]
            for name, own in waiting["imports"].items()
        ],
        choose=choose,
        choices=[
            [f"{run['rows']:,} x {run['columns']}", f"{run['seconds']:.0f}", f"{run['cpu_seconds']:.0f}", _longest(run)]
            for run in choose["runs"]
        ],
    )


def _cells(row: Record) -> list[str]:
    return [f"{row['milliseconds']:.2f}", f"{row['kernels']:.0f}"]


def _peer(row: Record) -> list[str]:
    return [row["player"], row["version"], f"{row['steps_per_second']:,.1f}", f"{row['ratio']:.2f}"]


def _roofline(row: Record, steps: Record) -> list[str]:
    """A step's time beside what its bytes and its products would take at the rates that the machine reaches."""
    one = next(other for other in steps["rows"] if "bytes" in other and other["runs"] == 1)
    flops = one["flops"] * row["runs"]  # of grouped convolutions the counter takes every group for all
    by_bytes, by_products = (
        1e3 * demand / steps["peaks"][rate]
        for demand, rate in ((row["bytes"], "copy_bytes"), (flops, "product_tf32_flops"))
    )
    wall, kernels = row["milliseconds"], sum(row["kernel_milliseconds"].values())
    numbers = [f"{value:.2f}" for value in (wall, kernels, by_bytes, by_products)]
    return [str(row["runs"]), *numbers, f"{by_bytes / wall:.0%}"]


def _kinds(rows: Sequence[Record]) -> list[list[str]]:
    """Milliseconds of a step's kernels by kind: a column for each number of runs."""
    known = [row["kernel_milliseconds"] for row in rows if "kernel_milliseconds" in row]
    return [[kind, *(f"{own[kind]:.3f}" for own in known)] for kind in (known[0] if known else ())]


def _mean(values: Sequence[float]) -> str:
    return number(sum(values) / len(values)) + (f" ({', '.join(map(number, values))})" if len(values) > 1 else "")


def _longest(run: Record) -> str:
    """The two candidates that take the most processor time."""
    by_time = sorted(run["training_cpu_seconds"].items(), key=lambda one: -one[1])
    return ", ".join(f"{name} {seconds:.0f}" for name, seconds in by_time[:2])
