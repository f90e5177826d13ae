"""Read experiments from presets, TOML files and overrides (``load_experiment``).

An ``Experiment`` has a pair, methods, seeds and a number of episodes. It consists of one run per
method and seed. A ``RunSpec`` has the settings of one run.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
import tomllib
from collections.abc import Sequence
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from daband.base._files import check_path, read_bytes
from daband.bench._methods import check_method, check_policy_arguments
from daband.domains._registry import pairs
from daband.errors import InvalidInput, did_you_mean

#: A positive integer.
Count = Annotated[int, Field(ge=1, strict=True)]
#: An integer that is not negative.
Seed = Annotated[int, Field(ge=0, strict=True)]
#: The number of episodes. "all" is the largest number of complete episodes in which each source
#: context is shown at most ``passes`` times.
Episodes = Count | Literal["all"]
#: The decision rule for the evaluation in the target; the argument ``rule`` of ``evaluate``.
DecisionRule = Literal["ucb", "greedy"]


class _StrictSettings(BaseModel):
    """Immutable settings, which reject unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RunSpec(_StrictSettings):
    """All settings that determine the result of one run.

    ``Experiment`` describes the fields that both have.
    """

    pair: str
    #: Options of the pair, including the defaults that were determined from the data.
    pair_options: dict[str, Any]
    method: str
    #: "default", or a change of the method such as "paper:RP" in an ablation.
    variant: str
    #: Keyword arguments of the policy.
    policy: dict[str, Any]
    components: int
    episodes: Episodes
    passes: int
    episode_length: int
    seed: int
    rule: DecisionRule
    selection: str

    @property
    def config_hash(self) -> str:
        """A hash that is equal for two runs only if all their settings are equal."""
        settings = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(settings.encode()).hexdigest()[:12]

    @property
    def folder_name(self) -> str:
        """The run's folder below the experiment's folder."""
        variant = (
            ""
            if self.variant == "default"
            else f"-{re.sub(r'[^A-Za-z0-9=,._-]+', '-', self.variant)}"
        )
        return f"{self.pair.replace('/', '-')}-{self.method}{variant}-seed{self.seed}-{self.config_hash}"

    @property
    def key_without_seed(self) -> str:
        """A key that is equal for runs that differ only in their seed."""
        return self.model_dump_json(exclude={"seed"})

    @property
    def label(self) -> str:
        """The name of the run in messages: the method, its variant if there is one, and the
        seed.
        """
        variant = "" if self.variant == "default" else f" {self.variant}"
        return f"{self.method}{variant}, seed {self.seed}"


class Experiment(_StrictSettings):
    """Methods and seeds to compare on one pair or on several pairs.

    Args:
        summary: describes the experiment in one line.
        pair: the name of a pair, or a pattern for several pairs, e.g. ``"mine/*"``.
        pair_options: options of the pair, as in ``daband.domains.load``.
        episodes: the number of episodes of each run, or "all".
        passes: the number of times that each source context is shown if ``episodes`` is "all".
        episode_length: the number of rounds of an episode.
        seeds: the seeds of the policies.
        compare: the names of the methods.
        components: the number of principal components, for methods with a name ending in "-p".
        policy: settings that all methods share.
        methods: settings of single methods, by name; in TOML for example ``methods.linucb.alpha =
            0.1``.
        rule: the rule by which policies choose when they are evaluated, "ucb" or "greedy".
        selection: the rule by which settings were chosen, or "none"; it is recorded with every run.
    """

    summary: str = ""
    pair: str
    pair_options: dict[str, Any] = Field(default_factory=dict)
    episodes: Episodes = 300
    passes: Count = 1
    episode_length: Count = 64
    seeds: tuple[Seed, ...] = (0, 1, 2, 3, 4)
    compare: tuple[str, ...] = (
        "random",
        "constant",
        "linucb",
        "linucb-p",
        "nlinucb",
        "nlinucb-p",
        "daband",
    )
    components: Count = 64
    policy: dict[str, Any] = Field(default_factory=dict)
    methods: dict[str, dict[str, Any]] = Field(default_factory=dict)
    rule: DecisionRule = "ucb"
    selection: str = "none"

    def runs(
        self, methods: Sequence[str] | None = None, seeds: Sequence[int] | None = None
    ) -> list[RunSpec]:
        """Return the settings of every run.

        They are ordered by pair, then by seed, so that all methods of the first seed finish early.

        Unknown methods, settings of methods and options of pairs raise an error here, before the
        first run.
        """
        method_names = self.compare if methods is None else methods
        for method in (*method_names, *self.methods):
            check_policy_arguments(
                check_method(method), self.policy_settings(method) if method in method_names else {}
            )
        options_by_pair = {
            pair: pairs.get(pair).resolve_options(self.pair_options) for pair in self.pair_names()
        }
        shared_settings = self.model_dump(
            include={"components", "episodes", "passes", "episode_length", "rule", "selection"}
        )
        runs = []
        for pair, seed, method in product(
            options_by_pair, self.seeds if seeds is None else seeds, method_names
        ):
            spec = RunSpec(
                pair=pair,
                pair_options=options_by_pair[pair],
                method=method,
                variant="default",
                policy=self.policy_settings(method),
                seed=seed,
                **shared_settings,
            )
            runs.append(spec)
        return runs

    def policy_settings(self, method: str) -> dict[str, Any]:
        """Return the settings of a method's policy.

        The method's settings override the settings for all methods.
        """
        return {**self.policy, **self.methods.get(method, {})}

    def describe(self) -> str:
        """Return a description in one line, which is the summary of the experiment or else of the
        pair.
        """
        if self.summary or "*" in self.pair:
            return self.summary
        return pairs.get(self.pair).about.summary

    def pair_names(self) -> list[str]:
        """Return the names of the pairs that match ``pair``."""
        if "*" not in self.pair:
            pairs.get(self.pair)  # raises an error for an unknown name
            return [self.pair]
        names = fnmatch.filter(pairs.names(), self.pair)
        if not names:
            raise InvalidInput(
                f"no pair has a name like {self.pair!r} (known: {', '.join(pairs.names())})"
            )
        return names


def preset_names() -> list[str]:
    """Return the names of presets, which are the preset files of this package and all pairs."""
    return sorted(_read_preset_files().keys() | set(pairs.names()))


def load_experiment(name_or_file: str, overrides: Sequence[str] = ()) -> Experiment:
    """Return an experiment from a preset's name or a TOML file, with ``key=value`` overrides.

    Args:
        name_or_file: a preset (``daband presets``), the name of a pair, or a TOML file.
        overrides: texts such as ``methods.linucb.alpha=0.1``. A key may have dots. A value is read
            as TOML, or as text if it is not valid TOML.
    """
    preset_files = _read_preset_files()
    if name_or_file.endswith(".toml"):
        path = check_path(name_or_file, "the file of settings")
        if not path.is_file():
            raise InvalidInput(f"there is no file {path}")
        settings = _parse_toml(read_bytes(path), str(path))
    elif name_or_file in preset_files:
        settings = _parse_toml(preset_files[name_or_file], name_or_file)
    elif name_or_file in pairs:
        settings = {"pair": name_or_file}
    else:
        if Path(name_or_file).exists():
            raise InvalidInput(
                f"{name_or_file} is not a settings file (.toml); for your own data, use `daband"
                f" choose --source {name_or_file} --target OTHER`, and for tables --label, or --arm"
                " and --reward"
            )
        hint = did_you_mean(name_or_file, preset_names())
        raise InvalidInput(
            f"unknown preset {name_or_file!r}{hint} (`daband presets` lists them, or give a .toml"
            " file)"
        )
    for override in overrides:
        _apply_override(settings, override)
    try:
        return Experiment(**settings)
    except ValidationError as error:
        raise InvalidInput(_describe_problem(error)) from None


def _describe_problem(error: ValidationError) -> str:
    """Return a message about the first invalid setting, with its name as the user wrote it."""
    problem = error.errors()[0]
    # If a setting may have several types, pydantic adds the type to the path; the user did not
    # write it.
    setting = ".".join(str(part) for part in problem["loc"] if part != "constrained-int")
    if problem["type"] == "extra_forbidden":
        setting_names = list(Experiment.model_fields)
        hint = did_you_mean(setting, setting_names)
        return f"unknown setting {setting!r}{hint} (known: {', '.join(setting_names)})"
    reason = "it must be a list, e.g. [0, 1]" if problem["type"] == "tuple_type" else problem["msg"]
    return f"setting {setting!r}: {reason}, got {problem['input']!r}"


def _apply_override(settings: dict[str, Any], override: str) -> None:
    """Change settings by a text ``key=value``.

    The value is read as TOML, or as text if it is not valid TOML.
    """
    key, separator, value_text = override.partition("=")
    if not separator or not key:
        raise InvalidInput(f"--set must be key=value, got {override!r}")
    *groups, name = key.split(".")
    group_settings = settings
    for group in groups:
        group_settings = group_settings.setdefault(group, {})
        if not isinstance(group_settings, dict):
            raise InvalidInput(f"--set {override}: {group!r} is not a group of settings")
    try:
        group_settings[name] = tomllib.loads(f"value = {value_text}")["value"]
    except tomllib.TOMLDecodeError:
        group_settings[name] = value_text


def _parse_toml(content: bytes, name: str) -> dict[str, Any]:
    """Return the settings in the content of a TOML file."""
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError:
        raise InvalidInput(f"{name} is not a text file in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{name} is not TOML: {error}") from None


def _read_preset_files() -> dict[str, bytes]:
    """Return the contents of the preset files, by name."""
    files = (resources.files("daband.bench") / "presets").iterdir()
    return {
        file.name.removesuffix(".toml"): file.read_bytes()
        for file in files
        if file.name.endswith(".toml")
    }
