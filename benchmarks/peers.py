"""Wrap bandit libraries in one interface, through which ``bandits.py`` plays them.

Rewards are scaled to [0, 1] by the known range of each problem. Contexts have a column of ones in
front, except for libraries that add an intercept themselves. Each class has the settings among
which ``bandits.py`` chooses on a seed of its own.
"""

from __future__ import annotations

import importlib
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Peer(ABC):
    """A bandit of one library, with ``n_arms`` arms and contexts of ``width`` columns."""

    name: ClassVar[str]
    package: ClassVar[str]
    #: The settings to choose from: values by name.
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {}
    #: The number of rounds that are chosen before their rewards are learned.
    block: ClassVar[int] = 1
    has_own_intercept: ClassVar[bool] = False

    @abstractmethod
    def __init__(self, width: int, n_arms: int, seed: int, **setting: Any) -> None: ...

    @abstractmethod
    def choose(self, contexts: Array) -> Array:
        """Return the chosen arm of each context of a block."""

    @abstractmethod
    def learn(self, contexts: Array, arms: Array, rewards: Array) -> None:
        """Learn the rewards of the block that was chosen last."""

    @classmethod
    def list_settings(cls) -> list[dict[str, Any]]:
        """Return all combinations of the grid."""
        return [dict(zip(cls.grid, values, strict=True)) for values in product(*cls.grid.values())]

    @classmethod
    def find_problem(cls) -> str | None:
        """Return why the library cannot be used here, or None if it can."""
        try:
            version(cls.package)
            peer = cls(2, 2, 0, **cls.list_settings()[0])
            peer.learn(np.ones((1, 2)), peer.choose(np.ones((1, 2))), np.ones(1))
        except PackageNotFoundError:
            return "not installed"
        # a library that breaks here must not stop the others
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None


class _VowpalWabbit(Peer):
    """An exploration of Vowpal Wabbit on one weight vector per arm.

    An action has one feature, its name, and the weights are those of its products with the context's
    columns. Interactions are the products of two columns.
    """

    package = "vowpalwabbit"
    arguments: ClassVar[str]
    products: ClassVar[str] = "-q xA"

    def __init__(self, width: int, n_arms: int, seed: int, **setting: Any) -> None:  # noqa: ARG002
        import vowpalwabbit

        self.workspace = vowpalwabbit.Workspace(
            f"--quiet --cb_explore_adf --noconstant --ignore_linear x {self.products}"
            f" --random_seed {seed + 1} {self.arguments.format(**setting)}"
        )
        self.actions = [f"|A a{arm}" for arm in range(n_arms)]
        self.random = random.Random(seed)

    def choose(self, contexts: Array) -> Array:
        (row,) = contexts
        features = " ".join(f"{column}:{row[column]:.6g}" for column in np.flatnonzero(row))
        # the parsed examples are kept and learned from, which is its fastest use
        self.examples = self.workspace.parse([f"shared |x {features}", *self.actions])
        self.probabilities = self.workspace.predict(self.examples)
        arms = self.random.choices(range(len(self.actions)), self.probabilities)
        return np.array(arms)

    def learn(self, contexts: Array, arms: Array, rewards: Array) -> None:  # noqa: ARG002
        probability = self.probabilities[arms[0]]
        label = f"0:{1.0 - rewards[0]:.6g}:{probability:.6g}"
        self.examples[arms[0] + 1].set_label_string(label)
        self.workspace.learn(self.examples)
        self.workspace.finish_example(self.examples)


class SquareCb(_VowpalWabbit):
    """Inverse gap weighting."""

    name = "vowpalwabbit squarecb"
    arguments = "--squarecb --gamma_scale {gamma} -l {rate}"
    grid: ClassVar = {"gamma": (10, 100, 1000), "rate": (0.3, 2)}


class SquareCbProducts(SquareCb):
    """Inverse gap weighting with interactions."""

    name = "vowpalwabbit squarecb, interactions"
    products = "-q xA --interactions xxA"


class RegCb(_VowpalWabbit):
    """The optimistic RegCB."""

    name = "vowpalwabbit regcb"
    arguments = "--regcbopt --mellowness {mellowness} -l {rate} --cb_type mtr"
    grid: ClassVar = {"mellowness": (0.1, 0.01, 0.001), "rate": (0.3, 2)}


class RegCbProducts(RegCb):
    """The optimistic RegCB with interactions."""

    name = "vowpalwabbit regcb, interactions"
    products = "-q xA --interactions xxA"


class Epsilon(_VowpalWabbit):
    """The greedy choice, and uniform exploration."""

    name = "vowpalwabbit epsilon"
    arguments = "--epsilon {epsilon} -l {rate}"
    grid: ClassVar = {"epsilon": (0.01, 0.05), "rate": (0.3, 2)}


class EpsilonProducts(Epsilon):
    """The greedy choice and uniform exploration, with interactions."""

    name = "vowpalwabbit epsilon, interactions"
    products = "-q xA --interactions xxA"


class BayesianBandits(Peer):
    """Thompson sampling over one Bayesian regression per arm."""

    name = "bayesianbandits LinTS"
    package = "bayesianbandits"
    grid: ClassVar = {"beta": (3.0, 30.0, 300.0)}

    def __init__(self, width: int, n_arms: int, seed: int, **setting: Any) -> None:  # noqa: ARG002
        from bayesianbandits import Arm, ContextualAgent, NormalRegressor, ThompsonSampling

        arms: list[Any] = [
            Arm(arm, learner=NormalRegressor(alpha=1.0, **setting)) for arm in range(n_arms)
        ]
        self.agent: Any = ContextualAgent(arms, ThompsonSampling(), random_seed=seed)

    def choose(self, contexts: Array) -> Array:
        return np.array(self.agent.pull(contexts))

    def learn(self, contexts: Array, arms: Array, rewards: Array) -> None:
        self.agent.select_for_update(int(arms[0])).update(contexts, rewards)


class ContextualBandits(Peer):
    """The LinUCB of contextualbandits."""

    name = "contextualbandits LinUCB"
    package = "contextualbandits"
    grid: ClassVar = {"alpha": (0.03, 0.1, 0.3, 1.0)}
    has_own_intercept = True

    def __init__(self, width: int, n_arms: int, seed: int, **setting: Any) -> None:  # noqa: ARG002
        from contextualbandits.online import LinUCB

        # it refuses 0 as a seed
        self.policy = LinUCB(n_arms, random_state=seed + 1, njobs=1, **setting)

    def choose(self, contexts: Array) -> Array:
        return np.asarray(self.policy.predict(contexts)).astype(int)

    def learn(self, contexts: Array, arms: Array, rewards: Array) -> None:
        self.policy.partial_fit(contexts, arms, rewards)


class BootstrappedTrees(Peer):
    """Thompson sampling over bootstrapped trees, fitted again when the rounds have grown by 30%.

    The library takes rewards of 0 and 1 only, so a reward is the probability of a drawn 1.
    """

    name = "contextualbandits bootstrapped trees"
    package = "contextualbandits"
    grid: ClassVar = {"trees": ("boosted", "single")}
    block = 64
    has_own_intercept = True

    def __init__(self, width: int, n_arms: int, seed: int, trees: str) -> None:  # noqa: ARG002
        from contextualbandits.online import BootstrappedTS
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.tree import DecisionTreeClassifier

        model: Any = DecisionTreeClassifier(min_samples_leaf=5)
        if trees == "boosted":
            model = HistGradientBoostingClassifier(max_iter=50, early_stopping=False)
        self.policy: Any = BootstrappedTS(model, n_arms, random_state=seed + 1, njobs_arms=1)
        self.random, self.n_arms = np.random.default_rng(seed), n_arms
        self.rounds: list[tuple[Array, Array, Array]] = []
        self.n_fitted, self.n_learned = 0, 0

    def choose(self, contexts: Array) -> Array:
        if not self.n_fitted:
            return self.random.integers(self.n_arms, size=len(contexts))
        return np.asarray(self.policy.predict(contexts)).astype(int)

    def learn(self, contexts: Array, arms: Array, rewards: Array) -> None:
        is_one = self.random.random(len(rewards)) < rewards
        self.rounds.append((contexts, arms, is_one.astype(float)))
        self.n_learned += len(arms)
        if self.n_learned >= max(128, 1.3 * self.n_fitted):
            self.policy.fit(*map(np.concatenate, zip(*self.rounds, strict=True)))
            self.n_fitted = self.n_learned


class MabWiser(Peer):
    """The LinUCB of mabwiser."""

    name = "mabwiser LinUCB"
    package = "mabwiser"
    grid: ClassVar = {"alpha": (0.03, 0.1, 0.3, 1.0)}

    def __init__(self, width: int, n_arms: int, seed: int, alpha: float) -> None:
        from mabwiser.mab import MAB, LearningPolicy

        self.policy = MAB(list(range(n_arms)), LearningPolicy.LinUCB(alpha), seed=seed)
        # It refuses to predict before a fit: a context of zeros leaves every arm at its prior.
        self.policy.fit(decisions=[0], rewards=[0.0], contexts=np.zeros((1, width)))

    def choose(self, contexts: Array) -> Array:
        return np.array([self.policy.predict(contexts)])

    def learn(self, contexts: Array, arms: Array, rewards: Array) -> None:
        self.policy.partial_fit(arms, rewards, contexts)


class River(Peer):
    """The LinUCB of river."""

    name = "river LinUCBDisjoint"
    package = "river"
    grid: ClassVar = {"precision": (10.0, 100.0, 1000.0)}

    def __init__(self, width: int, n_arms: int, seed: int, precision: float) -> None:  # noqa: ARG002
        from river.bandit import LinUCBDisjoint

        # the precisions of the prior and of the noise: the ridge is 1
        self.policy: Any = LinUCBDisjoint(alpha=precision, beta=precision, seed=seed)
        self.arms = list(range(n_arms))

    def choose(self, contexts: Array) -> Array:
        self.context = dict(enumerate(contexts[0].tolist()))
        return np.array([self.policy.pull(self.arms, context=self.context)])

    def learn(self, contexts: Array, arms: Array, rewards: Array) -> None:  # noqa: ARG002
        self.policy.update(int(arms[0]), self.context, float(rewards[0]))


class _Calvera(Peer):
    """A neural bandit of calvera: one network for all arms, whose input has the context in the
    columns of the arm.

    Its benchmark scripts set the network (128, 128) and the training after every 256 rounds.
    """

    package = "calvera"
    block = 16
    interval: ClassVar[int] = 256
    grid: ClassVar = {"learning_rate": (1e-3,)}

    def __init__(self, width: int, n_arms: int, seed: int, **setting: Any) -> None:
        import torch

        torch.manual_seed(seed)
        torch.set_num_threads(1)
        self.torch, self.n_arms = torch, n_arms
        self.bandit: Any = self.build(width * n_arms, setting)
        self.n_learned = 0

    @abstractmethod
    def build(self, n_inputs: int, setting: dict[str, Any]) -> Any:
        """Return the bandit."""

    def build_network(self, n_inputs: int, n_outputs: int) -> Any:
        """Return two hidden layers of 128 units."""
        nn = self.torch.nn
        layers = [nn.Linear(n_inputs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(128, n_outputs))

    def arguments(self, setting: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments that its bandits share."""
        from calvera.utils.data_storage import AllDataRetrievalStrategy, TensorDataBuffer

        return {
            "buffer": TensorDataBuffer(AllDataRetrievalStrategy()),
            "min_samples_required_for_training": self.interval,
            "initial_train_steps": 0,
            "train_batch_size": 32,
            **setting,
        }

    def choose(self, contexts: Array) -> Array:
        n_rows, width = contexts.shape
        spread = np.zeros((n_rows, self.n_arms, self.n_arms, width), np.float32)
        spread[:, range(self.n_arms), range(self.n_arms)] = contexts[:, None]
        self.inputs = self.torch.tensor(spread.reshape(n_rows, self.n_arms, -1))
        self.bandit.eval()
        chosen, _ = self.bandit.forward(self.inputs)
        return chosen.argmax(dim=1).numpy()

    def learn(self, contexts: Array, arms: Array, rewards: Array) -> None:  # noqa: ARG002
        from lightning.pytorch import Trainer

        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        inputs = self.inputs[range(len(arms)), arms].unsqueeze(1)
        received = self.torch.tensor(rewards, dtype=self.torch.float32).unsqueeze(1)
        self.bandit.record_feedback(inputs, received)
        before, self.n_learned = self.n_learned, self.n_learned + len(arms)
        if self.n_learned // self.interval > before // self.interval:
            self.bandit.train()
            Trainer(
                max_epochs=1,
                max_steps=256,
                accelerator="cpu",
                logger=False,
                enable_progress_bar=False,
                enable_checkpointing=False,
                enable_model_summary=False,
                gradient_clip_val=20.0,
            ).fit(self.bandit)


class NeuralLinear(_Calvera):
    """Thompson sampling over the last layer of a network."""

    name = "calvera NeuralLinear"

    def build(self, n_inputs: int, setting: dict[str, Any]) -> Any:
        from calvera.bandits import NeuralLinearBandit

        network = self.build_network(n_inputs, 64)
        return NeuralLinearBandit(network=network, n_embedding_size=64, **self.arguments(setting))


class NeuralUcb(_Calvera):
    """Optimism by the gradients of a network."""

    name = "calvera NeuralUCB"
    grid: ClassVar = {"learning_rate": (1e-3,), "exploration_rate": (1e-3, 1e-1)}
    kind: ClassVar[str] = "NeuralUCBBandit"

    def build(self, n_inputs: int, setting: dict[str, Any]) -> Any:
        bandit = getattr(importlib.import_module("calvera.bandits"), self.kind)
        arguments = self.arguments(setting)
        network = self.build_network(n_inputs, 1)
        return bandit(n_features=n_inputs, network=network, weight_decay=1e-5, **arguments)


class NeuralTs(NeuralUcb):
    """Thompson sampling by the gradients of a network."""

    name = "calvera NeuralTS"
    kind = "NeuralTSBandit"


def list_peers() -> Iterable[type[Peer]]:
    """Return the classes of all libraries."""
    return (
        SquareCb,
        SquareCbProducts,
        RegCb,
        RegCbProducts,
        Epsilon,
        EpsilonProducts,
        BayesianBandits,
        ContextualBandits,
        BootstrappedTrees,
        MabWiser,
        River,
        NeuralLinear,
        NeuralUcb,
        NeuralTs,
    )
