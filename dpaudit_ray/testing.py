"""Tests that a training function does not violate its privacy claim.

    from dpaudit_ray.testing import assert_private

    def test_training_is_private():
        assert_private(main, epsilon=3.0, delta=1e-5, budget="5min")

A function without a violation fails the test in at most 5 % of audits with other seeds. With one
seed the random choices are always the same, so a test that passes does not fail by chance another
day, unless the script's own randomness differs. `INCONCLUSIVE` fails, too, unless `conclusive` is
False.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import SpecError

if TYPE_CHECKING:
    from .scripts.script_findings import ScriptVerdict

__all__ = ["assert_private"]


def assert_private(
    main: Callable[[], Any] | str,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    budget: str | float = "5min",
    layers: tuple[int, ...] = (0, 1, 2),
    seed: int = 0,
    conclusive: bool = True,
) -> "ScriptVerdict":
    """Audits a function that trains, in child processes, as `dpaudit audit` does.

    Args:
        main: a function at the top of a module file, or "path/to/script.py:function".
        epsilon: ε of the claim; None: the value reported by the script's accountant.
        delta: δ of the claim; None: that of `@audited`.
        budget: time limit: seconds, or "5min".
        layers: checks to run: 0 inspects one run, 1 tests steps, 2 tests runs.
        seed: seed of the audit's random choices.
        conclusive: whether an undecided claim fails the test, too.

    Returns:
        The verdict, with all its findings.

    Raises:
        AssertionError: the claim is violated, or was not decided; the message has every finding.
        ScriptError: the script cannot be audited as it is.
        SpecError: `main` is not such a function, or no δ is stated.
    """
    from .report.verdict import Verdict
    from .scripts.script_audit import Audit, Options, parse_duration
    from .scripts.script_runs import LocalRunner, Target

    location = main if isinstance(main, str) else _location(main)
    target = Target.from_text(location, delta, epsilon)
    if not target:
        raise SpecError("main", f"is {main!r}; name it as path/to/script.py:function")
    seconds = parse_duration(budget) if isinstance(budget, str) else float(budget)
    options = Options(seconds, layers, seed=seed)
    audit = Audit(target, LocalRunner(target), options, lambda _: None).verdict()
    is_violation = audit.verdict is Verdict.VIOLATION
    if is_violation or (conclusive and audit.verdict is not Verdict.CONSISTENT):
        findings = map(str, audit.violations if is_violation else audit.findings)
        lines = [f"{audit.verdict}: {audit.headline}", *findings, *audit.help]
        raise AssertionError("\n".join(lines))
    return audit


def _location(main: Callable[[], Any]) -> str:
    """Returns a function as "path/to/script.py:function".

    Raises:
        SpecError: it is not a function at the top of a file.
    """
    name = getattr(main, "__qualname__", "")
    try:
        file = inspect.getsourcefile(inspect.unwrap(main))
    except TypeError:
        file = None
    if not file or not name.isidentifier():
        raise SpecError("main", f"is {main!r:.60}, no function at the top of a file; move it there")
    return f"{Path(file)}:{name}"
