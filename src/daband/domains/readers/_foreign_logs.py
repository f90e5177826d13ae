"""Convert logs of Vowpal Wabbit and Azure Personalizer to a log and a catalogue of daband.

There are two formats:

- "vw": text of ``--cb_explore_adf``. Events are separated by empty lines. The first line may be
  ``shared``, and one action has the label ``action:cost:probability``. The feature ``city=Oslo`` is
  a category, ``age:41`` is a number, and ``young`` is the number 1. A number that an event or an
  action lacks is 0.
- "dsjson": a JSON object per line with ``c``, ``_multi``, ``_labelIndex``, ``_label_cost`` and
  ``_label_probability``. The logs that Personalizer exported have this format.

An action's name is its ``id`` or tag, or the text of its features if it has no tag. Rewards are
negative costs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from daband.base._lazy_polars import pl
from daband.errors import DataError

#: Names of the columns of a log that are not part of the context.
_ROLE_COLUMNS = ("arm", "reward", "propensity", "offered")


class _Event(NamedTuple):
    """One event of a log."""

    #: Features of the context, by name.
    context: dict[str, Any]
    #: Features of every action, by the name of the action.
    actions: dict[str, dict[str, Any]]
    #: Name of the chosen action.
    arm: str
    #: Reward of the chosen action.
    reward: float
    #: Probability of the chosen action.
    propensity: float


def guess_format(path: Path) -> str:
    """Return the format of a file, "vw" or "dsjson", guessed from its first line."""
    with open(path, encoding="utf-8") as file:
        first_line = next((line for line in file if line.strip()), "")
    return "dsjson" if first_line.lstrip().startswith("{") else "vw"


def read_foreign_log(path: Path, log_format: str) -> tuple[Any, Any]:
    """Return the log and the catalogue in a file, as polars frames.

    ``log_format`` is "vw" or "dsjson".

    The log has the context columns, ``arm``, ``reward`` and ``propensity``, and ``offered`` if
    events have different actions. The catalogue has the column ``id``, and the features that an
    action had when it first appeared.
    """
    read_events = _read_vw if log_format == "vw" else _read_dsjson
    rows: list[dict[str, Any]] = []
    features_by_arm: dict[str, dict[str, Any]] = {}
    offered_names: list[list[str]] = []
    with open(path, encoding="utf-8") as file:
        for event in read_events(file):
            reserved_name = next((name for name in event.context if name in _ROLE_COLUMNS), None)
            if reserved_name is not None:
                raise DataError(
                    f"{path}: the context feature {reserved_name!r} has a reserved name; rename it"
                )
            rows.append(
                {
                    **event.context,
                    "arm": event.arm,
                    "reward": event.reward,
                    "propensity": event.propensity,
                }
            )
            offered_names.append(list(event.actions))
            for name, features in event.actions.items():
                features_by_arm.setdefault(name, {"id": name, **features})
    if not rows:
        raise DataError(
            f"{path}: no event in the format {log_format!r} has a chosen action with its"
            " probability"
        )
    log = _build_frame(rows, is_sparse=log_format == "vw")
    if any(len(names) < len(features_by_arm) for names in offered_names):
        log = log.with_columns(offered=pl.Series(["|".join(names) for names in offered_names]))
    return log, _build_frame(list(features_by_arm.values()), is_sparse=log_format == "vw")


def _build_frame(rows: list[dict[str, Any]], *, is_sparse: bool) -> Any:
    """Return a frame with all columns of the rows.

    Numbers that a row lacks are 0 if ``is_sparse``, else missing.
    """
    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        if any(isinstance(value, str) for value in values):
            columns[name] = pl.Series(
                name, [None if value is None else str(value) for value in values], pl.String
            )
        else:
            numbers = [
                float(value) if value is not None else 0.0 if is_sparse else None
                for value in values
            ]
            columns[name] = pl.Series(name, numbers, pl.Float64)
    role_columns = [name for name in _ROLE_COLUMNS if name in columns]
    return pl.DataFrame(columns).select(pl.exclude(role_columns), *role_columns)


def _read_vw(lines: Iterable[str]) -> Iterator[_Event]:
    """Yield the labelled events of a log in the format of Vowpal Wabbit."""
    event_lines: list[tuple[int, str]] = []
    for index, line in enumerate([*lines, ""]):
        if line.strip():
            event_lines.append((index + 1, line.strip()))
            continue
        context: dict[str, Any] = {}
        actions: dict[str, dict[str, Any]] = {}
        outcome = None
        for line_number, event_line in event_lines:
            label_and_tag, separator, sections = event_line.partition("|")
            if not separator:
                raise DataError(
                    f"line {line_number} must have a | before the features, got {event_line[:60]!r}"
                )
            words = label_and_tag.split()
            if words and words[0] == "shared":
                context = _parse_vw_features(sections, line_number)
                continue
            label = next((word for word in words if word.count(":") == 2), None)
            tags = [word.lstrip("'") for word in words if word != label and ":" not in word]
            name = tags[-1] if tags else " ".join(sections.replace("|", " ").split())
            actions[name] = _parse_vw_features(sections, line_number)
            if label is not None:
                try:
                    _, cost, probability = label.split(":")
                    outcome = name, 0.0 - float(cost), float(probability)  # 0.0 - 0.0 is not -0.0
                except ValueError:
                    raise DataError(
                        f"line {line_number}: a label is action:cost:probability, got {label!r}"
                    ) from None
        if outcome is not None:
            yield _Event(context, actions, *outcome)
        event_lines = []


def _parse_vw_features(sections: str, line_number: int) -> dict[str, Any]:
    """Return the features of all namespaces in ``sections``, the text of a line after its
    first |.
    """
    features: dict[str, Any] = {}
    for section in sections.split("|"):
        words = section.split()
        prefix = ""
        scale = 1.0
        if words and not section[:1].isspace():
            namespace, _, factor = words.pop(0).partition(":")
            try:
                prefix = f"{namespace}."
                scale = float(factor or 1.0)
            except ValueError:
                raise DataError(
                    f"line {line_number}: {factor!r}, the factor of {namespace}, is not a number"
                ) from None
        for word in words:
            name, colon, value = word.rpartition(":") if ":" in word else (word, "", "")
            try:
                features[prefix + name] = scale * float(value) if colon else scale
            except ValueError:
                features[prefix + name] = value
            if not colon and "=" in word:
                name, _, value = word.partition("=")
                features.pop(prefix + word)
                features[prefix + name] = value
    return features


def _flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return the features in nested objects and lists, by names such as ``user.age``.

    Lists are joined by |.
    """
    if isinstance(value, Mapping):
        items = [
            (f"{prefix}.{name}" if prefix else str(name), item)
            for name, item in value.items()
            if name[:1] != "_"
        ]
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        items = [(prefix, item) for item in value]
    elif isinstance(value, list):
        return {prefix: "|".join(map(str, value))} if value else {}
    else:
        return {} if value is None else {prefix: value}
    return {
        name: feature
        for item_name, item in items
        for name, feature in _flatten(item, item_name).items()
    }


def _read_dsjson(lines: Iterable[str]) -> Iterator[_Event]:
    """Yield the labelled events of a dsjson file."""
    for line_number, line in enumerate(lines, start=1):
        try:
            event = json.loads(line) if line.strip() else {}
            if "_label_cost" not in event or event.get("_skipLearn"):
                continue
            shared_dict = {**event["c"]}
            action_dicts = event["c"]["_multi"]
            names = [
                str(action.get("_tag") or json.dumps(_flatten(action), sort_keys=True))
                for action in action_dicts
            ]
            actions = dict(zip(names, map(_flatten, action_dicts), strict=True))
            arm_index = (
                event["_labelIndex"] if "_labelIndex" in event else event["_label_Action"] - 1
            )
            propensity = float(event["_label_probability"])
            context = _flatten(shared_dict | {"_multi": None})
            reward = 0.0 - float(event["_label_cost"])
            yield _Event(context, actions, names[arm_index], reward, propensity)
        except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
            problem = f"line {line_number} is not an event of dsjson with c, _multi and a label"
            raise DataError(f"{problem}: {error!r}") from None
