"""The page on object stores: its variables exist, and its command runs on an S3 server."""

import re
from pathlib import Path

import obstore
import pytest
import yaml

from tests.command import completed, dpaudit, write_sweep
from tests.conftest import ROOT
from tests.storage import faulty_store

PAGE = (ROOT / "docs/object-stores.md").read_text()


def test_variables_are_those_that_the_client_reads():
    stubs = (Path(obstore.__file__).parent / "_store").glob("*.pyi")
    known = "".join(stub.read_text() for stub in stubs)
    variables = set(re.findall(r"`((?:AWS|GOOGLE|AZURE)_\w+)`", PAGE))
    assert len(variables) >= 12
    assert not {name for name in variables if not re.search(rf"\b{name}\b", known)}


def test_snippet_for_kubernetes_is_yaml():
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert yaml.safe_load(block)["envFrom"][0]["secretRef"]["name"]


def test_command_of_the_page_runs_on_a_server(light, tmp_path, monkeypatch):
    (line,) = re.findall(r"```sh\ndpaudit (.*?)\n```", PAGE)
    words = line.split()
    monkeypatch.chdir(tmp_path)
    write_sweep(tmp_path, light)
    with faulty_store.opened(monkeypatch) as store:
        address = words[-1].replace("s3://bucket/runs", store.address)
        completed(dpaudit(*words[:-1], address, "--executor", "inline"))
        status = completed(dpaudit("status", f"{address}/tiny"))
        assert status.out.splitlines()[-1] == "complete"


@pytest.mark.parametrize("name", ["object-stores", "costs", "many-sweeps", "evidence"])
def test_page_is_linked_from_the_readme(name):
    assert f"(docs/{name}.md)" in (ROOT / "README.md").read_text()
