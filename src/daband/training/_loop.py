"""Train a policy on the source, or continue in the target.

``train`` and ``continue_on_target`` build a ``Phase``, the rounds to play, and ``play`` plays it.
"""

from __future__ import annotations

import math
from pathlib import Path

from daband.base._arguments import Progress, check_int
from daband.domains._contract import Contexts
from daband.errors import InvalidInput
from daband.policies._policy import Policy
from daband.training._phase import (
    LabelledDomain,
    Phase,
    build_source_phase,
    check_domains,
)
from daband.training._trainer import Run, Trainer


def train(
    policy: Policy,
    *,
    source: LabelledDomain,
    target: Contexts | None = None,
    episodes: int | None = None,
    episode_length: int = 64,
    seed: int | None = None,
    directory: str | Path | None = None,
    save_every: float = 30.0,
    progress: Progress | None = None,
) -> Run:
    """Train a policy on source rewards and unlabelled target contexts.

    Args:
        policy: the policy, changed in place.
        source: the domain in which rounds are played and rewarded (or a log of such rounds).
        target: unlabelled contexts of the target, or None. Target rewards cannot be passed.
        episodes: the number of episodes. The default is 300, and a source with fewer rounds is shown
            again, up to five times in total. All rounds of a log are learned once by default.
            ``Run.note`` then states the number of rounds. If the source has full feedback, a policy
            without gradient steps learns every row once, whatever ``episodes`` is.
        episode_length: the number of rounds per episode. The policy adapts after each episode.
            Without ``episodes``, episodes of a log with more than 300 times this number of rounds
            are longer.
        seed: determines the order of contexts; the policy's seed by default.
        directory: the run's folder. A second call with the same settings resumes an interrupted
            run, which ends with the same result, bit for bit. Ctrl-C waits for the end of the
            episode and saves it. Only one process can use a folder at a time.
        save_every: the minimum number of seconds between two saves into ``directory``; 0 saves
            every episode.
        progress: called after every episode with its record (an entry of ``Run.episodes``).

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> policy = daband.LinUCB.for_pair(pair, seed=0)
    >>> run = daband.train(policy, source=pair.source, target=pair.target, episodes=2, directory="run")
    >>> policy.rounds_learned
    128
    """
    phase = build_source_phase(
        policy,
        source,
        target,
        episodes=episodes,
        episode_length=episode_length,
        seed=seed,
        directory=directory,
        save_every=save_every,
        progress=progress,
    )
    return play(phase)


def continue_on_target(
    policy: Policy,
    *,
    target: LabelledDomain | None,
    rounds: int = 1920,
    episode_length: int = 64,
    seed: int | None = None,
    directory: str | Path | None = None,
    save_every: float = 30.0,
    progress: Progress | None = None,
) -> Run:
    """Continue training in the target, once target rewards are available.

    The policy learns how much its source rounds count (``Policy.source_worth``). Fewer than
    ``rounds`` rounds are played if the target has fewer contexts. The last episode may be shorter
    than ``episode_length``.

    Args:
        policy: the policy, changed in place.
        target: the target with rewards, e.g. ``pair.target_labelled``, whose contexts evaluation
            does not use; or a log of target rounds (for files of any size, use ``learn_log``).
        rounds: the maximum number of rounds.
        episode_length: the number of rounds per episode. The policy adapts after each episode.
        seed: determines the order of contexts; the policy's seed by default.
        directory: the folder of this phase, as in ``train``.
        save_every: the minimum number of seconds between two saves into ``directory``; 0 saves
            every episode.
        progress: called after every episode with its record (an entry of ``Run.episodes``).

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> policy = daband.LinUCB.for_pair(pair, seed=0)
    >>> run = daband.continue_on_target(policy, target=pair.target_labelled, rounds=16, episode_length=8)
    >>> run.rounds
    16
    """
    rounds = check_int("rounds", rounds, minimum=1)
    episode_length = check_int("episode_length", episode_length, minimum=1)
    if not isinstance(target, LabelledDomain):
        hint = ": this pair has no target rewards" if target is None else ""
        raise InvalidInput(
            "target must be a labelled domain, e.g. pair.target_labelled, or a log of the target,"
            f" got {type(target).__name__}{hint}"
        )
    rounds = min(rounds, len(target))
    check_domains(policy, target, None, role="target")
    phase = Phase(
        policy,
        "target",
        target,
        None,
        math.ceil(rounds / episode_length),
        episode_length,
        seed=seed,
        directory=directory,
        save_every=save_every,
        progress=progress,
        n_rounds=rounds,
    )
    return play(phase)


def play(phase: Phase) -> Run:
    """Play a phase, episode by episode, and return its run.

    In an episode, the policy chooses arms, learns their rewards, observes target contexts and adapts.
    If the phase has a folder, an interrupted run is resumed, and Ctrl-C waits for the end of the
    episode and saves it.
    """
    with Trainer(phase) as trainer:
        while not trainer.is_finished:
            trainer.play_episode()
    return trainer.build_run()
