"""The OpenAPI document of a service, made from the policy that it serves: its columns, arms and reward range."""

from __future__ import annotations

from typing import Any

from daband.service.settings import Settings
from daband.serving import Deployed

__all__ = ["openapi"]


def openapi(deployed: Deployed, settings: Settings) -> dict[str, Any]:
    """The document (OpenAPI 3.1)."""
    low, high = deployed.reward_range
    arm = {
        "oneOf": [{"enum": list(deployed.arm_names)}, {"type": "integer", "minimum": 0, "maximum": deployed.n_arms - 1}]
    }
    event_id = {"type": "string", "pattern": "^[A-Za-z0-9._:~-]{1,128}$"}
    event: dict[str, Any] = {
        "type": "object",
        "required": ["context"] if settings.mode == "online" else ["context", "incumbent"],
        "additionalProperties": False,
        "properties": {
            "event_id": {
                **event_id,
                "description": "Yours, or the service makes one. Repeated, it gives the same answer.",
            },
            "context": _context(deployed),
            "eligible": {"type": "array", "items": arm, "minItems": 1, "description": "The arms that may be chosen."},
            "domain": {"enum": [deployed.domain]},
            "incumbent": {**arm, "description": "What is, or would be, played without the model."},
            "incumbent_propensity": {"type": "number", "exclusiveMinimum": 0, "maximum": 1, "default": 1},
            "deferred": {"type": "boolean", "default": False, "description": "Counts only after activate."},
        },
    }
    events = {"type": "array", "items": {"$ref": "#/components/schemas/Event"}, "maxItems": settings.limits.batch}
    decision = {
        "type": "object",
        "properties": {
            "event_id": event_id,
            "arm": {"type": "integer"},
            "arm_name": {"enum": list(deployed.arm_names)},
            "propensity": {"type": "number"},
            "model": {"type": "integer", "description": "The number of the model that decided."},
            "mode": {"enum": ["online", "apprentice", "log-only"]},
            "active": {"type": "boolean"},
            "logged": {
                "type": "boolean",
                "description": "False only with on_full=decide, while the log cannot be written.",
            },
            "repeated": {"type": "boolean"},
            "warnings": {"type": "array", "items": {"type": "object"}},
        },
    }
    reward = {"type": "number", "minimum": low, "maximum": high}
    ids = [{"name": "event_id", "in": "path", "required": True, "schema": event_id}]
    several = {"type": "object", "properties": {"events": events}, "required": ["events"]}
    paths = {
        "/decide": {
            "post": _operation(
                "Choose an arm for a row, or for each of several",
                "decide",
                body={"oneOf": [{"$ref": "#/components/schemas/Event"}, several]},
                example={"event_id": "visit-1", "context": _example(deployed)},
                answer={"oneOf": [decision, {"type": "object", "properties": {"events": {"type": "array"}}}]},
                errors={409: "the id was used for another context", 413: "too large", 503: "the log cannot be written"},
            )
        },
        "/events/{event_id}/reward": {
            "post": _operation(
                "The reward of an event, whenever it comes; the same one again changes nothing",
                "reward",
                body={"type": "object", "required": ["reward"], "properties": {"reward": reward}},
                example={"reward": high},
                parameters=ids,
                errors={404: "no such event", 409: "another reward is recorded, or the event is not active"},
            )
        },
        "/events/{event_id}/activate": {
            "post": _operation("An event that was deferred counts from now on", "decide", parameters=ids)
        },
        "/models": {
            "get": _operation("The numbered models, and which one decides", "watch"),
            "post": _operation("Publish an exported file (the body) as the next model", "admin"),
        },
        "/models/{number}/activate": {
            "post": _operation(
                "Let this model decide from now on; newest goes back to the newest one",
                "admin",
                parameters=[{"name": "number", "in": "path", "required": True, "schema": {"type": "string"}}],
            )
        },
        "/watch/reset": {"post": _operation("Begin the page's numbers and alarms anew", "admin")},
        "/health": {"get": _operation("Whether decisions are made and logged", None)},
        "/metrics": {"get": _operation("Counters and gauges for Prometheus", "watch")},
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "daband",
            "version": "1",
            "description": f"Mode: {settings.mode}. Policy: {deployed.policy}.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Event": event, "Decision": decision},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _context(deployed: Deployed) -> dict[str, Any]:
    if deployed.columns is not None:
        return {"type": "object", "required": list(deployed.columns), "description": "The raw row, by column."}
    shape = deployed.reader.shape
    return {"type": "array", "description": f"Numbers of shape {tuple(shape)}, nested where it has several sides."}


def _example(deployed: Deployed) -> Any:
    if deployed.columns is not None:
        return dict.fromkeys(deployed.columns, "...")
    value: Any = 0.0
    for size in reversed(deployed.reader.shape):
        value = [value] * size
    return value


def _operation(
    summary: str,
    role: str | None,
    *,
    body: dict[str, Any] | None = None,
    example: Any = None,
    answer: dict[str, Any] | None = None,
    parameters: list[dict[str, Any]] | None = None,
    errors: dict[int, str] | None = None,
) -> dict[str, Any]:
    responses: dict[str, Any] = {"200": {"description": "done"}}
    if answer is not None:
        responses["200"]["content"] = {"application/json": {"schema": answer}}
    for status, text in {**(errors or {}), 422: "what was sent is not valid", 429: "too many requests"}.items():
        responses[str(status)] = {"description": text}
    operation: dict[str, Any] = {"summary": summary, "responses": responses, "parameters": parameters or []}
    if role is not None:
        operation["security"] = [{"token": []}]
        operation["description"] = f"Token: {role}."
        responses["401"] = {"description": "the token is missing or wrong"}
    if body is not None:
        operation["requestBody"] = {
            "required": True, "content": {"application/json": {"schema": body, "example": example}},
        }  # fmt: skip
    return operation
