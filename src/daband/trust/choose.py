"""``choose``: train candidates, estimate each one's value in the target without a reward from there, hand one over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daband.arguments import whole
from daband.arrays import FloatArray
from daband.domains import Pair
from daband.errors import InvalidInput
from daband.evaluation.scores import Scores, scores_of
from daband.policies import Policy
from daband.training import CandidateProgress, train_candidates
from daband.trust.assess import assess
from daband.trust.assessment import Assessment
from daband.trust.candidates import Candidate, default_candidates
from daband.trust.choice_rule import RULE, Ballot, chosen

__all__ = ["Choice", "choose"]

_OTHER_MEMBERS = 1000
"""Between the seeds of two members of a candidate: the seeds of a study's runs do not meet them."""
_CONTEXTS = 2000
_FEWEST_CONTEXTS = 2
Progress = Callable[[CandidateProgress], None]


@dataclass(frozen=True)
class Choice:
    """The policy that was chosen, what is known of it in the target, and all candidates.

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> candidates = [daband.trust.Candidate("linucb", "linucb")]
    >>> choice = daband.choose(pair, candidates=candidates, episodes=4, episode_length=32)
    >>> choice.candidate, choice.assessment.verdict in ("hand over", "hand over and audit", "do not")
    ('linucb', True)
    """

    policy: Policy
    """The chosen policy, trained; ``deploy("target")`` and use it."""
    assessment: Assessment
    """What ``daband.assess`` says of it."""
    table: list[dict[str, Any]]
    """A record per candidate, the simplest first: ``candidate``, ``method``, ``settings``, ``source_value`` (the mean
    reward on held-out source rounds), ``estimated_value`` in the target, both in the user's units, and ``chosen``."""
    candidate: str
    """The name of the chosen candidate."""
    rule: str
    """The name of the rule that chose it."""

    def as_dict(self) -> dict[str, Any]:
        """The candidate, the rule and the table, as JSON can hold them."""
        return {"candidate": self.candidate, "rule": self.rule, "table": self.table}


def choose(
    pair: Pair,
    *,
    episodes: int | None = None,
    episode_length: int = 64,
    seed: int = 0,
    candidates: Sequence[Candidate] | None = None,
    members: int = 2,
    device: str = "auto",
    directory: str | Path | None = None,
    progress: Progress | None = None,
) -> Choice:
    """Train candidates on source rewards and unlabelled target contexts, and choose one without a target reward.

    A candidate is judged by its reward on held-out source rounds, times how much less it agrees with others in the
    target than in the source (``daband.trust.choice_rule``). Where nothing is clearly better, the simpler one is
    chosen. Training costs what all candidates cost, ``members`` times.

    Args:
        pair: what to learn; it needs ``source_test``, source rounds that training does not use.
        episodes: episodes of each training; by default as ``train`` has it.
        episode_length: rounds of an episode.
        seed: that of the policy; other members have other seeds.
        candidates: what to choose from, the simplest first; by default constant, LinUCB with three settings,
            Neural-LinUCB, and DABand with two.
        members: policies trained of each candidate, 2 or more.
        device: "auto" (a GPU where there is one), "cpu", "cuda", ...
        directory: keep every training there. Called again with the same settings, a choice that was interrupted goes
            on: what is trained is read.
        progress: called after every episode with a ``daband.training.CandidateProgress``: which candidate, how much
            is done, and the seconds left.

    >>> pair = daband.domains.load("synthetic", tiny=True)
    >>> candidates = [daband.trust.Candidate("constant", "constant"), daband.trust.Candidate("linucb", "linucb")]
    >>> choice = daband.choose(pair, candidates=candidates, episodes=4, episode_length=32)
    >>> [row["candidate"] for row in choice.table]
    ['constant', 'linucb']
    """
    if not isinstance(pair, Pair):
        raise InvalidInput(f"pair must be a daband.domains.Pair, got {type(pair).__name__}")
    if pair.source_test is None:
        raise InvalidInput(
            f"the pair {pair.name!r} has no source_test: candidates are judged on source rounds that training does not "
            "use; build the pair with source_test=.1, say"
        )
    for name, domain in (("target", pair.target), ("source_test", pair.source_test)):
        if len(domain) < _FEWEST_CONTEXTS:  # said before minutes of training, not after
            raise InvalidInput(f"{name} has {len(domain)} context(s); a choice needs {_FEWEST_CONTEXTS} or more")
    whole("members", members, least=2)
    whole("seed", seed, least=0)
    whole("episode_length", episode_length, least=1)
    if episodes is not None:
        whole("episodes", episodes, least=1)
    options = list(default_candidates(pair) if candidates is None else candidates)
    if not options or not all(isinstance(one, Candidate) for one in options):
        raise InvalidInput("candidates must be daband.trust.Candidate objects, at least one")
    trained = train_candidates(
        pair,
        options,
        seeds=[seed + member * _OTHER_MEMBERS for member in range(members)],
        episodes=episodes,
        episode_length=episode_length,
        device=device,
        directory=directory,
        progress=progress,
    )
    scores, _, _ = scores_of(
        [policy for policies in trained for policy in policies],
        source=pair.source_test,
        target=pair.target,
        contexts=_CONTEXTS,
        seed=seed,
    )
    ballots = [
        _ballot(scores.of(range(i * members, (i + 1) * members)), candidate, trained[i])
        for i, candidate in enumerate(options)
    ]
    place, values = chosen(ballots)
    policies = trained[place]
    return Choice(
        policy=policies[0],
        assessment=assess(
            _different(policies), source=pair.source_test, target=pair.target, arm_names=pair.class_names
        ),
        table=_table(options, ballots, values, place, trained[0][0].reward_range),  # that scores are scaled by
        candidate=options[place].name,
        rule=RULE,
    )


def _ballot(scores: Scores, candidate: Candidate, policies: Sequence[Policy]) -> Ballot:
    return Ballot(
        scores.source_arm,
        scores.reward,
        scores.target_arm,
        uses_contexts=candidate.uses_contexts,
        seed_matters=_network_acts(policies),
        weight=scores.weight,
    )


def _network_acts(policies: Sequence[Policy]) -> bool:
    """Whether every policy decides by a network, with or without a linear part."""
    return all(policy.learns_by_gradients for policy in policies)


def _different(policies: Sequence[Policy]) -> list[Policy]:
    """The first policy, with the others where seeds make a difference: two linear policies may be one."""
    return list(policies) if _network_acts(policies) else list(policies[:1])


def _table(
    options: Sequence[Candidate],
    ballots: Sequence[Ballot],
    values: FloatArray,
    place: int,
    reward_range: tuple[float, float],
) -> list[dict[str, Any]]:
    low, high = reward_range
    return [
        {
            "candidate": candidate.name,
            "method": candidate.method,
            "settings": dict(candidate.settings),
            "source_value": low + (high - low) * ballot.source_value,
            "estimated_value": low + (high - low) * float(values[i]),
            "target_shares": [float(share) for share in _shares(ballot)],
            "chosen": i == place,
        }
        for i, (candidate, ballot) in enumerate(zip(options, ballots, strict=True))
    ]


def _shares(ballot: Ballot) -> FloatArray:
    arms = ballot.target_arm[0]
    return np.bincount(arms) / len(arms)
