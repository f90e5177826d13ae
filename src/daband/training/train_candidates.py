"""Training a list of candidates: one policy of each per seed, in a folder that resumes, with an honest time left."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from daband.domains import Pair
from daband.policies import Policy
from daband.training.loop import RunGroup, can_train_stacked, run_groups
from daband.training.trainer import Phase, TrainSettings, source_phase

_MEASURED_EPISODES = 2
"""Episodes of every candidate that are played before any other: they tell slow candidates from fast."""
_RECENT = 0.2
"""The share of the last episode in the seconds that one is expected to take."""


class Trainable(Protocol):
    """What can be trained: a name, and a policy for a pair."""

    @property
    def name(self) -> str: ...

    def build(self, pair: Pair, *, seed: int, device: str = "auto") -> Policy: ...


@dataclass(frozen=True)
class CandidateProgress:
    """How far the training of all candidates has come."""

    candidate: str
    """The candidate that played last."""
    episode: int
    episodes: int
    policies_done: int
    policies: int
    seconds_left: float | None
    """Until all candidates are trained, by the seconds that an episode of each takes; None before all were measured."""
    share: float
    """The part of the work that is done, from 0 to 1: by time where that is known, else by episodes."""
    note: str = ""
    """What ``Run.note`` says."""


@dataclass
class _Member:
    """Policies that are trained in step, the candidate that they are of, and what an episode of them takes."""

    candidate: str
    phases: list[Phase]
    group: RunGroup | None = None
    seconds: float | None = None
    spent: float = 0.0

    @property
    def episodes(self) -> int:
        return self.phases[0].episodes

    @property
    def episode(self) -> int:
        return 0 if self.group is None else self.group.episode


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
    members: list[_Member] = []
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
            members.append(_Member(candidate.name, phases))
        else:
            members += [_Member(candidate.name, [phase]) for phase in phases]
    _run(members, progress)
    return policies


def _run(members: Sequence[_Member], progress: Callable[[CandidateProgress], None] | None) -> None:
    by_group: dict[int, _Member] = {}
    try:
        for member in members:
            member.group = RunGroup(member.phases)
            by_group[id(member.group)] = member
            if member.group.failure is not None:
                raise member.group.failure
    except BaseException:
        for member in by_group.values():
            if member.group is not None:
                member.group.stop()
        raise

    def after(group: RunGroup, seconds: float) -> None:
        if group.failure is not None:
            raise group.failure
        member = by_group[id(group)]
        member.spent += seconds
        # The first episode compiles kernels and begins with empty buffers: the second replaces it.
        fresh = member.seconds is None or group.episode <= _MEASURED_EPISODES
        member.seconds = seconds if fresh else (1 - _RECENT) * (member.seconds or 0.0) + _RECENT * seconds
        if progress is not None:
            progress(_progress(member, members))

    run_groups([member.group for member in members if member.group is not None], first=_MEASURED_EPISODES, after=after)


def _progress(now: _Member, members: Sequence[_Member]) -> CandidateProgress:
    open_members = [member for member in members if member.episode < member.episodes]
    kinds: dict[str, float] = {}
    for member in members:
        if member.seconds is not None:
            kinds[member.candidate] = max(member.seconds, kinds.get(member.candidate, 0.0))
    left = None
    if all(member.candidate in kinds for member in open_members):
        left = sum(
            (kinds[member.candidate] if member.seconds is None else member.seconds) * (member.episodes - member.episode)
            for member in open_members
        )
    spent = sum(member.spent for member in members)
    played, all_episodes = (sum(getattr(member, name) for member in members) for name in ("episode", "episodes"))
    return CandidateProgress(
        candidate=now.candidate,
        episode=now.episode,
        episodes=now.episodes,
        policies_done=sum(len(member.phases) for member in members if member.episode >= member.episodes),
        policies=sum(len(member.phases) for member in members),
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
