"""Training a list of candidates: one policy of each per seed, in a folder that resumes, with an honest time left."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from daband.domains._contract import Pair
from daband.policies._policy import Policy
from daband.training._loop import RunGroup, can_train_stacked, run_groups
from daband.training._trainer import Phase, TrainSettings, source_phase


class Trainable(Protocol):
    """What can be trained: a name, and a policy for a pair."""

    @property
    def name(self) -> str: ...

    def build(self, pair: Pair, *, seed: int, device: str = "auto") -> Policy: ...


@dataclass(frozen=True)
class CandidateProgress:
    """How far the training of all candidates has come."""

    #: The candidate that played last.
    candidate: str
    episode: int
    episodes: int
    policies_done: int
    policies: int
    #: Until all candidates are trained, by the seconds that an episode of each takes; None before all were measured.
    seconds_left: float | None
    #: The part of the work that is done, from 0 to 1: by time where that is known, else by episodes.
    share: float
    #: What ``Run.note`` says.
    note: str = ""


def train_candidates(
    pair: Pair,
    candidates: Sequence[Trainable],
    *,
    seeds: Sequence[int],
    episodes: int | None = None,
    episode_length: int = 64,
    device: str = "auto",
    directory: str | Path | None = None,
    progress: Callable[[CandidateProgress], None] | None = None,
) -> list[list[Policy]]:
    """Train a policy of every candidate for every seed, and return them: a list per candidate, in the order of seeds.

    Candidates that are the same policy (LinUCB with and without PCA where PCA keeps all components) are trained once,
    and their lists hold the same objects.

    Args:
        pair: what to learn.
        candidates: each has a ``name`` and ``build(pair, seed=, device=)``.
        seeds: of the policies of each candidate.
        episodes: as in ``train``.
        episode_length: as in ``train``.
        device: "auto" (a GPU where there is one), "cpu", "cuda", ...
        directory: keep every run there, in a folder of its own. Called again with the same settings, what is trained is
            read, and what was interrupted goes on.
        progress: called after every episode.
    """
    policies: list[list[Policy]] = []
    by_identity: dict[str, list[Policy]] = {}
    #: Policies that are trained in step, by the candidate that they are of.
    work: list[tuple[str, list[Phase]]] = []
    for number, candidate in enumerate(candidates):
        built = [candidate.build(pair, seed=seed, device=device) for seed in seeds]
        key = _identity(built[0])
        policies.append(by_identity.setdefault(key, built))
        if policies[-1] is not built:
            continue
        phases = []
        for policy in built:
            place = None if directory is None else Path(directory) / f"{number}-{_slug(candidate.name)}-{policy.seed}"
            settings = TrainSettings(episodes=episodes, episode_length=episode_length, directory=place)
            phases.append(source_phase(policy, pair.source, pair.target, settings))
        if _on_gpu(built[0]) and can_train_stacked(built):
            work.append((candidate.name, phases))
        else:
            work += [(candidate.name, [phase]) for phase in phases]
    _run(work, progress)
    return policies


def _run(work: list[tuple[str, list[Phase]]], progress: Callable[[CandidateProgress], None] | None) -> None:
    groups: list[RunGroup] = []

    def after(group: RunGroup) -> None:
        if group.failure is not None:
            raise group.failure
        if progress is not None:
            progress(_progress(group, groups))

    with ExitStack() as begun:
        for name, phases in work:
            groups.append(RunGroup(phases, name=name))
            begun.callback(groups[-1].stop)
            if groups[-1].failure is not None:
                raise groups[-1].failure
        run_groups(groups, after=after)


def _progress(now: RunGroup, groups: Sequence[RunGroup]) -> CandidateProgress:
    #: Of every candidate that was measured, what an episode takes at most.
    slowest: dict[str, float] = {}
    for group in groups:
        if group.episode_seconds is not None:
            slowest[group.name] = max(group.episode_seconds, slowest.get(group.name, 0.0))
    left: float | None = 0.0
    for group in groups:
        if group.episode < group.episodes:
            expected = slowest.get(group.name) if group.episode_seconds is None else group.episode_seconds
            more = group.episodes - group.episode
            left = None if left is None or expected is None else left + expected * more
    spent = sum(group.seconds for group in groups)
    played, all_episodes = (sum(getattr(group, name) for group in groups) for name in ("episode", "episodes"))
    return CandidateProgress(
        candidate=now.name,
        episode=now.episode,
        episodes=now.episodes,
        policies_done=sum(len(group.phases) for group in groups if group.episode >= group.episodes),
        policies=sum(len(group.phases) for group in groups),
        seconds_left=left,
        share=played / all_episodes if left is None else spent / max(spent + left, 1e-9),
        note=now.phases[0].note,
    )


def _identity(policy: Policy) -> str:
    """The same for two policies that learn and decide the same: their settings, without PCA that keeps everything."""
    settings = {**policy.settings(), "name": policy.name}
    transform = settings.get("transform")
    if isinstance(transform, dict) and (transform.get("components") or 0) >= math.prod(policy.context_shape):
        settings["transform"] = {**transform, "components": None}
    text = json.dumps(settings, sort_keys=True, default=repr)
    # Of an object of the user's own the settings tell the class at most.
    return f"{text} {id(policy)}" if '"custom"' in text else text


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-")


def _on_gpu(policy: Policy) -> bool:
    device = getattr(getattr(policy, "learner", None), "device", None)
    return getattr(device, "type", "cpu") == "cuda"
