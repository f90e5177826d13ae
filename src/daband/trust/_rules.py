"""``rules``: the best small tree over raw columns, if the data prove that it gains.

The tree has the largest sum of the scores from which the policy of a choice was learned: the
cross-fitted doubly robust scores of a log, or the rewards of all arms. There are two such trees of
each depth: one for the contexts of the source, and one for scores that are weighted to the contexts
of the target. Weights make the tree fit the target, but also fit noise if few rounds are like it.

A tree is used if its cross-fitted gain over the best arm passes two tests: a 99% limit for all trees
(``ScoredLog.evaluate``), and the limit of the verdict, which allows for rewards that move between
the domains (``forecast_gains``). Of the trees that pass, the one with the largest gain less its
standard error is used, for the contexts of the target. If none passes, the rule is the best arm.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from daband.base._arguments import check_int
from daband.base._arrays import BoolArray, FloatArray, IntArray, use_one_blas_thread
from daband.base._files import write_text
from daband.base._svg import escape_text
from daband.domains._contract import LoggedDomain, Pair
from daband.errors import InvalidInput
from daband.logs._advantages import GainEvidence, ScoredLog, score_rewards
from daband.logs._mean_estimates import estimate_mean
from daband.logs._tree_search import FoundNode, search_tree
from daband.policies._checkpoints import load_policy
from daband.policies._default_members import Candidate
from daband.policies._log_policy import LogPolicy
from daband.policies._policy import Policy
from daband.policies._rule_policy import RulePolicy
from daband.policies._trees import MAX_STORED_ROUNDS
from daband.serving._rule import Node, Rule, describe_condition, list_paths, measure_depth, to_state
from daband.trust._assess import (
    Choices,
    SourceRounds,
    TargetContexts,
    forecast_gains,
    read_source_rounds,
    reassess,
)
from daband.trust._assessment import Assessment, format_number
from daband.trust._choose import Choice, choose
from daband.trust._incumbent import decide
from daband.trust._rule_columns import (
    MAX_CUTS,
    apply_found,
    build_node,
    list_columns,
    select_rows,
)

#: File of the rule in the folder of a choice.
RULES_FILE = "rules.json"
#: File of its figure.
FIGURE_FILE = "rules.svg"
#: Level of intervals.
_CONFIDENCE = 0.95
#: Maximum number of contexts of the target from which fractions are computed.
_MAX_CONTEXTS = 20_000
#: An arm that is not chosen in a leaf is this much below the chosen one, in standard deviations.
_MIN_LEAD = 1e-6


@dataclass(frozen=True)
class RuleLeaf:
    """A leaf of a rule."""

    #: Its conditions.
    path: str
    #: Its arm.
    arm: str
    #: The fractions of contexts of the source and of the target in this leaf.
    source_fraction: float
    target_fraction: float
    #: The number of source rounds of each arm in this leaf, by name.
    rounds: Mapping[str, int]
    #: The mean gain over the best arm in this leaf, and its 95% interval. The tree was chosen by
    #: the same scores, so it is rather too large.
    gain: float
    low: float
    high: float


@dataclass(frozen=True)
class Rules:
    """A small tree that chooses arms by raw columns, and the evidence for it.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> age, mail = rng.uniform(20, 80, (4000, 1)), rng.integers(0, 2, 4000)
    >>> spent = rng.normal(5 + mail * np.where(age[:, 0] < 50, 1.0, -1.0))
    >>> log = (age, mail, spent, np.full(4000, 0.5))
    >>> pair = daband.domains.from_log(source=log, target=age, n_arms=2, class_names=["none", "mail"])
    >>> rules = daband.rules(daband.choose(pair), pair=pair, max_depth=1)
    >>> rules.proven, [leaf.arm for leaf in rules.leaves]
    (True, ['mail', 'none'])
    """

    #: The policy.
    policy: RulePolicy
    #: The leaves, from the first to the last line of the rule.
    leaves: tuple[RuleLeaf, ...]
    #: The arm that is best for all.
    best_arm: str
    #: True if the gain over the best arm is proven. Otherwise the rule is the best arm.
    proven: bool
    #: The cross-fitted gain of the tree over the best arm per context of the target, its standard
    #: error, and its lower limit.
    gain: float
    error: float
    low: float
    #: The estimated mean reward that the rule loses against the choice's policy, and its 95%
    #: interval.
    loss: float
    loss_low: float
    loss_high: float
    #: The assessment of the rule against the incumbent of the choice.
    assessment: Assessment
    #: Reasons why a tree with a positive limit is not used, as in ``Assessment.doubts``.
    doubts: Sequence[str] = ()

    @property
    def rule(self) -> Rule:
        """The tree with its arms, which can be written as SQL, JSON or conditions of GrowthBook."""
        return self.policy.rule

    @property
    def sentence(self) -> str:
        """The gain over the best arm and the loss against the policy, in words."""
        gain, low = (format_number(value, with_sign=True) for value in (self.gain, self.low))
        loss, *limits = map(format_number, (self.loss, self.loss_low, self.loss_high))
        unit = self.assessment.unit and f" {self.assessment.unit}"
        reason = ", because " + " and ".join(self.doubts) if self.doubts else ""
        result = f" This is no proof{reason}. So the rule is always {self.best_arm}."
        return (
            f"The tree gains {gain} +- {format_number(self.error)}{unit} over always"
            f" {self.best_arm}, at least {low}.{'' if self.proven else result} The estimated loss"
            f" against the full policy is {loss} ({' to '.join(limits)}). The verdict is for this"
            " rule, which is another policy than the choice's, and uses no target rewards."
        )

    def to_text(self) -> str:
        """Return the rule, its leaves and the evidence as text."""
        lines = [self.rule.to_text(), self.sentence, self.assessment.sentence]
        for leaf in self.leaves:
            rounds = ", ".join(f"{name} {count:,}" for name, count in leaf.rounds.items())
            gain, low, high = map(format_number, (leaf.gain, leaf.low, leaf.high))
            lines.append(
                f"{leaf.path}: {leaf.arm}, for {leaf.target_fraction:.0%} of the target"
                f" ({leaf.source_fraction:.0%} of the source), gain over always {self.best_arm}"
                f" {gain} [{low}, {high}], rounds: {rounds}"
            )
        return "\n".join(lines) + "\n"

    def to_svg(self) -> str:
        """Return a figure of the tree."""
        return _draw_tree(self.policy.rule, self.leaves)

    def save(self, folder: str | Path) -> None:
        """Write ``rules.json``, which ``daband.load`` reads, and the figure ``rules.svg``.

        Raise an error if the folder has a rule that has learned target logs.
        """
        check_rules_folder(folder)
        self.policy.save(Path(folder) / RULES_FILE)
        write_text(Path(folder) / FIGURE_FILE, self.to_svg())


def check_rules_folder(folder: str | Path) -> None:
    """Raise an error if a folder has a rule that has learned target logs."""
    path = Path(folder) / RULES_FILE
    if path.is_file() and load_policy(path).version:
        raise InvalidInput(
            f"{path} is an earlier rule that has learned target logs, and a new rule would"
            " overwrite it; move or remove it"
        )


@dataclass(frozen=True)
class _Evidence:
    """The rounds from which a rule is learned, and the policy that it is compared with."""

    rounds: SourceRounds
    scored: ScoredLog
    #: How much each round counts for the minimum number of rounds of each arm, (n, K).
    counts: FloatArray
    #: The policy that chooses by context.
    policy: Policy


def rules(
    choice: Choice,
    *,
    pair: Pair | None = None,
    max_depth: int = 2,
    min_rounds: int = 50,
    seed: int = 0,
) -> Rules:
    """Return the best small tree over the raw columns of a choice's data, or the best arm if the
    data do not prove that the tree is better.

    Args:
        choice: the result of ``daband.choose``.
        pair: the pair of the choice; by default it is read from the choice's files.
        max_depth: the maximum number of conditions of a row, 1 to 3. Of all depths, the one with
            the largest gain less its standard error is used. Trees of depth 1 and 2 are exact: no other
            tree over the same cuts has a better estimate. The first condition of a tree of depth 3
            is one of the eight that are best for depth 2.
        min_rounds: an arm is chosen in a leaf only if it has at least as many source rounds there.
        seed: determines the folds of cross-fitting for rewards that are not from a log.

    >>> import numpy, polars
    >>> rng = numpy.random.default_rng(0)
    >>> log = polars.DataFrame({"age": rng.integers(18, 90, 400), "offer": rng.choice(["call", "mail"], 400)})
    >>> log = log.with_columns(euros=1.0 + (polars.col("offer") == "mail"), p=0.5)  # for everybody
    >>> columns = daband.domains.Columns(["age"], arm="offer", reward="euros", propensity="p")
    >>> pair = daband.domains.from_table(source=log, target=log.select("age"), columns=columns)
    >>> rules = daband.rules(daband.choose(pair), pair=pair, max_depth=1)
    >>> [leaf.arm for leaf in rules.leaves]
    ['mail']
    """
    if not isinstance(choice, Choice):
        raise InvalidInput(f"choice must be a result of daband.choose, got {type(choice).__name__}")
    if check_int("max_depth", max_depth, minimum=1) not in MAX_CUTS:
        raise InvalidInput(f"max_depth must be 1, 2 or 3, got {max_depth}")
    check_int("min_rounds", min_rounds, minimum=1)
    if pair is None and choice.options is None:
        raise InvalidInput("pair is needed, because the choice was not made from files: pair=pair")
    pair = choice.options.read() if pair is None else pair  # type: ignore[union-attr]
    if len(pair.context_shape) != 1 or pair.arms != "disjoint":
        raise InvalidInput(
            f"pair must have one vector per context for rules, got {pair.arms} arms and contexts of"
            f" shape {pair.context_shape}"
        )
    evidence = _collect_evidence(choice.policy, pair, seed)
    scored = evidence.scored
    rounds = evidence.rounds
    columns = list_columns(pair, rounds.contexts, MAX_CUTS[max_depth])
    if not columns:
        raise InvalidInput("pair has no column of numbers, categories or dates that rules can use")
    arms = np.flatnonzero(scored.learner.is_supported)
    #: The depth and the weights of each tree that is learned.
    candidates = list(itertools.product(range(1, max_depth + 1), (False, True)))

    def search(depth: int, is_weighted: bool, scores: FloatArray, rows: BoolArray) -> FoundNode:
        """Return the best tree of the rounds for which a mask is True."""
        mix = scored.learner.make_mix(rows, scores[rows])
        weights = mix.target_weights if is_weighted else mix.weights
        contrasts = scores[rows][:, arms] - scores[rows][:, [scored.best_arm]]
        return search_tree(
            weights[:, None] * contrasts,
            select_rows(columns, rows),
            depth=depth,
            counts=evidence.counts[rows][:, arms],
            min_count=min_rounds,
        )[1]

    def choose_arms(depth: int, is_weighted: bool, scores: FloatArray, rows: BoolArray) -> IntArray:
        """Return the arm of each round by the best tree."""
        return arms[apply_found(search(depth, is_weighted, scores, rows), columns)]

    def limit(gain: GainEvidence) -> GainEvidence:
        """Return evidence with the verdict's lower limit if it is smaller."""
        forecast = forecast_gains(
            evidence.policy,
            rounds,
            gain.values - scored.scores[:, scored.best_arm],
            float((gain.values if rounds.logged is None else rounds.logged.rewards).std()),
            gain.fraction,
        )
        return gain._replace(low=min(gain.low, forecast.low))

    with use_one_blas_thread():
        gains = list(map(limit, scored.evaluate([partial(choose_arms, *c) for c in candidates])))
        candidate, gain = max(
            zip(candidates, gains, strict=True),
            key=lambda one: (one[1].low > 0.0, one[1].gain.compute_limit(-1.0)),
        )
        found = search(*candidate, scored.scores, np.ones(len(scored.scores), np.bool_))
    node, indices = build_node(found, columns)

    def describe(proven: bool) -> Rules:
        """Return the tree with the evidence, or the best arm."""
        policy = RulePolicy.for_pair(
            pair,
            tree=to_state(node) if proven else None,
            seed=choice.policy.seed,
        )
        policy.reward_moments.restore(choice.policy.reward_moments.state())
        policy.deploy("target")
        leaf_arms = arms[indices].tolist() if proven else [scored.best_arm]
        return _describe(choice, pair, evidence, policy, leaf_arms, gain, proven)

    result = describe(gain.low > 0.0 and len(indices) > 1)
    if result.proven and result.assessment.doubts:
        return dataclasses.replace(describe(False), doubts=result.assessment.doubts)
    return result


def _collect_evidence(policy: Policy, pair: Pair, seed: int) -> _Evidence:
    """Return the rounds from which the policy of a choice was learned, with their scores."""
    if isinstance(pair.source, LoggedDomain):
        if not isinstance(policy, LogPolicy) or policy.rounds_learned != len(pair.source):
            # it has learned target rewards
            candidates = [Candidate("log", "log", preferred=True)]
            policy = choose(pair, candidates=candidates, seed=seed).policy
        assert isinstance(policy, LogPolicy)
        rounds = read_source_rounds(policy, pair.source, len(pair.source), seed=0)
        scored = policy.score_rounds()
        if rounds.logged is None or rounds.values is None or scored is None:
            raise InvalidInput(f"the source has {len(pair.source)} round(s), too few for rules")
        counts = np.equal.outer(rounds.logged.arms, np.arange(pair.n_arms)).astype(np.float64)
        return _Evidence(rounds, scored, counts, policy)
    rounds = SourceRounds.read(pair.source, MAX_STORED_ROUNDS, seed=seed)
    offered = None if pair.catalogue is None else np.logical_and(*pair.catalogue.offered)
    target = TargetContexts.read(pair.target, _MAX_CONTEXTS, seed=0).contexts
    # a column whose unit differs would separate the domains
    is_same = ~np.array(pair.shift.mask_separate_columns(target.shape[1]))
    scored = score_rewards(
        rounds.contexts * is_same,
        rounds.rewards,
        target=target * is_same,
        offered=offered,
        seed=seed,
    )
    return _Evidence(rounds, scored, np.ones(rounds.rewards.shape), policy)


def _describe(
    choice: Choice,
    pair: Pair,
    evidence: _Evidence,
    policy: RulePolicy,
    leaf_arms: list[int],
    gain: GainEvidence,
    proven: bool,
) -> Rules:
    """Set the rewards of the leaves of a policy, and return it with the evidence."""
    scored = evidence.scored
    scores = scored.scores
    names = pair.class_names or tuple(map(str, range(pair.n_arms)))
    contexts = evidence.rounds.contexts
    leaves = policy.find_leaves(contexts)
    target = TargetContexts.read(pair.target, _MAX_CONTEXTS, seed=0)
    target_leaves = policy.find_leaves(target.contexts)
    weights = scored.mix.target_weights
    means = np.zeros((len(leaf_arms), pair.n_arms))
    counts = np.zeros_like(means)
    described = []
    for leaf, (path, arm) in enumerate(zip(list_paths(policy.node), leaf_arms, strict=True)):
        is_in = leaves == leaf
        leaf_weights = weights[is_in] / weights[is_in].sum()
        counts[leaf] = evidence.counts[is_in].sum(axis=0)
        means[leaf] = leaf_weights @ scores[is_in]
        lead = _MIN_LEAD * (float(scored.learner.log.rewards.std()) or 1.0)
        others = np.arange(pair.n_arms) != arm
        means[leaf, others] = np.minimum(means[leaf, others], means[leaf, arm] - lead)
        differences = scores[is_in, arm] - scores[is_in, scored.best_arm]
        mean = float(leaf_weights @ differences)
        terms = len(differences) * leaf_weights * (differences - mean)
        estimate = estimate_mean(terms)._replace(value=mean)
        described.append(
            RuleLeaf(
                path,
                names[arm],
                float(is_in.mean()),
                float((target_leaves == leaf).mean()),
                {name: int(n) for name, n in zip(names, counts[leaf], strict=True)},
                mean,
                *estimate.compute_interval(_CONFIDENCE),
            )
        )
    policy.set_prior(means, counts)
    if not proven:
        arms = np.full(len(scores), scored.best_arm)
        gain = gain._replace(arms=arms, values=scores[:, scored.best_arm])
    rounds = evidence.rounds
    if rounds.values is None:
        rounds = SourceRounds.read(pair.source_test or pair.source, _MAX_CONTEXTS, seed=0)
        arms, policy_arms = (rounds.decide(chooser)[0] for chooser in (policy, evidence.policy))
        loss = estimate_mean(rounds.get_rewards(policy_arms) - rounds.get_rewards(arms))
    else:
        loss = scored.mix.estimate(rounds.values.values - gain.values).mean
        rounds = rounds.with_choices(gain.arms, gain.values)
    choices = Choices(*rounds.decide(policy), *decide(policy, target.contexts, "target", "greedy"))
    return Rules(
        policy,
        tuple(described),
        names[scored.best_arm],
        proven,
        gain.gain.value,
        gain.gain.standard_error,
        gain.low,
        loss.value,
        *loss.compute_interval(_CONFIDENCE),
        assessment=reassess(choice.assessment, policy, pair, rounds, target, choices),
    )


#: Sizes of the figure, in pixels.
_LEAF_WIDTH, _LEVEL_HEIGHT, _BOX_HEIGHT = 190, 84, 44


def _draw_tree(rule: Rule, leaves: tuple[RuleLeaf, ...]) -> str:
    """Return a tree as SVG: conditions in boxes, and the arm and fractions of each leaf."""
    shapes: list[str] = []

    def draw(node: Node, level: int) -> float:
        """Draw a node and return the centre of its box."""
        if isinstance(node, int):
            centre = (node + 0.5) * _LEAF_WIDTH
            leaf = leaves[node]
            lines = [leaf.arm, f"{leaf.target_fraction:.0%} of the target"]
        else:
            sides = draw(node.yes, level + 1), draw(node.no, level + 1)
            centre = sum(sides) / 2
            lines = describe_condition(node).split(" or ")
            for side, label in zip(sides, ("yes", "no"), strict=True):
                top, bottom = level * _LEVEL_HEIGHT + _BOX_HEIGHT, (level + 1) * _LEVEL_HEIGHT
                shapes.append(f'<path d="M{centre} {top}L{side} {bottom}" stroke="#888"/>')
                middle = (centre + side) / 2, (top + bottom) / 2
                shapes.append(f'<text x="{middle[0]}" y="{middle[1]}">{label}</text>')
        fill = "#dcebf7" if isinstance(node, int) else "#f4f4f4"
        left, top = centre - _LEAF_WIDTH / 2 + 6, level * _LEVEL_HEIGHT
        shapes.append(
            f'<rect x="{left}" y="{top}" width="{_LEAF_WIDTH - 12}" height="{_BOX_HEIGHT}" rx="5"'
            f' fill="{fill}" stroke="#888"/>'
        )
        for index, line in enumerate(lines):
            y = top + 18 + 18 * index if len(lines) > 1 else top + 27
            shapes.append(f'<text x="{centre}" y="{y}">{escape_text(line[:28])}</text>')
        return centre

    draw(rule.node, 0)
    width, height = (
        len(leaves) * _LEAF_WIDTH,
        measure_depth(rule.node) * _LEVEL_HEIGHT + _BOX_HEIGHT,
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + 2}"'
        f' width="{width}" font-family="sans-serif" font-size="13" text-anchor="middle">'
        f"{''.join(shapes)}</svg>\n"
    )
