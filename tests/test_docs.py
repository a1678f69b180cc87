"""The site is whole: reference pages name everything, the navigation names every page.

`make docs` builds it; here is what holds without MkDocs.
"""

import json
import re

import pytest
import typer
import yaml

from docs.hooks import reference, repository
from dpaudit_ray.cli.main import app
from dpaudit_ray.sweep import schema
from dpaudit_ray.sweep.spec import _KEYS
from tests.conftest import ROOT

VERBS = typer.main.get_command(app).commands


class _Loader(yaml.SafeLoader):
    """Reads MkDocs' own tags as nothing."""


_Loader.add_multi_constructor("", lambda *_: None)
SITE = yaml.load((ROOT / "mkdocs.yml").read_text(), _Loader)
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
NAVIGATION = re.findall(r"[\w/.-]+\.md", json.dumps(SITE["nav"]))


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return reference.pages()  # raises LookupError for an option of which nothing says what it means


@pytest.mark.parametrize("kind", [kind for _, kinds in reference.KINDS.values() for kind in kinds])
def test_reference_has_every_name_with_what_it_is(pages, kind):
    page = next(f"{name}.md" for name, (_, kinds) in reference.KINDS.items() if kind in kinds)
    for entry in schema.entries(kind):
        section = re.split(rf"^#+ `{entry.name}`$", pages[page], flags=re.MULTILINE)[1:]
        assert any(entry.line.replace("<", "&lt;") in text for text in section), entry.name
        for option in entry.options:
            assert any(f"| `{option.name}` |" in text for text in section), (entry.name, option)


def test_reference_has_every_key_of_a_sweep_file(pages):
    for key in _KEYS:
        assert f"`{key}`" in pages["sweep-file.md"]
    for _, takes, _, meaning in re.findall(
        r"^\| `(\w+)` \|(.*)\|(.*)\|(.*)\|$", pages["sweep-file.md"], re.M
    ):
        assert takes.strip()
        assert meaning.strip()


@pytest.mark.parametrize("verb", VERBS)
def test_reference_has_every_verb_with_what_it_takes(pages, verb):
    section = pages["cli.md"].split(f"## `dpaudit {verb}`\n\n")[1].split("## `dpaudit")[0]
    assert len(section.split()) > 3
    for row in re.findall(r"^\| `.*$", section, re.MULTILINE):
        assert row.split(" | ")[-1].strip(" |"), row
    if verb == "run":
        assert "| `--executor ray|inline` | `ray` |" in section


class Undescribed:
    takes: str


def test_an_option_without_a_meaning_is_found():
    with pytest.raises(LookupError, match="no comment that explains it"):
        reference.meaning([Undescribed], "takes")


def test_navigation_has_every_page_once():
    docs = ROOT / "docs"
    written = {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")}
    notebooks = {f"notebooks/{path.stem}.md" for path in NOTEBOOKS}
    made = {f"reference/{name}" for name in reference.pages()}
    assert len(NAVIGATION) == len(set(NAVIGATION))
    others = {page for page in NAVIGATION if page.startswith("repository/")}
    assert set(NAVIGATION) - others == written | made | notebooks | {"index.md"}
    assert others <= set(repository.linked())


def test_links_of_the_repository_stay_links_on_the_site():
    text = (
        "[a](../jobs/zoo/README.md#b) ![c](../dashboards/ray.png) [d](engines.md) [e](../LICENSE)\n"
    )
    assert repository.on_site(text, "docs/results.md", "results.md") == (
        "[a](repository/jobs/zoo/README.md#b) ![c](repository/dashboards/ray.png) [d](engines.md) "
        "[e](repository/LICENSE.md)\n"
    )
    code = "```python\nx[0](README.md)\n```\n"
    assert repository.on_site(code, "docs/results.md", "results.md") == code


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_are_stored_without_outputs(path):
    notebook = json.loads(path.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code
    assert not [cell for cell in code if cell["outputs"] or cell["execution_count"]]
    assert notebook["cells"][0]["source"][0].startswith("# ")
