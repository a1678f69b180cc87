"""Code that computed the trials: the user's modules by content, package versions, the machine.

Two versions of a training are two trainings, and trials of both are no audit of either. Import
paths do not tell them apart, so the plan records the content of the files, and a run that is
resumed with other code is refused, or followed and marked. The run directory has a copy of the
user's modules, `code/<SHA-256>.py`: a digest says that there is a difference, and only the text
says which, months later and on another machine.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from ..errors import ChangedCodeError
from ..module_files import is_users, module_file, source_closure
from ..printable import printable
from ..storage.run_directory import FAILURES, RESTORE, RunDirectory
from ..sweep.spec import Sweep
from ..version import __version__

if TYPE_CHECKING:
    from .model import Plan

_PACKAGES = ("torch", "numba", "numpy", "opacus", "ray")
_MOVES_NO_SCORE = ("ray", "python")  # whose versions are recorded, and may differ
_MAX_SOURCE_BYTES = 2**20  # of a module that a run directory has a copy of
_MAX_LINES = 20  # of a textual difference
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@dataclasses.dataclass(frozen=True)
class Code:
    """The code that computed trials.

    `modules` are SHA-256 digests of the user's, by name; `versions` those of packages; `device`
    is the kind of machine that the sweep was started on.
    """

    modules: Mapping[str, Sha256]
    versions: Mapping[str, str]
    device: str

    def to_json(self) -> dict[str, Any]:
        """The entry in plan.json."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, raw: Any) -> Code:
        """The inverse of `to_json`; ValueError for anything else."""
        try:
            return TypeAdapter(cls).validate_python(raw)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise ValueError(f"of its code, {place}: {first['msg']}") from error


@dataclasses.dataclass(frozen=True)
class Machine:
    """Code and device of a process; None for a module that it does not find."""

    device: str
    versions: Mapping[str, str]
    modules: Mapping[str, str | None]


def machine(modules: Iterable[str], gpu: bool = False) -> Machine:
    """This machine, with the user's modules of these names as it has them."""
    files = {name: module_file(name) for name in modules}
    digests = {name: None if file is None else _digest(file) for name, file in files.items()}
    return Machine(device(gpu), here(), digests)


def unlike(code: Code, machine: Machine) -> str | None:
    """The first difference of a machine from the code, in words; None where there is none.

    A module that it lacks is no difference: whoever imports it tells.
    """
    for name in ("dpaudit", "torch", "numba"):
        here, there = code.versions.get(name), machine.versions.get(name)
        if here is not None and here != there:
            return f"it has {name} {there}, the driver {here}"
    for name, digest in machine.modules.items():
        if digest is not None and digest != code.modules.get(name):
            wanted = _short(code.modules.get(name))
            return f"{name} has {_short(digest)} there, {wanted} where the driver runs"
    return None


def sweep_code(sweep: Sweep) -> Code:
    """The code that would compute the trials of a sweep here and now."""
    modules = _modules(sweep)
    digests = {name: _digest(file) for name, file in sorted(source_closure(modules).items())}
    versions = here()
    for package in sorted({module.partition(".")[0] for module in modules} - {"dpaudit_ray"}):
        file = module_file(package)
        if file is not None and not is_users(file):
            versions[package] = _version(package)  # stands for its content
    return Code(digests, versions, device())


def here() -> dict[str, str]:
    """Versions of this package, of what it computes with, and of Python."""
    versions = {package: _version(package) for package in _PACKAGES}
    return {"dpaudit": __version__, **versions, "python": platform.python_version()}


def sources(sweep: Sweep) -> dict[str, str]:
    """The text of the user's modules by digest, of those that are text and not too long."""
    texts = {}
    for file in source_closure(_modules(sweep)).values():
        if file.suffix == ".py" and file.stat().st_size <= _MAX_SOURCE_BYTES:
            content = file.read_bytes()
            try:
                texts[hashlib.sha256(content).hexdigest()] = content.decode()
            except UnicodeDecodeError:
                continue
    return texts


def changes(there: Code, here: Code) -> tuple[list[str], list[str]]:
    """Differences in words: those that may change a score, and those that do not."""
    grave = [
        f"{name} has {_short(there.modules.get(name))} there, {_short(here.modules.get(name))} here"
        for name in sorted({*there.modules, *here.modules})
        if there.modules.get(name) != here.modules.get(name)
    ]
    harmless: list[str] = []
    for name in sorted({*there.versions, *here.versions}):
        before, now = (code.versions.get(name, "missing") for code in (there, here))
        if before != now:
            differences = harmless if name in _MOVES_NO_SCORE else grave
            differences.append(f"{name} {before} there, {now} here")
    if there.device != here.device:
        harmless.append(f"{there.device} there, {here.device} here")
    return grave, harmless


@functools.cache
def device(gpu: bool = False) -> str:
    """The kind of this machine, as far as it decides over last bits: "NAME, avx2", or its GPU."""
    if gpu:
        import torch

        if torch.cuda.is_available():
            return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    pairs = (line.split(":", 1) for line in reversed(lines) if ":" in line)
    fields = {key.strip(): value.strip() for key, value in pairs}
    name = fields.get("model name") or platform.machine()
    flags = fields.get("flags", "").split()
    sets = [word for word in ("avx512f", "avx2", "avx", "sse4_2") if word in flags][:1]
    variables = (os.environ.get(key) for key in ("ATEN_CPU_CAPABILITY", "NUMBA_CPU_NAME"))
    return ", ".join([name, *sets, *filter(None, variables)])


@dataclasses.dataclass(frozen=True)
class Resumed:
    """A plan that follows `previous`, made by the code as it is now, and its run directory."""

    sweep: Sweep
    plan: Plan
    previous: Plan
    run: RunDirectory


def followed(
    resumed: Resumed, accept: bool = False, tell: Callable[[str], None] = lambda line: None
) -> Plan:
    """The plan, with the codes that computed its trials so far and will compute the others.

    A run of which nothing was computed takes the code as it is. A run without trials left may go
    on with another version of a package, but not with other modules of the user's.

    Raises:
        ChangedCodeError: trials were computed by other code, and that is not accepted.
    """
    plan, before, run = resumed.plan, resumed.previous.code, resumed.run
    if plan.code is None:
        return plan
    if before is not None and before[-1] == plan.code[-1]:
        return dataclasses.replace(plan, code=before)
    begun = _begun(plan, run)
    if not begun:
        return plan
    if before is None:
        tell(f"{run.location}: it was not recorded by which code; from now on it is")
        return plan
    then, now = before[-1], plan.code[-1]
    remains = next(plan.remaining(run), None) is not None
    grave, harmless = changes(then, now)
    if harmless and remains:
        tell(f"{run.location} goes on elsewhere ({_listed(harmless)}): last bits may differ")
    if not grave or not (remains or then.modules != now.modules):
        return dataclasses.replace(plan, code=before)
    if not accept:
        raise ChangedCodeError(
            f"{run.location} was run with other code ({_listed(grave)}); {RESTORE}; "
            "--accept-changed-code goes on, and marks the estimates",
            tuple(_diff(then, now, resumed)),
        )
    tell(f"{run.location} goes on with other code ({_listed(grave)}); its estimates are marked")
    left = {pack.audit for pack in plan.remaining(run)}
    audits = tuple(
        dataclasses.replace(audit, mixed=audit.mixed or index in begun & left)
        for index, audit in enumerate(plan.audits)
    )
    return dataclasses.replace(plan, audits=audits, code=(*before, now))


def keep_sources(sweep: Sweep, run: RunDirectory) -> None:
    """Puts a copy of the user's modules into the run directory, where it has none."""
    for digest, text in sources(sweep).items():
        if run.read_text(_copy(digest)) is None:
            run.write_text(_copy(digest), text)


def _modules(sweep: Sweep) -> set[str]:
    """Modules that the sweep takes from elsewhere."""
    modules = {module for cell in sweep.cells for module in cell.audit.named_modules}
    for cell in sweep.cells:
        for part in cell.parts:
            modules.update(part.named_modules())
    return modules


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _short(digest: str | None) -> str:
    return "no file" if digest is None else f"SHA-256 {digest[:12]}..."


def _begun(plan: Plan, run: RunDirectory) -> set[int]:
    """Numbers of the audits of which a trial or a preparation was computed, or failed to be."""
    computed = {
        index
        for index, audit in enumerate(plan.audits)
        if run.score_files(audit.id) or (audit.preparation and run.parts(audit.preparation.id))
    }
    try:
        return computed | {int(entry["pack"]["audit"]) for entry in run.read_json(FAILURES) or ()}
    except (KeyError, TypeError, ValueError):  # whoever needs the record tells what is wrong
        return computed


def _diff(then: Code, now: Code, resumed: Resumed) -> Iterator[str]:
    """Changed lines of the user's modules, as far as there is a copy of the earlier text."""
    texts = sources(resumed.sweep)
    shown: list[str] = []
    for name in sorted(then.modules.keys() & now.modules.keys()):
        old, new = then.modules[name], now.modules[name]
        before = resumed.run.read_text(_copy(old))
        whole = before is not None and hashlib.sha256(before.encode()).hexdigest() == old
        if old != new and whole and new in texts and before is not None:
            ends = (before.splitlines(), texts[new].splitlines(), f"{name} there", f"{name} here")
            shown += difflib.unified_diff(*ends, n=1, lineterm="")
    yield from (printable(line) for line in shown[:_MAX_LINES])
    if len(shown) > _MAX_LINES:
        yield f"... and {len(shown) - _MAX_LINES} more lines"


def _copy(digest: str) -> str:
    return f"code/{digest}.py"


def _listed(changes: list[str]) -> str:
    return "; ".join(changes[:4]) + (f"; and {len(changes) - 4} more" * (len(changes) > 4))
