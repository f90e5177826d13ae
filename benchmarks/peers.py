"""Define an adapter per bandit library, so that all of them play the same rounds through their
public API.

A context is a row of a numpy array. `encode` converts it to the input of the library, such as an
array of one row, a dictionary or a line of text. The benchmark measures both: with `encode` in each
call, and with all contexts encoded before.
"""

import importlib
import importlib.metadata
import importlib.util
import random
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class Adapter(ABC):
    """A linear bandit of one library: `n_arms` arms, contexts of `n_dimensions`, exploration
    `alpha`, ridge 1.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    """The name of the distribution on PyPI."""
    module: ClassVar[str]
    linucb: ClassVar[bool] = True
    """True if it computes the ridge statistics and confidence bonuses of LinUCB; other
    methods need less work.
    """
    episodes: ClassVar[bool] = False
    """True if it is measured on episodes. Libraries without a batch interface are as fast
    as round by round.
    """
    batch: ClassVar[str] = "loop over single choices; no batch interface"
    note: ClassVar[str] = ""

    @abstractmethod
    def __init__(self, n_dimensions: int, n_arms: int, alpha: float, seed: int) -> None: ...

    def encode(self, row: FloatArray) -> Any:
        """Return one context (d,) as the input of `select` and `update`."""
        return row[np.newaxis]

    @abstractmethod
    def select(self, context: Any) -> int:
        """Choose an arm for one encoded context."""

    @abstractmethod
    def update(self, context: Any, arm: int, reward: float) -> None:
        """Learn the reward of the arm that `select` returned last, for the same context."""

    def play(self, contexts: FloatArray, rewards: FloatArray) -> None:
        """Play rounds one after the other, and learn after each.

        Rewards (N, K) are those of every arm.
        """
        for row, arm_rewards in zip(contexts, rewards, strict=True):
            context = self.encode(row)
            arm = self.select(context)
            self.update(context, arm, float(arm_rewards[arm]))

    def encode_batch(self, contexts: FloatArray) -> Any:
        """Return contexts (N, d) as the input of `score`."""
        return [self.encode(row) for row in contexts]

    def score(self, batch: Any) -> Any:
        """Choose an arm for every context of the batch, without learning, in the fastest way the
        library offers.
        """
        return [self.select(context) for context in batch]

    def close(self) -> None:
        """Free the resources that the library holds outside Python."""
        return


class Daband(Adapter):
    """This library."""

    name = "daband LinUCB"
    package = "daband"
    module = "daband"
    episodes = True
    batch = "select(contexts)"
    note = "validation included; returns means, widths and propensities of all arms"

    def __init__(self, n_dimensions: int, n_arms: int, alpha: float, seed: int) -> None:
        import daband

        # The other libraries do not standardise rewards.
        settings: dict[str, Any] = {
            "alpha": alpha,
            "ridge": 1.0,
            "seed": seed,
            "standardise_rewards": False,
        }
        self.policy = daband.LinUCB(context_shape=(n_dimensions,), n_arms=n_arms, **settings)

    def select(self, context: Any) -> int:
        return int(self.policy.select(context).arm[0])

    def update(self, context: Any, arm: int, reward: float) -> None:
        self.policy.update(context, np.array([arm]), np.array([reward]))

    def play(self, contexts: FloatArray, rewards: FloatArray) -> None:
        self.policy.play(contexts, rewards)

    def encode_batch(self, contexts: FloatArray) -> Any:
        return contexts

    def score(self, batch: Any) -> Any:
        return self.policy.select(batch).arm


class OpenBanditPipeline(Adapter):
    """The Open Bandit Pipeline's LinUCB."""

    name = "obp LinUCB"
    package = "obp"
    module = "obp"
    note = (
        "recomputes every arm's coefficients at each choice, copies all inverses at each update;"
        " ridge is always 1"
    )

    def __init__(self, n_dimensions: int, n_arms: int, alpha: float, seed: int) -> None:
        from obp.policy import LinUCB

        self.policy = LinUCB(dim=n_dimensions, n_actions=n_arms, epsilon=alpha, random_state=seed)

    def select(self, context: Any) -> int:
        return int(self.policy.select_action(context)[0])

    def update(self, context: Any, arm: int, reward: float) -> None:
        self.policy.update_params(arm, reward, context)


class River(Adapter):
    """river's LinUCBDisjoint, with the parameters that make its posterior the ridge regression of
    LinUCB.
    """

    name = "river LinUCBDisjoint"
    package = "river"
    module = "river"
    note = (
        "the bonus is alpha * sqrt(1 + width^2): the predictive deviation, not the width; takes"
        " dictionaries"
    )

    def __init__(self, n_dimensions: int, n_arms: int, alpha: float, seed: int) -> None:  # noqa: ARG002
        from river.bandit import LinUCBDisjoint

        # river's alpha and beta are precisions of the prior and of the noise: their ratio is the
        # ridge, and 1 / sqrt(beta) multiplies the bonus.
        self.policy: Any = LinUCBDisjoint(alpha=1.0 / alpha**2, beta=1.0 / alpha**2, seed=seed)
        self.arms = list(range(n_arms))

    def encode(self, row: FloatArray) -> Any:
        return dict(enumerate(row.tolist()))

    def select(self, context: Any) -> int:
        return int(self.policy.pull(self.arms, context=context))

    def update(self, context: Any, arm: int, reward: float) -> None:
        self.policy.update(arm, context, reward)


class ContextualBandits(Adapter):
    """The LinUCB of contextualbandits, with its Sherman-Morrison updates."""

    name = "contextualbandits LinUCB"
    package = "contextualbandits"
    module = "contextualbandits"
    batch = "predict(contexts)"
    note = "float32, its default and its fastest; refuses 0 as a seed, so seeds start at 1 here"

    def __init__(self, n_dimensions: int, n_arms: int, alpha: float, seed: int) -> None:  # noqa: ARG002
        from contextualbandits.online import LinUCB

        self.policy = LinUCB(
            nchoices=n_arms,
            alpha=alpha,
            lambda_=1.0,
            fit_intercept=False,
            method="sm",
            random_state=seed + 1,
            njobs=1,
        )

    def select(self, context: Any) -> int:
        return int(self.policy.predict(context)[0])

    def update(self, context: Any, arm: int, reward: float) -> None:
        self.policy.partial_fit(context, np.array([arm]), np.array([reward]))

    def encode_batch(self, contexts: FloatArray) -> Any:
        return contexts

    def score(self, batch: Any) -> Any:
        return self.policy.predict(batch)


class MabWiser(Adapter):
    """mabwiser's LinUCB."""

    name = "mabwiser LinUCB"
    package = "mabwiser"
    module = "mabwiser"
    batch = "predict(contexts)"
    note = (
        "inverts A anew at each update; an arm's inverse starts as ridge * I, which is right for"
        " ridge 1 only"
    )

    def __init__(self, n_dimensions: int, n_arms: int, alpha: float, seed: int) -> None:
        from mabwiser.mab import MAB, LearningPolicy

        self.policy = MAB(
            arms=list(range(n_arms)),
            learning_policy=LearningPolicy.LinUCB(alpha=alpha, l2_lambda=1.0),
            seed=seed,
        )
        # It refuses to predict before a fit: a context of zeros leaves every arm at its prior.
        self.policy.fit(decisions=[0], rewards=[0.0], contexts=np.zeros((1, n_dimensions)))

    def select(self, context: Any) -> int:
        return int(self.policy.predict(context))

    def update(self, context: Any, arm: int, reward: float) -> None:
        self.policy.partial_fit([arm], [reward], context)

    def encode_batch(self, contexts: FloatArray) -> Any:
        return contexts

    def score(self, batch: Any) -> Any:
        return self.policy.predict(batch)


class VowpalWabbit(Adapter):
    """SquareCB over Vowpal Wabbit's linear model with one weight vector per arm, the text interface
    of its tutorials.

    It has no LinUCB. SquareCB was the quickest of its linear policies that learn this problem;
    RegCB, the optimistic one, earns a little more and is slower. Costs are centred, which earns it
    more than negative rewards do; learning rate and gamma are the best of those tried.
    """

    name = "vw squarecb, text"
    package = "vowpalwabbit"
    module = "vowpalwabbit"
    linucb = False
    note = (
        "no widths: gradient steps, O(K d) per round; contexts parsed from text at select and again"
        " at update"
    )
    arguments: ClassVar[str] = (
        "--quiet --cb_explore_adf --squarecb --gamma_scale 30 -l 2 -q xA --ignore_linear x"
        " --noconstant"
    )

    prefix: ClassVar[str] = "shared |x "

    def __init__(self, n_dimensions: int, n_arms: int, alpha: float, seed: int) -> None:  # noqa: ARG002
        import vowpalwabbit

        self.line = self.prefix + " ".join(f"{i}:%.7g" for i in range(n_dimensions))
        self.workspace = vowpalwabbit.Workspace(f"{self.arguments} --random_seed {seed + 1}")
        self.actions = [f"|A a{arm}" for arm in range(n_arms)]
        self.arms = range(n_arms)
        self.draw = random.Random(seed)
        self.probabilities: list[float] = []

    def encode(self, row: FloatArray) -> Any:
        # one format for the whole line: the quickest way found
        return self.line % tuple(row.tolist())

    def select(self, context: Any) -> int:
        self.probabilities = self.workspace.predict([context, *self.actions])
        return self.draw.choices(self.arms, self.probabilities)[0]

    def update(self, context: Any, arm: int, reward: float) -> None:
        lines = [context, *self.actions]
        lines[arm + 1] = f"0:{0.5 - reward:.7g}:{self.probabilities[arm]:.7g} {self.actions[arm]}"
        self.workspace.learn(lines)

    def close(self) -> None:
        self.workspace.finish()


class VowpalWabbitParsedOnce(VowpalWabbit):
    """The same policy, which keeps the parsed examples from select until update.

    This is its fastest correct use.
    """

    name = "vw squarecb, parsed once"
    note = "as above, but the examples that select parsed are kept, labelled and learned from"

    def __init__(self, n_dimensions: int, n_arms: int, alpha: float, seed: int) -> None:
        super().__init__(n_dimensions, n_arms, alpha, seed)
        self.examples: list[Any] = []

    def select(self, context: Any) -> int:
        self.examples = self.workspace.parse([context, *self.actions])
        self.probabilities = self.workspace.predict(self.examples)
        return self.draw.choices(self.arms, self.probabilities)[0]

    def update(self, context: Any, arm: int, reward: float) -> None:  # noqa: ARG002
        self.examples[arm + 1].set_label_string(
            f"0:{0.5 - reward:.7g}:{self.probabilities[arm]:.7g}"
        )
        self.workspace.learn(self.examples)
        self.workspace.finish_example(self.examples)

    def score(self, batch: Any) -> Any:
        return [super(VowpalWabbitParsedOnce, self).select(context) for context in batch]


class VowpalWabbitEpsilonGreedy(VowpalWabbit):
    """Epsilon-greedy over one linear regression per arm, the cheapest contextual bandit of Vowpal
    Wabbit.
    """

    name = "vw epsilon-greedy, text"
    note = (
        "one gradient step on one arm per round, no widths and no directed exploration: see its"
        " reward"
    )
    arguments = "--quiet --cb_explore {n_arms} --epsilon 0.05 --cb_type dm -l 0.5 --noconstant"
    prefix = "|x "

    def __init__(self, n_dimensions: int, n_arms: int, alpha: float, seed: int) -> None:
        self.arguments = VowpalWabbitEpsilonGreedy.arguments.format(n_arms=n_arms)  # type: ignore[misc]
        super().__init__(n_dimensions, n_arms, alpha, seed)

    def select(self, context: Any) -> int:
        self.probabilities = self.workspace.predict(context)
        return self.draw.choices(self.arms, self.probabilities)[0]

    def update(self, context: Any, arm: int, reward: float) -> None:
        self.workspace.learn(f"{arm + 1}:{-reward:.7g}:{self.probabilities[arm]:.7g} {context}")


class BareNumpy(Adapter):
    """LinUCB in a dozen lines of numpy, without checks, to measure the arithmetic only."""

    name = "bare numpy loop"
    package = "numpy"
    module = "numpy"
    episodes = True
    batch = "one matrix product"
    note = "not a library: no validation, no random ties"

    def __init__(self, n_dimensions: int, n_arms: int, alpha: float, seed: int) -> None:  # noqa: ARG002
        self.alpha = alpha
        self.inverse = np.tile(np.eye(n_dimensions), (n_arms, 1, 1))
        self.moment = np.zeros((n_arms, n_dimensions))
        self.theta = np.zeros((n_arms, n_dimensions))

    def encode(self, row: FloatArray) -> Any:
        return row

    def select(self, context: Any) -> int:
        width = np.sqrt((self.inverse @ context) @ context)
        return int(np.argmax(self.theta @ context + self.alpha * width))

    def update(self, context: Any, arm: int, reward: float) -> None:
        inverse = self.inverse[arm]
        direction = inverse @ context
        inverse -= np.outer(direction, direction / (1.0 + direction @ context))
        self.moment[arm] += reward * context
        self.theta[arm] = inverse @ self.moment[arm]

    def encode_batch(self, contexts: FloatArray) -> Any:
        return contexts

    def score(self, batch: Any) -> Any:
        n_arms, n_dimensions, _ = self.inverse.shape
        projected = batch @ self.inverse.transpose(1, 0, 2).reshape(
            n_dimensions, n_arms * n_dimensions
        )
        squared = np.einsum(
            "bkd,bd->bk", projected.reshape(len(batch), n_arms, n_dimensions), batch
        )
        return np.argmax(batch @ self.theta.T + self.alpha * np.sqrt(squared), axis=1)


ADAPTERS: tuple[type[Adapter], ...] = (
    Daband,
    OpenBanditPipeline,
    VowpalWabbit,
    VowpalWabbitParsedOnce,
    VowpalWabbitEpsilonGreedy,
    River,
    ContextualBandits,
    MabWiser,
    BareNumpy,
)


def missing(adapter: type[Adapter]) -> str | None:
    """Return the reason why the adapter's library cannot be used here, or None if it can."""
    if importlib.util.find_spec(adapter.module) is None:
        return "not installed"
    try:
        importlib.import_module(adapter.module)
        adapter(n_dimensions=2, n_arms=2, alpha=0.5, seed=0).close()
    # a peer that breaks here must not stop the others from being measured
    except Exception as error:
        return f"does not work here: {type(error).__name__}: {error}"
    return None


def version(adapter: type[Adapter]) -> str:
    """Return the version of the adapter's library.

    Metadata of an older source tree may differ, so it comes second.
    """
    module_version = getattr(importlib.import_module(adapter.module), "__version__", None)
    return str(module_version or importlib.metadata.version(adapter.package))
