"""The pages of the service, rendered by templates: they have no script and load nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from daband.service._settings import Settings
from daband.serving._deployed_policy import DeployedPolicy

_environment = Environment(
    loader=PackageLoader("daband.service"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_WIDTH, _HEIGHT = 640, 160
_STALE = 30.0


def _number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "-"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.1e}" if 0 < abs(value) < 0.5 * 10.0**-digits else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


def _span(interval: Mapping[str, float | None]) -> str:
    if interval["low"] is None:
        return _number(interval["value"])
    return f"{_number(interval['value'])} [{_number(interval['low'])}, {_number(interval['high'])}]"


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


_environment.filters.update(number=_number, percent=_percent, span=_span, moment=_moment)


def watch_page(
    snapshot: Mapping[str, Any],
    models: Mapping[str, Any],
    deployed: DeployedPolicy,
    settings: Settings,
    health: Mapping[str, str],
    now: float,
) -> str:
    """Return the page with traffic, values, alarms and models."""
    listed = [*models["models"]][:20]
    return _environment.get_template("watch.html").render(
        seen=snapshot,
        models=listed,
        more_models=len(models["models"]) - len(listed),
        deciding=models["deciding"],
        pinned=models["pinned"],
        deployed=deployed,
        settings=settings,
        health=health,
        now=now,
        stale=bool(snapshot) and now - snapshot["time"] > _STALE,
        rates=_bars(snapshot.get("minutes", []), now),
        curve=_curve(snapshot.get("curve", [])),
        width=_WIDTH,
        height=_HEIGHT,
    )


def api_page(document: Mapping[str, Any], address: str) -> str:
    """Return a page with the calls of the OpenAPI document, each with an example for curl."""
    calls = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            example = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
            parts = [f"curl -X {method.upper()} {address.rstrip('/')}{path.replace('{event_id}', 'visit-1')}"]
            if operation.get("security"):
                parts.append('-H "Authorization: Bearer $TOKEN"')
            if example is not None:
                body = json.dumps(example)
                parts.append(f"-d '{body if len(body) < 400 else body[:200] + ' ...'}'")
            calls.append({"path": path, "method": method, "curl": " \\\n  ".join(parts), **operation})
    return _environment.get_template("api.html").render(document=document, calls=calls)


def metrics(snapshot: Mapping[str, Any], model: int, writer: Any, *, clock_moved: bool) -> str:
    """Return the numbers of the process and of the page as gauges for Prometheus."""
    template = _environment.get_template("metrics.txt")
    return template.render(seen=snapshot, model=model, writer=writer, clock_moved=clock_moved)


def _bars(minutes: Sequence[Sequence[float]], now: float) -> dict[str, Any]:
    """Return decisions and rewards of the last hour, as two bars per minute."""
    counts = {int(start) // 60: (events, rewards) for start, events, rewards in minutes}
    last = int(now) // 60
    recent = [(minute, *counts.get(minute, (0, 0))) for minute in range(last - 59, last + 1)]
    top = max(max(events, rewards) for _, events, rewards in recent) or 1
    step = _WIDTH / len(recent)
    bars = [
        {
            "x": step * place,
            "width": step / 2 - 0.5,
            "events": _HEIGHT * events / top,
            "rewards": _HEIGHT * rewards / top,
        }
        for place, (_, events, rewards) in enumerate(recent)
    ]
    return {"bars": bars, "top": top, "events": recent[-2][1], "rewards": recent[-2][2]}


def _curve(points: Sequence[Mapping[str, float]]) -> dict[str, Any] | None:
    """Return the mean reward of consecutive blocks with its interval, in the coordinates of the drawing."""
    if len(points) < 2:
        return None
    levels = [point[name] for point in points for name in ("low", "high")]
    room = 0.05 * (max(levels) - min(levels)) or 0.5
    low, high = min(levels) - room, max(levels) + room
    last = points[-1]["rewards"]

    def line(name: str) -> list[str]:
        scale = _HEIGHT / (high - low)
        return [f"{_WIDTH * one['rewards'] / last:.1f},{scale * (high - one[name]):.1f}" for one in points]

    band = " ".join([*line("high"), *reversed(line("low"))])
    return {"line": " ".join(line("value")), "band": band, "low": low, "high": high, "rewards": math.floor(last)}


def openapi(deployed: DeployedPolicy, settings: Settings) -> dict[str, Any]:
    """Return the OpenAPI document of a service, with the columns and arms of its policy."""
    example: Any = 0.0
    for size in reversed(deployed.reader.shape):
        example = [example] * size
    if deployed.columns is not None:
        example = dict.fromkeys(deployed.columns, "...")
    shape = tuple(deployed.reader.shape)
    template = _environment.get_template("openapi.json")
    return dict(json.loads(template.render(deployed=deployed, settings=settings, example=example, shape=shape)))
