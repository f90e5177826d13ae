"""The page of ``benchmarks/records/service-load.json`` and ``service-kill.json``."""

from __future__ import annotations

from statistics import median
from typing import Any

__all__ = ["service_page"]


def service_page(load: dict[str, Any], kill: dict[str, Any]) -> str:
    """The page as text."""
    service, bare = load["rate"]["service"], load["rate"]["bare"]
    spread = load["p99_ms"] / load["median_ms"]
    machine = load["machine"]
    of_bare = {name: median(turn[name] for turn in load["turns"]["bare"]) for name in ("median_ms", "p99_ms")}
    turns = zip(load["turns"]["service"], load["turns"]["bare"], strict=True)
    ratios = [ours["rate"] / theirs["rate"] for ours, theirs in turns]
    cpu_of_start = kill["logs"]["sqlite"].get("start_cpu_seconds")
    started = [] if cpu_of_start is None else [f"A start takes {cpu_of_start:.1f} s of CPU time."]
    lines = [
        "# The service under load, and killed",
        "",
        "<!-- Written by benchmarks/results_pages.py from service-load.json and service-kill.json. Do not edit. -->",
        "",
        "## Load",
        "",
        f"{load['clients']} clients with open connections decide and reward in turns, on {machine['cores']} cores that",
        "they share with the service: LinUCB, 32 numbers, 10 arms, the log in SQLite on disk, learning and watching",
        "on. The bare endpoint runs on the same framework and server: it reads the JSON, writes a row of the same size",
        "by the same group commit, and answers. Turns of the two alternate; medians over turns.",
        "",
        "|  | requests a second | median | p99 |",
        "| --- | ---: | ---: | ---: |",
        f"| `daband serve` | {service:,.0f} | {load['median_ms']:.1f} ms | {load['p99_ms']:.1f} ms |",
        f"| bare endpoint | {bare:,.0f} | {of_bare['median_ms']:.1f} ms | {of_bare['p99_ms']:.1f} ms |",
        "",
        f"That is {load['ratio']:.0%} of the bare endpoint (goal: 60%); p99 is {spread:.1f} times the median",
        "(goal: 5).",
        f"By turn: {', '.join(f'{one:.0%}' for one in ratios)}. The load of the machine was {machine['load']:.1f}",
        "after the last turn.",
        "",
    ]
    soak = load["soak"]
    if soak is not None:
        lines += [
            "## Memory",
            "",
            f"{soak['minutes']:g} minutes at {soak['rate']:,.0f} requests a second ({soak['requests']:,} in all,",
            f"{soak['wrong']} of them not answered with 200), in megabytes:",
            "",
            "| process | at the start | second third | last third | most |",
            "| --- | ---: | ---: | ---: | ---: |",
        ]
        for name, memory in soak["memory_mb"].items():
            lines.append(
                f"| {name} | {memory['start']:.0f} | {memory['second_third']:.0f} | {memory['last_third']:.0f} "
                f"| {memory['most']:.0f} |"
            )
        lines.append("")
    lines += [
        "## Killed with SIGKILL",
        "",
        "Four clients decide and reward all the time, and repeat what got no answer. The service and its worker are",
        "killed at random moments and started again.",
        "",
        "| log | kills | acknowledged events | rewards | lost | twice | altered | start, median | start, slowest |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, one in kill["logs"].items():
        lost, twice, altered = (
            one[f"{what}_events"] + one[f"{what}_rewards"] for what in ("lost", "double", "altered")
        )
        lines.append(
            f"| {name} | {one['kills']} | {one['acknowledged_events']:,} | {one['acknowledged_rewards']:,} | {lost} "
            f"| {twice} | {altered} | {one['median_start_seconds']:.1f} s | {one['slowest_start_seconds']:.1f} s |"
        )
    lines += [
        "",
        "A start is counted from the new process to its first answer (goal: 5 s). The load of the machine was",
        f"{kill['machine']['load']:.1f} on {kill['machine']['cores']} cores at the end.",
        *started,
        "",
        f"Python {machine['python']}; commits {load['commit']} (load), {kill['commit']} (kills)"
        + (f" and {soak['commit']} (memory)." if soak is not None else "."),
        "",
        "```",
        "python benchmarks/service_load.py --soak 20 --json benchmarks/records/service-load.json",
        "python benchmarks/service_kill.py --kills 50 --json benchmarks/records/service-kill.json",
        "```",
        "",
    ]
    return "\n".join(lines)
