"""The pages of the service, rendered by templates: they have no script and load nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
    control: float,
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
        control=control,
        now=now,
        stale=bool(snapshot) and now - snapshot["time"] > _STALE,
    )


def metrics(snapshot: Mapping[str, Any], model: int, writer: Any, *, clock_moved: bool) -> str:
    """Return the numbers of the process and of the page as gauges for Prometheus."""
    template = _environment.get_template("metrics.txt")
    return template.render(seen=snapshot, model=model, writer=writer, clock_moved=clock_moved)


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
