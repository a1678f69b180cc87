"""Callbacks of a run: what they get, what a broken one does, and the real MLflow and W&B."""

import pytest

import dpaudit_ray as da
from dpaudit_ray import callbacks
from dpaudit_ray.orchestration.progress import AuditProgress
from tests.command import changed


class Recorder(callbacks.Callback):
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.estimates: list[AuditProgress] = []
        self.results: list[da.Result] = []

    def on_estimate(self, audit: AuditProgress) -> None:
        self.estimates.append(audit)

    def on_end(self, result: da.Result) -> None:
        self.results.append(result)


class Broken(callbacks.Callback):
    """Raises at its first estimate."""

    calls = 0

    def on_estimate(self, audit: AuditProgress) -> None:
        self.calls += 1
        raise ConnectionError("no server\nat all")


def test_callback_gets_growing_estimates_and_the_result(light, tmp_path):
    recorder = Recorder()
    result = da.run(light, tmp_path, executor="inline", callbacks=[recorder])
    done: dict[str, list[int]] = {}
    for audit in recorder.estimates:
        done.setdefault(audit.label, []).append(audit.done)
    assert set(done) == set(result.overview["label"])
    for trials in done.values():
        assert trials == sorted(set(trials))
        assert trials[-1] == 90
    assert recorder.results == [result]


def test_callback_that_raises_is_reported_once_and_ends_nothing(light, tmp_path):
    lines: list[str] = []
    broken, recorder = Broken(), Recorder()
    both = [broken, recorder]
    result = da.run(light, tmp_path, executor="inline", callbacks=both, tell=lines.append)
    assert result.complete
    assert broken.calls == 1
    assert len(recorder.results) == 1
    (line,) = (line for line in lines if "Broken" in line)
    assert line == "Broken.on_estimate failed and is not called again: no server"


def test_callbacks_end_with_a_run_that_stops_early(light, tmp_path):
    changed(light, "resources.max_core_hours", 1e-9)
    recorder = Recorder()
    result = da.run(light, tmp_path, executor="inline", callbacks=[recorder])
    assert result.stopped
    assert recorder.results == [result]


def test_mlflow_has_metrics_by_trials_and_the_verdict(light, tmp_path, monkeypatch):
    """The real MLflow, on a local store that needs no database."""
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    callback = callbacks.MLflowCallback()
    result = da.run(light, tmp_path, executor="inline", callbacks=[callback])
    assert mlflow.active_run() is None
    (run,) = mlflow.MlflowClient().search_runs(["0"])
    assert run.data.tags["dpaudit.verdict"] == result.verdict().value
    assert run.data.tags["dpaudit.complete"] == "True"
    last = run.data.metrics
    claims = [value for name, value in last.items() if name.endswith("/claim")]
    assert claims == pytest.approx(list(result.overview["epsilon_upper"]))
    (name, *_) = (name for name in last if name.endswith("/epsilon_lower"))
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, name)
    assert history[-1].step == 90


def test_wandb_has_metrics_and_the_verdict(light, tmp_path, monkeypatch):
    """The real W&B, offline."""
    wandb = pytest.importorskip("wandb", reason="the extra wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.chdir(tmp_path)
    run = wandb.init(dir=tmp_path)
    result = da.run(light, tmp_path, executor="inline", callbacks=[callbacks.WandbCallback()])
    summary = dict(run.summary)
    run.finish()
    assert summary["dpaudit.verdict"] == result.verdict().value
    assert [value for name, value in summary.items() if name.endswith("/trials")] == [90, 90]


def test_names_of_metrics_have_only_characters_that_mlflow_takes():
    label = "loss, noise_multiplier=0.5 σ"
    audit = AuditProgress(label, 10, 10, 1.0, 2.0, 1e-5)
    assert list(callbacks._metrics(audit)) == [
        "loss_ noise_multiplier_0.5 σ/epsilon_lower",
        "loss_ noise_multiplier_0.5 σ/claim",
    ]
