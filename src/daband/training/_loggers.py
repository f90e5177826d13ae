"""Training as others watch it: adapters that pass every episode's record on to TensorBoard or MLflow.

Each is a ``progress`` callback of ``daband.train`` and ``daband.continue_on_target``:

    with TensorBoardLogger("runs/tensorboard/mine") as logger:
        daband.train(policy, source=pair.source, target=pair.target, progress=logger)
        logger.result(daband.evaluate(policy, pair.target_test))

The packages are extras (``pip install daband[tensorboard]``, ``daband[mlflow]``) and imported when a logger is made.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from daband.errors import InvalidInput
from daband.evaluation._zero_shot import Evaluation


class _EpisodeLogger(ABC):
    """What loggers share: an episode's record and the result are numbers with a step; leaving the context closes."""

    def __call__(self, record: Mapping[str, float | None]) -> None:
        """Write one episode's record."""
        self._log(_numbers(record), int(record["episode"] or 0))

    def result(self, evaluation: Evaluation) -> None:
        """Write how the policy did in the target."""
        self._log(_result(evaluation), 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        self.close("FINISHED" if kind is None else "KILLED" if interrupted else "FAILED")

    @abstractmethod
    def close(self, status: str = "FINISHED") -> None:
        """End the run with a status of MLflow's: "FINISHED", "FAILED" or "KILLED"."""

    @abstractmethod
    def _log(self, numbers: Mapping[str, float], step: int) -> None: ...


class TensorBoardLogger(_EpisodeLogger):
    """Writes a scalar per measured number and episode, for ``tensorboard --logdir``.

    Args:
        directory: where the event file goes; one directory per run.
        prefix: stands in front of every name, e.g. "source/".
    """

    def __init__(self, directory: str | Path, *, prefix: str = "") -> None:
        try:
            from daband.neural._devices import summary_writer

            self._writer = summary_writer(str(directory))
        except ImportError as error:
            raise InvalidInput(
                f"TensorBoardLogger needs the package tensorboard ({error}); pip install daband[tensorboard]"
            ) from None
        self._prefix = prefix

    def close(self, status: str = "FINISHED") -> None:  # noqa: ARG002 - TensorBoard keeps no status
        """Write what is still in memory, and end."""
        self._writer.close()

    def _log(self, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(f"{self._prefix}{name}", value, step)


class MLflowLogger(_EpisodeLogger):
    """Writes a run of MLflow: parameters once, metrics with every episode. It leaves MLflow's global state alone.

    Args:
        experiment: the experiment's name; made where there is none yet.
        run_name: what the run is called there.
        parameters: settings to write down, e.g. ``policy.settings()``; groups become names with dots.
        tracking_uri: where MLflow keeps its runs; by default where MLflow itself would.
    """

    def __init__(
        self,
        *,
        experiment: str = "daband",
        run_name: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        tracking_uri: str | None = None,
    ) -> None:
        try:
            from mlflow import MlflowClient
        except ImportError as error:
            raise InvalidInput(f"MLflowLogger needs the package mlflow ({error}); pip install daband[mlflow]") from None
        self._client = MlflowClient(tracking_uri=tracking_uri)
        present = self._client.get_experiment_by_name(experiment)
        number = self._client.create_experiment(experiment) if present is None else present.experiment_id
        self.run_id: str = self._client.create_run(number, run_name=run_name).info.run_id
        for name, value in _flatten(parameters or {}).items():
            self._client.log_param(self.run_id, name, value)

    def close(self, status: str = "FINISHED") -> None:
        self._client.set_terminated(self.run_id, status=status)

    def _log(self, numbers: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self.run_id, metrics=[Metric(name, value, now, step) for name, value in numbers.items()])


def _numbers(record: Mapping[str, float | None]) -> dict[str, float]:
    """The finite numbers of a record, but for the episode, which is the step."""
    present = {name: value for name, value in record.items() if name != "episode" and value is not None}
    return {name: float(value) for name, value in present.items() if math.isfinite(value)}


def _result(evaluation: Evaluation) -> dict[str, float]:
    names = ("accuracy", "accuracy_macro", "value", "best_value", "constant_value", "regret")
    numbers = {f"target_{name}": getattr(evaluation, name) for name in names}
    classes = {f"target_accuracy_class_{arm}": share for arm, share in enumerate(evaluation.per_class)}
    return {**numbers, **{name: share for name, share in classes.items() if share is not None}}


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat.update(_flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value})
    return flat
