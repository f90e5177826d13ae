"""The adapters, read back by the packages they write for."""

import sys

import numpy as np
import pytest

import daband
from daband.training._loggers import MLflowLogger, TensorBoardLogger

pytestmark = pytest.mark.filterwarnings("ignore")  # what other packages deprecate among themselves


def trained(logger):
    pair = daband.domains.load("synthetic", tiny=True)
    policy = daband.LinUCB(context_shape=pair.context_shape, n_arms=pair.n_arms, seed=0)
    run = daband.train(policy, source=pair.source, target=pair.target, episodes=4, episode_length=8, progress=logger)
    result = daband.evaluate(policy, pair.target_test)
    logger.result(result)
    return run, result


def test_tensorboard_reads_what_training_measured(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with TensorBoardLogger(tmp_path / "events", prefix="source/") as logger:
        run, result = trained(logger)
    read = EventAccumulator(str(tmp_path / "events"))
    read.Reload()
    for name in ("regret", "reward"):
        events = read.Scalars(f"source/{name}")
        assert [event.step for event in events] == [1, 2, 3, 4]
        np.testing.assert_allclose([event.value for event in events], [e[name] for e in run.episodes], rtol=1e-6)
    assert read.Scalars("source/target_accuracy")[0].value == pytest.approx(result.accuracy)
    assert "source/episode" not in read.Tags()["scalars"]


def mlflow_client(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # newer ones ask before they write to plain files
    from mlflow import MlflowClient

    uri = (tmp_path / "mlruns").as_uri()
    return uri, MlflowClient(tracking_uri=uri)


def test_mlflow_reads_what_training_measured(tmp_path, monkeypatch):
    uri, client = mlflow_client(tmp_path, monkeypatch)
    settings = {"alpha": 0.5, "recipe": {"memory": {"capacity": 7}}}
    with MLflowLogger(experiment="tests", run_name="tiny", parameters=settings, tracking_uri=uri) as logger:
        run, result = trained(logger)
    found = client.get_run(logger.run_id)
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "tiny"
    assert found.data.params == {"alpha": "0.5", "recipe.memory.capacity": "7"}
    history = client.get_metric_history(logger.run_id, "regret")
    assert [metric.step for metric in history] == [1, 2, 3, 4]
    np.testing.assert_allclose([metric.value for metric in history], [e["regret"] for e in run.episodes])
    assert found.data.metrics["target_accuracy"] == pytest.approx(result.accuracy)


def test_mlflow_is_told_of_a_failure(tmp_path, monkeypatch):
    uri, client = mlflow_client(tmp_path, monkeypatch)
    logger = MLflowLogger(tracking_uri=uri)
    with pytest.raises(RuntimeError), logger:
        raise RuntimeError
    assert client.get_run(logger.run_id).info.status == "FAILED"
    again = MLflowLogger(tracking_uri=uri)  # the experiment is there already
    assert client.get_run(again.run_id).info.experiment_id == client.get_run(logger.run_id).info.experiment_id


def test_what_is_not_known_is_left_out(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with TensorBoardLogger(tmp_path) as logger:
        logger({"episode": 1, "regret": None, "reward": 0.5, "loss": float("nan")})
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert read.Tags()["scalars"] == ["reward"]


@pytest.mark.parametrize(
    ("kind", "module", "extra"),
    [(TensorBoardLogger, "torch.utils.tensorboard", "tensorboard"), (MLflowLogger, "mlflow", "mlflow")],
)
def test_a_missing_package_is_named(monkeypatch, kind, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(daband.InvalidInput, match=rf"pip install daband\[{extra}\]"):
        kind() if kind is MLflowLogger else kind("somewhere")
