"""The page of ``benchmarks/records/service-load.json`` and ``service-kill.json``."""

from __future__ import annotations

from statistics import median
from typing import Any

from pages.runs import fill


def service_page(load: dict[str, Any], kill: dict[str, Any]) -> str:
    """The page as text."""
    turns = zip(load["turns"]["service"], load["turns"]["bare"], strict=True)
    kills = []
    for name, log in kill["logs"].items():
        wrong = [log[f"{what}_events"] + log[f"{what}_rewards"] for what in ("lost", "double", "altered")]
        kills.append([
            name, str(log["kills"]), f"{log['acknowledged_events']:,}", f"{log['acknowledged_rewards']:,}",
            *map(str, wrong), f"{log['median_start_seconds']:.1f} s", f"{log['slowest_start_seconds']:.1f} s",
        ])  # fmt: skip
    return fill(
        "service", load=load, kill=kill, kills=kills, ratios=[ours["rate"] / bare["rate"] for ours, bare in turns],
        bare={name: median(turn[name] for turn in load["turns"]["bare"]) for name in ("median_ms", "p99_ms")},
        cpu_of_start=kill["logs"]["sqlite"].get("start_cpu_seconds"),
    )  # fmt: skip
