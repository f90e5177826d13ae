"""Read and write saved policies. Each is a safetensors file with a format version and a digest.

The header has the policy's name and settings and the caller's notes as JSON. The tensors are the
learned state. Reading a file runs no code from it. See ``daband.base._tensor_files`` for the digest.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from daband.base._arrays import Arrays, add_prefix, drop_prefix, limit_memory, read_array
from daband.base._files import read_json, write_json
from daband.base._tensor_files import (
    FileFormat,
    pack_tensors,
    read_tensor_file,
    unpack_tensors,
    write_tensor_file,
)
from daband.errors import CheckpointError, DataError, InvalidInput
from daband.features._catalogue import Catalogue
from daband.features._costs import ArmCosts
from daband.features._domain_names import DomainNames
from daband.features._table_transform import TableTransform
from daband.features._transforms import build_transform
from daband.policies._incoming_rounds import RoundIds
from daband.policies._registered import policies
from daband.policies._settings import get_setting_defaults

#: The version of the file format. Files of another version are rejected.
CHECKPOINT_VERSION = 4
#: The key of the policy in a JSON file of rules.
_RULES_KEY = "daband"
#: The memory of a policy may be this many times the size of its arrays in a file. Networks need five
#: copies of their weights.
_MEMORY_FACTOR = 16
#: Every policy may have this memory, in bytes.
_MIN_MEMORY_BYTES = 1 << 26
#: The format of saved policies, with the descriptions for errors.
_FORMAT = FileFormat(
    name="daband-policy",
    description=(
        "a policy saved by daband (policy.save writes one; daband.load_deployed reads what"
        " daband.export wrote)"
    ),
    version=CHECKPOINT_VERSION,
    remedy="train and save it again",
    required_keys=("settings", "notes"),
)


#: For attributes of a policy that may be None, the function that converts them to JSON types.
_OPTIONAL_ATTRIBUTES: dict[str, Callable[[Any], Any]] = {
    "table": TableTransform.state,
    "catalogue": Catalogue.state,
    "framing": list,
    "arm_names": list,
    "costs": asdict,
}


class SavedPolicy(NamedTuple):
    """The content of a file: the policy's settings, its arrays by name, and the caller's notes."""

    settings: dict[str, Any]
    arrays: Arrays
    notes: dict[str, str]


def check_notes(notes: Any) -> dict[str, str]:
    """Return the caller's notes as a dict of strings; None becomes an empty dict."""
    if notes is None:
        return {}
    if not isinstance(notes, Mapping) or not all(
        isinstance(text, str) for text in (*notes, *notes.values())
    ):
        raise InvalidInput(f"notes must be a mapping from text to text, got {notes!r}")
    return dict(notes)


def write_checkpoint(path: str | Path, settings: Any, arrays: Arrays, notes: Any) -> None:
    """Write settings, arrays and notes to a file; an error leaves no partial file."""
    write_tensor_file(path, _FORMAT, {"settings": settings, "notes": notes}, arrays)


def read_checkpoint(path: str | Path) -> SavedPolicy:
    """Return the settings, arrays and notes of a saved policy."""
    if str(path).endswith(".json"):
        header, arrays = _read_rules(path)
    else:
        header, arrays = read_tensor_file(path, _FORMAT)
    settings = header["settings"]
    if not isinstance(settings, dict) or not isinstance(settings.get("policy"), str):
        raise CheckpointError(f"{path} must hold the settings of a policy, got {settings!r}")
    try:
        return SavedPolicy(settings, arrays, check_notes(header["notes"]))
    except InvalidInput as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def save_policy(policy: Any, path: str | Path, notes: Any, *, replay: bool) -> None:
    """Write a policy to a file; an error leaves no partial file.

    With ``replay``, training data are stored too.
    """
    settings, arrays = _collect(policy, replay=replay)
    write_checkpoint(path, settings, arrays, notes)


def save_rules(policy: Any, path: str | Path, notes: Any, *, replay: bool) -> None:
    """Write the JSON tree of a ``RulePolicy``. The key ``_RULES_KEY`` has the content of the policy's
    safetensors file in base 64.
    """
    settings, arrays = _collect(policy, replay=replay)
    content = pack_tensors(_FORMAT, {"settings": settings, "notes": notes}, arrays)
    saved = base64.b64encode(content).decode()
    write_json(path, {"rule": policy.rule.to_json(), _RULES_KEY: saved})


def _read_rules(path: str | Path) -> tuple[dict[str, Any], Arrays]:
    """Return the header and the arrays of a file that ``save_rules`` wrote."""
    content = read_json(path)
    try:
        saved = base64.b64decode(content[_RULES_KEY], validate=True)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} is not a file of rules that this version of daband wrote (`daband rules DIR"
            f" --json` writes one): {error!r}"
        ) from None
    return unpack_tensors(path, saved, _FORMAT)


def _collect(policy: Any, *, replay: bool) -> tuple[dict[str, Any], Arrays]:
    """Return the settings and the arrays of a policy's file."""
    settings = {**policy.settings(), "policy": policy.name}
    for name, to_json in _OPTIONAL_ATTRIBUTES.items():
        value = getattr(policy, name)
        if value is not None:
            settings[name] = to_json(value)
    arrays = collect_arrays(policy, replay=replay)
    if policy.table is not None:
        arrays |= add_prefix("table/", policy.table.arrays())
    return settings, arrays


def collect_arrays(policy: Any, *, replay: bool = True) -> Arrays:
    """Return the complete learned state of a policy as arrays by name.

    With ``replay``, it includes training data.
    """
    arrays: Arrays = add_prefix("policy/", policy._state(replay=replay))
    arrays["rounds"] = np.array(
        [policy.rounds_decided, policy.rounds_learned, policy.version], np.int64
    )
    arrays["domain"] = np.array([policy._domain_index], np.int64)
    arrays["rewards"] = policy.reward_moments.state()
    round_ids = policy._round_ids if replay else RoundIds(policy._round_ids.max_ids)
    arrays |= add_prefix("ids/", round_ids.state())
    if policy.log_parts:
        arrays["log_parts"] = np.frombuffer("\n".join(sorted(policy.log_parts)).encode(), np.uint8)
    if policy.transform is not None:
        arrays |= add_prefix("transform/", policy.transform.state())
    return arrays


def restore_arrays(policy: Any, arrays: Arrays) -> None:
    """Restore the state that ``collect_arrays`` returned; an error may leave the policy half
    restored.
    """
    if policy.transform is not None:
        policy.transform.restore(drop_prefix("transform/", arrays))
    counters = read_array(dict(arrays), "rounds", np.zeros(3, np.int64))
    if (counters < 0).any():
        raise ValueError(f"rounds must not be negative, got {counters.tolist()}")
    policy.rounds_decided, policy.rounds_learned, policy.version = (
        int(count) for count in counters
    )
    policy._domain_index = int(arrays["domain"][0])
    if not 0 <= policy._domain_index < len(policy.domains):
        raise ValueError(f"domain must be an index of a domain, got {policy._domain_index}")
    policy.reward_moments.restore(arrays["rewards"])
    policy._round_ids.restore(drop_prefix("ids/", arrays))
    policy.log_parts = frozenset(bytes(arrays.get("log_parts", b"")).decode().split())
    policy._restore(drop_prefix("policy/", arrays))


def build_policy(
    settings: dict[str, Any], *, encoder: Any = None, arrays: Arrays | None = None
) -> Any:
    """Return an untrained policy with these settings.

    Args:
        settings: the result of ``policy.settings()``, with the keys that ``save_policy`` adds:
            "policy" (the registered name), "table", "catalogue", "framing", "costs" and "arm_names".
        encoder: the ``torch.nn.Module`` of a policy with a custom encoder.
        arrays: the arrays of the encoders of a table.
    """
    arguments = dict(settings)
    if "members" in arguments:  # a mixture: only the member with a custom encoder gets the module
        arguments["members"] = {}
        for name, member_settings in settings["members"].items():
            member_encoder = encoder if _get_encoder_class(member_settings) else None
            arguments["members"][name] = build_policy(member_settings, encoder=member_encoder)
    elif encoder is not None:
        arguments["encoder"] = encoder
    policy_class = policies.get(arguments.pop("policy"))
    from_json: dict[str, Callable[[Any], Any]] = {
        "table": lambda state: TableTransform.from_state(state, arrays),
        "catalogue": Catalogue.from_state,
        "framing": tuple,
        "arm_names": tuple,
        "costs": ArmCosts.from_state,
    }
    attributes: dict[str, Any] = {}
    for name, convert in from_json.items():
        state = arguments.pop(name, None)
        attributes[name] = None if state is None else convert(state)
    if "catalogue" in get_setting_defaults(policy_class):
        arguments["catalogue"] = attributes["catalogue"]
    arguments["context_shape"] = tuple(arguments["context_shape"])
    if "transform" in arguments:
        arguments["transform"] = build_transform(arguments["transform"])
    if "domains" in arguments:
        arguments["domains"] = DomainNames(**arguments["domains"])
    policy = policy_class(**arguments)
    for name, value in attributes.items():
        setattr(policy, name, value)
    return policy


def load_policy(path: str | Path, *, encoder: Any = None, device: str | None = None) -> Any:
    """Return the policy that was saved at ``path``.

    Its further results are bitwise equal to those of the saved policy.

    A file that is damaged, truncated, in another format or not a policy raises a
    ``CheckpointError`` that names it.

    Args:
        path: the file.
        encoder: the ``torch.nn.Module`` of a policy with a custom encoder, whose weights are in the
            file.
        device: the device on which the policy computes from now on, by default the saved one.

    >>> policy = daband.LinUCB(context_shape=(2,), n_arms=2, seed=0)
    >>> policy.save("policy.safetensors")
    >>> loaded = daband.load("policy.safetensors")
    >>> loaded.select([[1.0, 2.0]]).arm.tolist() == policy.select([[1.0, 2.0]]).arm.tolist()
    True
    """
    saved_policy = read_checkpoint(path)
    settings, policy_name = saved_policy.settings, saved_policy.settings["policy"]
    encoder_class = _get_encoder_class(settings)
    if encoder is None and encoder_class is not None:
        raise InvalidInput(
            f"{path} was saved with a custom encoder ({encoder_class}), and contains only its"
            " weights; pass the module: daband.load(path, encoder=module)"
        )
    try:
        if device is not None and "device" in settings:
            settings["device"] = device
        n_bytes = sum(array.nbytes for array in saved_policy.arrays.values())
        with limit_memory(_MIN_MEMORY_BYTES + _MEMORY_FACTOR * n_bytes):
            policy = build_policy(
                settings, encoder=encoder, arrays=drop_prefix("table/", saved_policy.arrays)
            )
        policy.restore(saved_policy.arrays)
        unknown = saved_policy.arrays.keys() - _collect(policy, replay=True)[1].keys()
        if unknown:
            raise ValueError(f"{min(unknown)} is not an array of {policy_name!r}")
    except (InvalidInput, DataError) as error:
        plugin_hint = (
            f". If {policy_name!r} is a custom policy, import its module first, or declare the"
            " module under the entry point daband.plugins"
        )
        hint = "" if policies.is_registered(policy_name) else plugin_hint
        raise CheckpointError(f"{path} cannot be loaded: {error}{hint}") from error
    except Exception as error:  # its arrays may not match its settings
        raise CheckpointError(
            f"{path} does not hold the data that its header describes: {error}"
        ) from error
    return policy


def _get_encoder_class(settings: Any) -> str | None:
    """Return the class name of a policy's custom encoder, or None."""
    members = settings.get("members") if isinstance(settings, dict) else None
    if isinstance(members, dict):
        return next(filter(None, map(_get_encoder_class, members.values())), None)
    nested_setting: Any = settings
    for name in ("recipe", "encoder", "options", "module"):
        nested_setting = nested_setting.get(name) if isinstance(nested_setting, dict) else None
    return None if nested_setting is None else str(nested_setting)
