"""Promises about the package as a whole: what it imports, how fast, and what it exports."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dpaudit_ray as da

PACKAGE = Path(da.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def imported_names(source: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(str(node.module).split(".")[0])
    return names


def test_import_loads_no_package_but_its_own():
    """So it takes a few hundredths of a second, where half of one is allowed."""
    before = modules_after("pass")
    added = modules_after("import dpaudit_ray") - before
    foreign = {name.partition(".")[0] for name in added} - set(sys.stdlib_module_names)
    assert foreign == {"dpaudit_ray"}
    assert len(added) < 60


@pytest.mark.parametrize(
    "statement",
    [
        "import dpaudit_ray",
        "import dpaudit_ray.stats",
        "import dpaudit_ray.accounting",
        "import dpaudit_ray.cli.main",
        "from dpaudit_ray.sweep import spec; spec.load('jobs/quickstart.yaml')",
        "from dpaudit_ray.sweep.schema import entries; "
        "[*map(entries, ('data', 'models', 'adversaries', 'mechanisms', 'estimators'))]",
    ],
)
def test_what_needs_neither_torch_nor_ray_loads_neither(statement):
    heavy = {"torch", "ray", "opacus", "torchvision", "sklearn", "pandas", "prv_accountant"}
    assert not heavy & modules_after(statement)


def test_status_loads_no_more_than_it_reads():
    """Nor does a sweep file, of which each class lies in a module of its name."""
    loaded = modules_after(
        "from dpaudit_ray.sweep import spec; import dpaudit_ray.report.tables\n"
        "spec.load('jobs/quickstart.yaml')"
    )
    assert "dpaudit_ray.adversaries.biased_dimension" in loaded
    assert not {"dpaudit_ray.adversaries.one_run", "dpaudit_ray.models.resnet"} & loaded
    assert not {"scipy.optimize", "scipy.linalg", "scipy.fft", "matplotlib", "scipy.stats"} & loaded


def test_ray_is_imported_in_orchestration_only_and_in_at_most_three_files():
    users = [source for source in SOURCES if "ray" in imported_names(source)]
    assert 0 < len(users) <= 3
    assert {source.parent.name for source in users} == {"orchestration"}


def test_statistics_stay_pure():
    for source in sorted((PACKAGE / "stats").glob("*.py")):
        foreign = imported_names(source) & {"torch", "ray", "pandas", "pyarrow", "pydantic"}
        assert not foreign, f"{source.name} imports {foreign}"


def test_exported_names_exist_and_are_sorted():
    assert sorted(da.__all__) == da.__all__
    for name in da.__all__:
        assert getattr(da, name) is not None
    with pytest.raises(AttributeError):
        _ = da.nonsense


def test_every_public_definition_has_a_docstring():
    bare = []
    for source in SOURCES:
        tree = ast.parse(source.read_text())
        if not ast.get_docstring(tree):
            bare.append(source.name)
        for node in tree.body:
            public = isinstance(node, ast.FunctionDef | ast.ClassDef)
            if public and not node.name.startswith("_") and not ast.get_docstring(node):
                bare.append(f"{source.name}: {node.name}")
    assert not bare
