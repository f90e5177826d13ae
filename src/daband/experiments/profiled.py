"""A profiled run: the same run, its seconds by part, and a trace of one of its episodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from daband.errors import InvalidInput
from daband.experiments.prepared import prepare
from daband.experiments.run import conclude, finished_record
from daband.experiments.settings import RunSpec
from daband.training import Profile, train

__all__ = ["Profiled", "profile_run"]


@dataclass(frozen=True)
class Profiled:
    """Where the time of a run went, and the trace that shows it."""

    seconds: dict[str, float]
    """Wall seconds of "step", "features", "head" and "host", the rest."""
    trace: Path


def profile_run(spec: RunSpec, out: Path) -> Profiled:
    """Start or resume the run of ``spec``, and leave a trace in its folder; the results are those of any run."""
    if finished_record(spec, out) is not None:
        raise InvalidInput(
            f"{out / spec.folder_name} is finished, so there is nothing left to profile; choose another --out"
        )
    prepared = prepare(spec, out)
    settings = prepared.training()
    profile = Profile(prepared.policy, prepared.folder / "trace.json")
    with profile.running(settings["episodes"]):
        run = train(prepared.policy, **settings, progress=lambda _: profile.episode_done())
    conclude(prepared, run)
    return Profiled(profile.stopwatch.seconds, profile.path)
