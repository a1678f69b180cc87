"""What is sent to a cluster with a job, and what stays at home."""

import os
import subprocess
from pathlib import Path

import pytest

from dpaudit_ray.errors import SpecError
from dpaudit_ray.orchestration import working_dir_package
from dpaudit_ray.orchestration.working_dir_package import WorkingDirPackage


def laid_out(folder: Path, *names: str) -> Path:
    """The folder, with these files in it."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def sent(folder: Path, *excludes: str) -> list[str]:
    return [path.as_posix() for path in WorkingDirPackage(folder, excludes).files()]


def test_leaves_out_what_is_not_needed(tmp_path):
    laid_out(
        tmp_path,
        *("sweep.yaml", "plugin.py", "data/table.csv", "data/big.csv", ".rayignore"),
        *(".git/config", ".venv/bin/python", "runs/a/plan.json", "src/__pycache__/a.pyc"),
        *("notes/draft.txt", "build/lib/a.py", "dist/a.whl", "venv/bin/python"),
    )
    (tmp_path / ".rayignore").write_text("# comment\ndata/big.csv\n")
    assert sent(tmp_path, "notes/") == ["data/table.csv", "plugin.py", "sweep.yaml"]


SECRETS = (
    *(".netrc", "id_rsa", "id_ed25519.pub", ".git-credentials", ".kube/config", ".aws/credentials"),
    *(
        ".ssh/known_hosts",
        "server.key",
        "sub/client.pem",
        ".ray/dpaudit_token",
        ".env",
        ".env.prod",
    ),
    *("auth_token", "api-token.txt", "token", "tokens.json", "prod.env", "kubeconfig", ".pypirc"),
    *("credentials.json", "secrets.yaml", "my-service-account.json", ".docker/config.json"),
    *("TOKEN", "Secrets.yaml", "api_key.txt", "apikey", "passwords.yml", "kubeconfig.yaml"),
    *("auth.json", "terraform.tfstate", "terraform.tfstate.backup", "ID_RSA", "openai-api-key"),
    *("secrets/db", ".vault-token", ".config/gcloud/application_default_credentials.json"),
)


def test_secrets_stay_at_home(tmp_path):
    laid_out(tmp_path, "sweep.yaml", *SECRETS)
    assert sent(tmp_path) == ["sweep.yaml"]
    told = [path.as_posix() for path in WorkingDirPackage(tmp_path).withheld()]
    assert {"id_rsa", "server.key", "sub/client.pem", "secrets"} <= set(told)
    assert not any(name.startswith(".") for name in told)  # nobody expects those to be sent


@pytest.mark.parametrize("name", ["tokenizer.json", "secrets.py", "token.py", "keys.csv", "key"])
def test_what_only_sounds_like_a_secret_is_sent(tmp_path, name):
    assert sent(laid_out(tmp_path, name)) == [name]


@pytest.mark.parametrize("name", ["build", "dist", "runs", "venv", "secrets", "token"])
def test_packages_are_sent_whole_whatever_they_are_called(tmp_path, name):
    files = [f"{name}/__init__.py", f"{name}/dist/table.csv", f"{name}/runs/part.py"]
    laid_out(tmp_path, *files, f"{name}/.env", f"{name}/__pycache__/a.pyc", f"{name}/a.pem")
    assert sent(tmp_path) == files


def test_links_are_not_sent(tmp_path):
    laid_out(tmp_path, "repo/sweep.yaml", "repo/sub/a.py", "repo/sub/.env", "elsewhere/data.csv")
    targets = {"shadow": "/etc/passwd", "data": tmp_path / "elsewhere", "round": tmp_path / "repo"}
    targets |= {"inside": "sub/.env", "same": "sub", "gone": tmp_path / "nowhere"}
    for name, target in targets.items():
        (tmp_path / "repo" / name).symlink_to(target)
    assert sent(tmp_path / "repo") == ["sub/a.py", "sweep.yaml"]
    assert list(map(str, WorkingDirPackage(tmp_path / "repo").withheld())) == sorted(targets)


def test_what_git_ignores_stays_at_home(tmp_path):
    """Files of folders above, below, lines that take it back, and folders that are left whole."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    laid_out(tmp_path, "repo/sweep.yaml", "repo/big.csv", "repo/kept.csv", "top.txt")
    laid_out(tmp_path / "repo", "out/a/b.txt", "a/out.txt", "a/deep.log", "a/needed.log", "a/b.bin")
    laid_out(tmp_path / "repo", "above.txt", "whole/kept.csv")
    (tmp_path / ".gitignore").write_text("# above\n/repo/above.txt\n*.bin\n")
    (tmp_path / "repo/.gitignore").write_text("*.csv\n!kept.csv\nout/\nwhole\n*.log\n")
    (tmp_path / "repo/a/.gitignore").write_text("!needed.log\n!b.bin\n")
    (tmp_path / "repo/link.txt").symlink_to("big.csv")
    assert sent(tmp_path / "repo") == [
        "a/b.bin", "a/needed.log", "a/out.txt", "kept.csv", "sweep.yaml",
    ]  # fmt: skip
    known = git_sends(tmp_path / "repo")
    assert sent(tmp_path / "repo") == sorted(known - {"link.txt"})
    told = [str(path) for path in WorkingDirPackage(tmp_path / "repo").withheld()]
    assert told == ["a/deep.log", "above.txt", "big.csv", "link.txt", "out", "whole"]


def git_sends(folder: Path) -> set[str]:
    """What git itself would take up, without files of settings."""
    words = ["git", "-C", folder, "ls-files", "--others", "--exclude-standard"]
    listed = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
    return {name for name in listed if not Path(name).name.startswith(".")}


def test_what_cannot_be_read_is_named(tmp_path, monkeypatch):
    laid_out(tmp_path, "sweep.yaml", "locked/a.csv")
    listed = os.listdir

    def refusing(folder: Path) -> list[str]:
        if Path(folder).name == "locked":
            raise PermissionError(13, "Permission denied", str(folder))
        return listed(folder)

    monkeypatch.setattr(os, "listdir", refusing)
    with pytest.raises(SpecError, match=r"cannot read .*locked \(Permission denied\); --exclude"):
        WorkingDirPackage(tmp_path).files()
    assert sent(tmp_path, "locked") == ["sweep.yaml"]


def test_what_ray_packs_is_a_copy_with_modes(tmp_path):
    folder = tmp_path / "folder"
    (folder / "venv").mkdir(parents=True)
    (folder / "venv/__init__.py").write_text("b" * 1000)
    (folder / "run.sh").write_text("a")
    (folder / "run.sh").chmod(0o755)
    (folder / ".env").write_text("secret")
    WorkingDirPackage(folder).copy(tmp_path / "copy")
    copied = {str(p.relative_to(tmp_path / "copy")) for p in (tmp_path / "copy").rglob("*.*")}
    assert copied == {"venv/__init__.py", "run.sh"}
    assert (tmp_path / "copy/run.sh").stat().st_mode & 0o777 == 0o755


def test_too_much_is_refused_with_the_largest_files(tmp_path, monkeypatch):
    monkeypatch.setattr(working_dir_package, "LIMIT", 2**20)
    (tmp_path / "huge.bin").write_bytes(bytes(2**20 + 1))
    with pytest.raises(SpecError, match=r"more than 1 MiB .*huge\.bin \(1 MiB\)"):
        WorkingDirPackage(tmp_path).files()
    assert WorkingDirPackage(tmp_path, ("*.bin",)).files() == []
