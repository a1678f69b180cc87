"""`constraints.txt`: exact versions of all that is installed, for every build of torch."""

import importlib.metadata
import re
import tomllib

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import dpaudit_ray as da
from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LINES = [
    line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")
]
PINNED = dict(line.split("==") for line in LINES)
CHOSEN_BY_TORCH = re.compile("triton|nvidia-|cuda-")  # by the device that it was built for


def reached(extra: str) -> set[str]:
    """Names of all packages that an installation brings here, as their metadata says."""
    found: set[str] = set()
    waiting = [Requirement(f"dpaudit-ray[{extra}]")]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        found.add(name)
        for line in importlib.metadata.requires(name) or []:
            needed = Requirement(line)
            extras = [{"extra": one} for one in (*wanted.extras, "")]
            if needed.marker and not any(needed.marker.evaluate(one) for one in extras):
                continue
            if canonicalize_name(needed.name) not in found or needed.extras:
                waiting.append(needed)
    return found - {"dpaudit-ray"}


def test_every_line_is_one_exact_version_of_any_build_and_nothing_else():
    assert sorted(LINES) == LINES
    for line in LINES:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*==[0-9][a-z0-9.]*", line), line


def test_they_satisfy_what_the_project_asks_for():
    asked = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["test"]]
    for wanted in map(Requirement, asked):
        version = Version(PINNED[canonicalize_name(wanted.name)])
        assert wanted.specifier.contains(version), wanted


def test_nothing_that_is_installed_is_left_to_chance():
    free = {name for name in reached("test") if not CHOSEN_BY_TORCH.match(name)}
    assert free <= PINNED.keys()
    assert not any(CHOSEN_BY_TORCH.match(name) for name in PINNED)


def test_citation_and_images_have_the_version_of_the_package():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == da.__version__
    images = re.compile(r"REGISTRY/dpaudit:([\w.]+)")
    files = [path for path in (ROOT / "cluster").rglob("*") if path.is_file()]
    named = [version for path in files for version in images.findall(path.read_text())]
    assert len(named) >= 8
    assert set(named) == {da.__version__}
