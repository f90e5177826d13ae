"""The pages of training speed, latency, the service and large logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from pages.text import fill

Record = Mapping[str, Any]
LOG_ROWS = {
    "product float64": "reading and X'X, double precision",
    "fit_log": "`fit_log`, one process",
    "fit_log ray": "`fit_log`, two Ray workers",
    "fit_log ray killed": "`fit_log`, two Ray workers, one killed",
}


def performance(choosing: Record, waiting: Record) -> str:
    """Return the page of training speed."""
    waits = [
        [f"`choose` on {run['rows']:,} rows of {run['columns']} columns", f"{run['seconds']:.0f}"]
        for run in choosing["runs"]
    ]
    waits.append(["`daband demo`", f"{waiting['demo']['seconds']:.0f}"])
    return fill("performance", waits=waits, choosing=choosing, waiting=waiting)


def install(record: Record) -> str:
    """Return the page of the sizes of installations, and the times of imports."""
    rows = []
    for row in record["rows"]:
        names = (
            row["requirement"],
            row["code"].replace("from ", "").replace("import ", "").replace(" ", "."),
        )
        rows.append(
            [f"`{names[0]}`", f"{row['megabytes']:,.0f}", f"`{names[1]}`", f"{row['first']:.2f}"]
        )
    sizes = {row["requirement"]: row["megabytes"] for row in record["rows"]}
    numpy_seconds = min(row["import_numpy"] for row in record["rows"])
    slowest = max(row["import_daband"] for row in record["rows"])
    return fill(
        "install",
        rows=rows,
        record=record,
        sizes=sizes,
        numpy_seconds=numpy_seconds,
        slowest=slowest,
    )


def latency(record: Record) -> str:
    """Return the page of the latency of one decision."""
    rows = [
        [
            case["case"],
            f"{case['deployed_us']:.0f}",
            f"{case['bare_us']:.0f}",
            f"{case['ratio']:.1f}",
            case["goal"],
        ]
        for case in record["cases"]
    ]
    slowest = max(
        case["deployed_us"]
        for case in record["cases"]
        if "image" not in case["case"] and "PNG" not in case["case"]
    )
    return fill("latency", rows=rows, record=record, slowest=slowest)


def service(load: Record, kill: Record) -> str:
    """Return the page of the service under load, and killed."""
    kills = [
        [
            name,
            str(log["kills"]),
            f"{log['acknowledged_events']:,}",
            f"{log['acknowledged_rewards']:,}",
            *(
                str(log[f"{what}_events"] + log[f"{what}_rewards"])
                for what in ("lost", "double", "altered")
            ),
            f"{log['slowest_start_seconds']:.1f} s",
        ]
        for name, log in kill["logs"].items()
    ]
    bare = {
        name: median(turn[name] for turn in load["turns"]["bare"])
        for name in ("median_ms", "p99_ms")
    }
    total = sum(log["acknowledged_events"] for log in kill["logs"].values())
    return fill(
        "service",
        load=load,
        kill=kill,
        kills=kills,
        bare=bare,
        total=total,
        killed=sum(int(row[1]) for row in kills),
    )


def fit_log(records: Sequence[Record]) -> str:
    """Return the page of logs larger than memory."""
    rows = []
    for record in records:
        for kind, name in LOG_ROWS.items():
            of = record["results"].get(kind)
            if of:
                memory = "" if "ray" in kind else f"{of['peak_bytes'] / 1e9:.2f}"
                rows.append(
                    [
                        f"{record['rows']:,}",
                        name,
                        f"{np.median(of['rows_per_second']) / 1e6:.1f}",
                        memory,
                    ]
                )
    last = records[-1]
    return fill(
        "fit-log",
        rows=rows,
        records=records,
        last=last,
        peak=last["results"]["fit_log"]["peak_bytes"] / 1e9,
    )
