"""Define the ASGI application of the service, with endpoints for decisions, rewards, models, health
and metrics.

``create_app`` builds it, and ``Service`` has a method per endpoint. It uses Starlette instead of
FastAPI, because the deployed policy checks contexts itself, so pydantic is not needed.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import ipaddress
import logging
import re
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from daband.base._svg import draw_curve
from daband.errors import CheckpointError, DataError, InvalidInput
from daband.ledger._store import Event, LogAnswer, LogFailed, Reward, Store
from daband.service._decider import (
    Decider,
    check_event_id,
    check_reward,
    continue_counts,
    load_model,
    replace_arms,
    with_added_arms,
)
from daband.service._settings import ROLES, Settings
from daband.service._writer import Writer
from daband.serving._deployed_policy import DeployedDecision, DeployedPolicy, load_deployed

_logger = logging.getLogger("daband.service")
#: Seconds between two checks for a newer model.
_POLL_SECONDS = 1.0
#: Maximum number of entries that wait to be written to the log. Further requests are answered with
#: 503.
_MAX_WAITING_ENTRIES = 20_000
#: Maximum number of bytes of an uploaded model.
_MAX_MODEL_BYTES = 1 << 30
#: Maximum number of characters of an error message.
_MAX_ERROR_CHARACTERS = 5000
#: The fields of a warning in an answer.
_WARNING_FIELDS = ("kind", "column", "message")
#: Maximum number of characters of a warning, which may contain a value of the row.
_MAX_WARNING_CHARACTERS = 500
#: Allowed numbers of models in a path.
_MODEL_NUMBER_PATTERN = re.compile("[0-9]{1,9}")
#: Maximum number of digits in the header Content-Length. Longer numbers are not parsed.
_MAX_LENGTH_DIGITS = 15
#: The headers of the page. It runs no scripts, loads nothing, and cannot be embedded in another
#: site.
_PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; "
        "frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
}
#: How often the log is opened, if the database drops the connection meanwhile.
_MAX_OPEN_ATTEMPTS = 10
#: Seconds between two attempts to open the log.
_OPEN_RETRY_SECONDS = 1.0
#: Maximum nesting of the JSON in a request.
_MAX_NESTING = 100
#: The OpenAPI document, which is the same for all policies.
_OPENAPI = Path(__file__).with_name("templates").joinpath("openapi.json").read_text("utf-8")
#: The templates of the page and the metrics.
_templates = Environment(
    loader=PackageLoader("daband.service"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
#: The page warns that the worker has stopped if its statistics are older than this number of
#: seconds.
_STALE_SECONDS = 30.0
#: Maximum number of models on the page.
_MAX_LISTED_MODELS = 20
#: The upper limits of the bins of the latency histogram, in seconds.
_LATENCY_BIN_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


def create_app(file: str | Path, log: str, settings: Settings | None = None) -> Starlette:
    """Return the ASGI application that serves an exported policy and writes a log.

    Learning, default rewards and the statistics of the page need the worker process, which ``daband
    serve`` starts.

    Args:
        file: the file that ``daband.export`` wrote.
        log: the event log: ``sqlite:///events.db``, or ``postgresql://...``.
        settings: the behaviour of the service; by default ``Settings()``.
    """
    load_deployed(file)  # raises an error for a damaged file before the log is created
    settings = settings or Settings()
    was_dropped = False
    for attempts_left in reversed(range(_MAX_OPEN_ATTEMPTS)):
        try:
            return _open_service(file, log, settings)
        except (DataError, LogFailed) as error:
            was_dropped |= _is_dropped_connection(error)
            if not (was_dropped and attempts_left):
                raise
            _logger.warning("the log dropped the connection while it was opened; trying again")
        time.sleep(_OPEN_RETRY_SECONDS)
    raise AssertionError("unreachable")


def _is_dropped_connection(error: BaseException) -> bool:
    """Return True if the database ended a connection that was open, or if it restarts."""
    failure = error.__cause__ if isinstance(error, DataError) else error
    return isinstance(failure, LogFailed) and failure.was_dropped


def _open_service(file: str | Path, log: str, settings: Settings) -> Starlette:
    """Return the application, after opening its log once."""
    store = Store(log)
    try:
        return Service(file, store, settings).app
    except BaseException:
        store.close()
        raise


class Service:
    """The endpoints of the service and their common state: the log, the model that decides, and
    counters.
    """

    def __init__(self, file: str | Path, store: Store, settings: Settings) -> None:
        self.store = store
        self.settings = settings
        content = Path(file).read_bytes()
        old_number = store.find_newest_file()
        if old_number >= 0:
            old_model = load_model(store.read_content(old_number), old_number)
            _check_compatible(load_model(content, 0).deployed, old_model.deployed)
        number = publish_file(store, content, time.time())
        current_number = store.find_current_model()
        self._arms_note = store.read_note("arms")
        assert current_number is not None
        if number != store.find_newest_file() or store.read_note("pinned"):
            numbers = number, current_number
            _logger.warning(
                "%s is model %d of the log, but model %d decides (GET /models)", file, *numbers
            )
        model = load_model(store.read_content(current_number), current_number)
        self._decider = Decider(with_added_arms(model, self._arms_note), settings)
        self._model_lock = threading.Lock()
        self._encoder_lock = asyncio.Lock()
        self._apply_verdict()
        self._registry = CollectorRegistry()
        self._request_counter = Counter(
            "daband_requests", "Requests", ["route", "status"], registry=self._registry
        )
        self._latency_histogram = Histogram(
            "daband_request_seconds",
            "Time to answer",
            ["route"],
            registry=self._registry,
            buckets=_LATENCY_BIN_SECONDS,
        )
        self._warning_counter = Counter(
            "daband_row_warnings", "Rows with a warning", ["kind"], registry=self._registry
        )
        self._allowed_hosts = {"localhost", *(host.lower() for host in settings.hosts)}
        self._role_tokens = {role: settings.tokens.split(role) for role in ROLES}
        self._role_tokens["watch"] += self._role_tokens["admin"]
        make_route = self._make_route
        self.app = Starlette(
            routes=[
                make_route("/decide", self._decide, "POST", "decide"),
                make_route("/events/{event_id}/reward", self._record_reward, "POST", "reward"),
                make_route("/arms", self._replace_arms, "POST", "admin"),
                make_route("/models", self._list_models, "GET", "watch"),
                make_route("/models", self._upload_model, "POST", "admin"),
                make_route("/models/{number}/activate", self._activate_model, "POST", "admin"),
                make_route("/lift", self._get_lift, "GET", "watch"),
                make_route("/watch/reset", self._reset_watch, "POST", "admin"),
                make_route("/health", self._get_health, "GET", None),
                make_route("/metrics", self._get_metrics, "GET", "watch"),
                make_route("/openapi.json", self._get_openapi, "GET", None),
                make_route("/", self._get_page, "GET", "watch"),
            ],
            lifespan=self._lifespan,
        )

    # Start, stop, and newer models.

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Open the writer while the application runs, and check for newer models."""
        self._writer = Writer(self.store, max_waiting_entries=_MAX_WAITING_ENTRIES)
        follow_task = asyncio.create_task(self._follow_models())
        try:
            yield
        finally:
            follow_task.cancel()
            with suppress(asyncio.CancelledError):
                await follow_task
            await self._writer.close()
            self.store.close()

    async def _follow_models(self) -> None:
        """Check every second which model should decide, and load it if it has changed.

        Requests continue meanwhile.
        """
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            try:
                await asyncio.to_thread(self._load_current_model)
            except Exception as error:  # the log may be unavailable; the present model is kept
                if "cannot schedule new futures" in str(error):  # the process is ending
                    return
                _logger.warning("the models of the log cannot be read: %s", type(error).__name__)

    def _load_current_model(self) -> None:
        """Load the model that should decide, if it is not the present model, and apply the latest
        verdict.
        """
        with self._model_lock:  # so that a thread with an older result cannot override a newer one
            number = self.store.find_current_model()
            arms_note = self.store.read_note("arms")
            if number is not None and (
                number != self._decider.model.number or arms_note != self._arms_note
            ):
                model = load_model(self.store.read_content(number), number)
                self._decider.model = continue_counts(
                    with_added_arms(model, arms_note), self._decider.model
                )
                self._arms_note = arms_note
                _logger.info("model %d decides", number)
            self._apply_verdict()

    def _apply_verdict(self) -> None:
        """Set the fraction of events that play the incumbent's arm.

        It is 1 if the policy is proven to be worse, and otherwise ``Settings.control``. In a pilot
        it follows from the limit of the cost, and from the decision.
        """
        verdict, control = self._read_verdict()
        fraction = self._decider.initial_control
        if control:
            fraction = float(control)
        elif fraction and verdict == "worse":
            fraction = 1.0
        if fraction != self._decider.control_fraction:
            _logger.warning(
                "the incumbent's arm is now played for %.1f%% of the events", 100 * fraction
            )
            self._decider.control_fraction = fraction

    def _read_verdict(self) -> tuple[str, str]:
        """Return the worker's verdict on the newest file since the last reset: "worse", "better",
        "over" or "", and in a pilot the probability of the incumbent, otherwise "".
        """
        note = (self.store.read_note("verdict") or "///").split("/")
        is_pilot = self._decider.model.deployed.pilot is not None
        key = self.store.find_verdict_key(is_pilot=is_pilot)
        file_number = str(self.store.find_newest_file())
        return (note[2], note[3]) if note[:2] == [key, file_number] else ("", "")

    # Checks of every request.

    def _make_route(
        self,
        path: str,
        endpoint: Callable[[Request], Awaitable[Response]],
        method: str,
        role: str | None,
    ) -> Route:
        """Return a route that checks host and token, counts requests and converts errors to JSON.

        ``role`` is the role whose token a request needs; None if it needs no token.
        """

        async def handle_request(request: Request) -> Response:
            started_at = time.perf_counter()
            try:
                self._check_host(request)
                if role is not None:
                    self._check_token(request, role)
                response = await endpoint(request)
            except HTTPException as error:
                response = _make_response({"error": error.detail}, error.status_code, error.headers)
            except InvalidInput as error:
                response = _make_response({"error": str(error)[:_MAX_ERROR_CHARACTERS]}, 422)
            except ClientDisconnect:  # also if the server dropped an incomplete request
                response = _make_response({"error": "the request ended early"}, 400)
            except LogFailed as error:
                response = _make_response({"error": str(error)}, 503, {"Retry-After": "1"})
            # its text may contain parts of a context, so only its type is logged
            except Exception as error:
                _logger.error("%s %s failed: %s", method, path, type(error).__name__)
                response = _make_response(
                    {"error": "the service failed; its log has the error's type"}, 500
                )
            self._request_counter.labels(path, response.status_code).inc()
            self._latency_histogram.labels(path).observe(time.perf_counter() - started_at)
            return response

        return Route(path, handle_request, methods=[method])

    def _check_host(self, request: Request) -> None:
        """Reject requests with another host name.

        This prevents DNS rebinding attacks by pages in a browser.
        """
        hosts = request.headers.getlist("host")
        if len(hosts) > 1:  # a proxy might check another one than this service
            raise HTTPException(400, "the request has several headers Host")
        if not hosts or "*" in self._allowed_hosts:  # browsers always send a host
            return
        name = host = hosts[0]
        with suppress(ValueError):  # neither a name nor an address
            name = urlsplit(f"//{host}").hostname or ""
            if name in self._allowed_hosts:
                return
            address = ipaddress.ip_address(name)
            if address.is_loopback or address == ipaddress.ip_address(
                (request.scope.get("server") or ("",))[0]
            ):
                return
        raise HTTPException(
            421, f"{name[:100]!r} is not a name of this service; --allow-host NAME adds one"
        )

    def _check_token(self, request: Request, role: str) -> None:
        """Reject requests without a token of the role, and requests that pages of other
        sites send.
        """
        role_tokens = self._role_tokens[role]
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        # a browser that shows the page; the token is the password
        is_basic = scheme.lower() == "basic"
        is_browser = is_basic if role_tokens else "origin" in request.headers
        origin = urlsplit(request.headers.get("origin", "")).netloc
        if request.method == "POST" and is_browser and origin != request.headers.get("host"):
            raise HTTPException(403, "the request comes from a page of another site")
        if not role_tokens:
            return
        token = credentials.strip().encode()
        if is_basic:
            with suppress(binascii.Error, ValueError):
                token = base64.b64decode(credentials).partition(b":")[2]
        if not _is_allowed_token(token, role_tokens):
            if any(_is_allowed_token(token, tokens) for tokens in self._role_tokens.values()):
                raise HTTPException(403, f"this token is not for {role}")
            scheme = 'Basic realm="daband"' if role in ("watch", "admin") else "Bearer"
            raise HTTPException(401, "a token is missing or wrong", {"WWW-Authenticate": scheme})

    async def _read_body(self, request: Request, max_bytes: int | None = None) -> bytes:
        """Return the body of a request.

        Reject the request if its body has more than ``max_bytes`` bytes.

        ``max_bytes`` is ``Settings.body_bytes`` by default.
        """
        limit = self.settings.body_bytes if max_bytes is None else max_bytes
        too_large_error = HTTPException(
            413, f"the body is larger than {limit:,} bytes", {"Connection": "close"}
        )
        length = request.headers.get("content-length", "")
        if length.isdecimal() and (len(length) > _MAX_LENGTH_DIGITS or int(length) > limit):
            raise too_large_error
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise too_large_error
        return bytes(body)

    async def _read_json(self, request: Request) -> Any:
        """Return the body of a request, parsed as JSON."""
        content = await self._read_body(request)
        try:
            body = orjson.loads(content)
        except orjson.JSONDecodeError as error:
            raise HTTPException(
                400, f"the body is not JSON: {error.msg} at character {error.pos}"
            ) from None
        # the count is enough to accept nearly every request
        if content.count(b"[") + content.count(b"{") > _MAX_NESTING:
            _check_nesting(body)
        return body

    # Decisions and rewards.

    async def _decide(self, request: Request) -> Response:
        """Decide on the events of a request, log them and return the decisions."""
        body = await self._read_json(request)
        table = self._decider.model.deployed.reader.table
        if table is not None and table.encoded:
            async with self._encoder_lock:  # one request at a time, to limit the memory of images
                outcome = await asyncio.to_thread(self._decider.decide, body, time.time())
        else:
            outcome = self._decider.decide(body, time.time())
        for _, decision in outcome:
            for kind in {warning.kind for warning in decision.warnings}:
                self._warning_counter.labels(kind).inc()
        answers = await self._writer.write([event for event, _ in outcome])
        for (event, _), answer in zip(outcome, answers, strict=True):
            if answer.status == "conflict":
                raise HTTPException(
                    409,
                    f"event_id {event.event_id!r} was used for another context; nothing was"
                    " decided",
                )
        arm_names = self._decider.model.deployed.arm_names
        decisions = [
            _describe_decision(answer, arm_names, decision)
            for answer, (_, decision) in zip(answers, outcome, strict=True)
        ]
        return _make_response({"events": decisions} if "events" in body else decisions[0])

    async def _replace_arms(self, request: Request) -> Response:
        """Add the new arms of a list, offer only the arms of this list, and return how many arms
        there are.
        """
        body = await self._read_json(request)
        arms = body.get("arms") if isinstance(body, dict) and len(body) == 1 else None
        if not isinstance(arms, list) or not arms:
            raise InvalidInput('the body must be {"arms": [{"id": ..., features}, ...]}')
        deployed = self._decider.model.deployed
        await asyncio.to_thread(
            self.store.change_note, "arms", lambda note: replace_arms(note, arms, deployed)
        )
        await asyncio.to_thread(self._load_current_model)
        offered = self._decider.model.deployed.frozen.offered
        n_arms = self._decider.model.deployed.n_arms
        return _make_response(
            {"arms": n_arms, "offered": n_arms if offered is None else int(offered.sum())}
        )

    async def _record_reward(self, request: Request) -> Response:
        """Log the reward of an event."""
        event_id = check_event_id(request.path_params["event_id"])
        body = await self._read_json(request)
        if not isinstance(body, dict) or set(body) != {"reward"}:
            raise InvalidInput('the body must be {"reward": NUMBER}')
        reward = check_reward(body["reward"], self.settings.max_reward)
        (answer,) = await self._writer.write([Reward(event_id, reward, time.time())])
        if answer.status == "unknown":
            raise HTTPException(404, f"event {event_id!r} is not in the log")
        if answer.status == "refused":
            origin = (
                "the default, because none arrived in time"
                if answer.kind == "default"
                else "recorded"
            )
            raise HTTPException(
                409, f"event {event_id!r} already has another reward, {answer.reward:g} ({origin})"
            )
        return _make_response(
            {"event_id": event_id, "status": answer.status, "reward": answer.reward}
        )

    # Models.

    async def _list_models(self, request: Request) -> Response:
        """Return the models of the log, and which of them decides."""
        return _make_response(await asyncio.to_thread(self._read_models))

    def _read_models(self) -> dict[str, Any]:
        """Return the models of the log, and the numbers of the deciding and the pinned model, in
        JSON types.
        """
        pinned = self.store.read_note("pinned")
        return {
            "deciding": self._decider.model.number,
            "pinned": int(pinned) if pinned else None,
            "models": [
                {**asdict(row), "kept": is_stored} for row, is_stored in self.store.list_models()
            ],
        }

    async def _upload_model(self, request: Request) -> Response:
        """Add an exported file as a model."""
        content = await self._read_body(request, _MAX_MODEL_BYTES)
        number = await asyncio.to_thread(self._publish_upload, content)
        return _make_response({"number": number, "deciding": self._decider.model.number}, 201)

    def _publish_upload(self, content: bytes) -> int:
        """Publish an exported file, and return the number of its model."""
        try:
            deployed = load_model(content, 0).deployed
        except CheckpointError:
            raise InvalidInput("the body is not a file that daband.export wrote") from None
        _check_compatible(deployed, self._decider.model.deployed)
        number = publish_file(self.store, content, time.time())
        self._load_current_model()
        return number

    async def _activate_model(self, request: Request) -> Response:
        """Let the model with this number, or the newest model, decide from now on."""
        path_number = request.path_params["number"]
        # no model has number -1
        number = int(path_number) if _MODEL_NUMBER_PATTERN.fullmatch(path_number) else -1
        try:
            await asyncio.to_thread(self.store.pin, None if path_number == "newest" else number)
        except InvalidInput:
            raise HTTPException(
                404, "there is no such model; GET /models lists the stored ones"
            ) from None
        await asyncio.to_thread(self._load_current_model)
        return self._answer_form(
            request, {"deciding": self._decider.model.number, "pinned": path_number != "newest"}
        )

    async def _reset_watch(self, request: Request) -> Response:
        """Start the counts and alarms of the page again."""
        seq = await asyncio.to_thread(self.store.find_last_seq, "events")
        await asyncio.to_thread(self.store.write_note, "watch_from", str(seq))
        return self._answer_form(request, {"status": "the counts start again"})

    def _answer_form(self, request: Request, content: dict[str, Any]) -> Response:
        """Return a redirection to the page if the request is from a form of the page; otherwise
        return JSON.
        """
        if request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
            return RedirectResponse("/", 303)
        return _make_response(content)

    # Watching.

    async def _get_health(self, request: Request) -> Response:
        """Return the health of the service. The HTTP status is 503 if the log cannot be written."""
        failure = self._writer.failure
        status = "the log cannot be written" if failure else "ok"
        body = {"status": status, "model": self._decider.model.number}
        return _make_response({**body, "log": failure or "ok"}, 503 if failure else 200)

    async def _get_metrics(self, request: Request) -> Response:
        """Return the statistics of events, rewards and requests, in the format of Prometheus."""
        snapshot = await asyncio.to_thread(self._read_snapshot)
        metrics_text = _templates.get_template("metrics.txt").render(
            snapshot=snapshot,
            model=self._decider.model.number,
            writer=self._writer,
        )
        media_type = "text/plain; version=0.0.4; charset=utf-8"
        return Response(
            generate_latest(self._registry) + metrics_text.encode(), media_type=media_type
        )

    def _read_snapshot(self) -> dict[str, Any]:
        """Return the statistics that the worker wrote last; empty before it has written any."""
        snapshot_json = self.store.read_note("snapshot")
        return {} if snapshot_json is None else dict(orjson.loads(snapshot_json))

    async def _get_lift(self, request: Request) -> Response:
        """Return the estimated lift of the policy over the control group."""
        snapshot = await asyncio.to_thread(self._read_snapshot)
        return _make_response(
            {**snapshot.get("lift", {}), "incumbent_fraction": self._decider.control_fraction}
        )

    async def _get_page(self, request: Request) -> Response:
        """Return the HTML page that shows the state of the service."""
        snapshot, models = await asyncio.to_thread(
            lambda: (self._read_snapshot(), self._read_models())
        )
        curve = snapshot.get("lift", {}).get("curve", [])
        page = _templates.get_template("watch.html").render(
            snapshot=snapshot,
            models=models["models"][:_MAX_LISTED_MODELS],
            n_more_models=len(models["models"]) - _MAX_LISTED_MODELS,
            deciding=models["deciding"],
            pinned=models["pinned"],
            deployed=self._decider.model.deployed,
            settings=self.settings,
            log_failure=self._writer.failure,
            control_fraction=self._decider.control_fraction,
            has_control=self._decider.initial_control > 0.0,
            incumbent=self._decider.incumbent_name,
            curve=draw_curve(curve, label="Lift per event, with its limits"),
            is_stale=bool(snapshot) and time.time() - snapshot["time"] > _STALE_SECONDS,
        )
        return HTMLResponse(page, headers=_PAGE_HEADERS)

    async def _get_openapi(self, request: Request) -> Response:
        """Return the OpenAPI document."""
        return Response(_OPENAPI, media_type="application/json")


def _check_compatible(deployed: DeployedPolicy, log_policy: DeployedPolicy) -> None:
    """Raise an error if a file has other arms or contexts than ``log_policy``, a model of
    the log.
    """
    attributes = (
        "arm_names",
        "columns",
        "per_arm",
        *(() if deployed.columns else ("context_shape",)),
    )
    for name in attributes:  # a table may have more categories, and a catalogue more arms
        value = getattr(deployed, name)
        logged_value = getattr(log_policy, name)
        if name == "arm_names" and deployed.frozen.catalogue is not None:
            n_common = min(len(value), len(logged_value))
            value = value[:n_common]
            logged_value = logged_value[:n_common]
        if value != logged_value:
            raise InvalidInput(
                f"{name} is {value!r}, but {logged_value!r} for the models in the log; use"
                " another log"
            )


def publish_file(store: Store, content: bytes, now: float) -> int:
    """Return the number of the model with this content.

    If it is not in the log, add it as the newest model.
    """
    deployed = load_model(content, 0).deployed
    rounds, version = deployed.rounds_learned, deployed.version
    return store.publish_file(content, time=now, rounds=rounds, version=version)


def _is_allowed_token(token: bytes, allowed_tokens: tuple[bytes, ...]) -> bool:
    """Return True if a token is one of the allowed ones.

    The time does not depend on how many characters match.
    """
    # ``any`` would stop at the first match.
    return sum(hmac.compare_digest(token, allowed_token) for allowed_token in allowed_tokens) > 0


def _describe_decision(
    answer: LogAnswer, arm_names: tuple[str, ...], decision: DeployedDecision
) -> dict[str, Any]:
    """Return the fields of a decision in the answer to a request."""
    event = answer.event
    assert isinstance(event, Event)
    return {
        "event_id": event.event_id,
        "arm": event.arm,
        "arm_name": arm_names[event.arm],
        "propensity": event.propensity,
        "model": event.model,
        "role": event.role,
        "repeated": answer.status == "repeated",
        "warnings": [
            {name: getattr(warning, name)[:_MAX_WARNING_CHARACTERS] for name in _WARNING_FIELDS}
            for warning in decision.warnings
        ],
    }


def _check_nesting(body: Any) -> None:
    """Raise an error if parsed JSON is nested too deeply to be shown and stored."""
    level = [body]
    for _ in range(_MAX_NESTING):
        level = [
            value
            for item in level
            if isinstance(item, dict | list)
            for value in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise InvalidInput(f"the body must be nested at most {_MAX_NESTING} levels")


def _make_response(
    content: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response with this content as JSON."""
    return Response(orjson.dumps(content), status, headers, "application/json")


def _format_number(value: float | None) -> str:
    """Return a number as a text with at most three digits after the point; "-" for None."""
    if value is None:
        return "-"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.1e}" if 0 < abs(value) < 0.5e-3 else f"{value:,.3f}"


def _format_percent(value: float | None) -> str:
    """Return a fraction as a text in percent; "-" for None."""
    return "-" if value is None else f"{100 * value:.1f}%"


def _format_interval(interval: Mapping[str, float | None]) -> str:
    """Return a value with its interval as a text, such as "0.31 [0.28, 0.34]"."""
    if interval["low"] is None:
        return _format_number(interval["value"])
    value, low, high = (_format_number(interval[name]) for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def _format_time(seconds: float) -> str:
    """Return a time, in seconds since 1970, as a text in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


_templates.filters.update(
    number=_format_number, percent=_format_percent, interval=_format_interval, time=_format_time
)
