"""Runs `dpaudit VERB`, and turns errors into one line and an exit code."""

import io
import os
import re
import sys
import traceback
from typing import Annotated, Never, cast

import typer
from pydantic import ValidationError

from .. import __version__
from ..errors import DpauditError, Exit, SpecError, first_line, out_of_memory
from ..orchestration import interruption
from ..plugins import spec_error
from . import judge_verbs, read_verbs, risk_verb, run_verbs, script_verb, start_verbs, terminal
from .arguments import Group

# Click's class, wherever Typer keeps its copy of it.
_UsageError = cast(type[Exception], typer.BadParameter.__base__)
_MAX_WORD = 400  # characters of a word in a message; paths and names are shorter
_MAX_MISTAKES = 20  # mistakes of one sweep file that are printed

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help="Audit differentially private training: compare lower bounds on ε with the claim.",
    epilog=(
        "Add --debug to any command to show the traceback of an error.\n\nExit codes: 0 complete, "
        "1 violation, 2 wrong usage or input, 3 finished with failed trials, 4 stopped and "
        "resumable, 5 inconclusive.\n\nExample: dpaudit audit train.py\n\n"
        "Docs: docs/get-started.md, docs/command-line.md"
    ),
)
for _family in (script_verb, run_verbs, read_verbs, judge_verbs, risk_verb, start_verbs):
    app.add_typer(_family.app)


@app.callback(invoke_without_command=True)
def _top(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Print the version and exit.")
    ] = False,
) -> None:
    if version:
        terminal.say(__version__)
        raise typer.Exit


def main() -> Never:
    """Entry point: turns every error into one line and its exit code."""
    end = [*sys.argv, "--"].index("--")  # arguments of a script follow
    debug = "--debug" in sys.argv[:end]
    sys.argv[:end] = [argument for argument in sys.argv[:end] if argument != "--debug"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # the terminal may have no ε
    # Typer answers a shell that completes a word, or installs completion, and ends the process.
    # A shell that completes sets the variable; the options install.
    if "_DPAUDIT_COMPLETE" in os.environ or re.search("-completion$", "".join(sys.argv[1:2])):
        app(prog_name="dpaudit")
    code = _run_app(debug) or Exit.COMPLETE
    if interruption.head_lost.is_set():  # Ray would wait at the end for its lost head
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    sys.exit(code)


def _respelled(arguments: list[str]) -> list[str]:
    """Replaces `verify` of a script, the old spelling, by `audit`."""
    scripts = [word for word in arguments[1:] if re.search(r"\.py(:\w*)?$", word)]
    if arguments[:1] != ["verify"] or not scripts:
        return arguments
    terminal.add(f"`dpaudit verify {scripts[0]}` is now `dpaudit audit {scripts[0]}`")
    return ["audit", *arguments[1:]]


def _run_app(debug: bool) -> int | None:
    """Runs the command line, and returns its exit code; errors are printed, each as one line."""
    try:
        code: int | None = app(_respelled(sys.argv[1:]), prog_name="dpaudit", standalone_mode=False)
        return code
    except (DpauditError, _UsageError) as error:
        if debug:
            terminal.add(traceback.format_exc())
        for line in _error_lines(error):
            terminal.complain(line)
        for detail in getattr(error, "details", ()):
            terminal.add(detail)
        return getattr(error, "exit_code", Exit.USAGE)
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):
            return Exit.COMPLETE  # the reader of the help is gone: rich ends the process
        terminal.complain(f"code named in the sweep file called sys.exit({error.code!r})")
        return Exit.USAGE
    except Exception as error:  # noqa: BLE001 (Python would exit with 1, which says "violation")
        if out_of_memory(error) and not debug:
            terminal.complain(
                f"out of memory ({first_line(error)}); finished packs are safe: run the same "
                "command where more memory is free"
            )
            return Exit.STOPPED
        terminal.add(traceback.format_exc())
        terminal.complain("this is a bug in dpaudit; finished packs are safe")
        return Exit.BUG


def _error_lines(error: Exception) -> list[str]:
    """Returns a line for each mistake; none if Typer has printed its help instead."""
    if isinstance(error, DpauditError):
        problems = error.problems if isinstance(error, SpecError) else (error,)
        lines = [" ".join(map(_shortened, str(problem).split())) for problem in problems]
        if len(lines) > _MAX_MISTAKES:
            lines[_MAX_MISTAKES:] = [f"and {len(lines) - _MAX_MISTAKES} more"]
        return lines
    message = str(getattr(error, "format_message", error.__str__)())
    verb = getattr(getattr(error, "ctx", None), "command_path", "dpaudit")
    if isinstance(error.__cause__, ValidationError):
        # Typer's message has the name of the option in quotes.
        message = str(spec_error(error.__cause__, message.split("'")[1], None))
    end = "" if message.endswith("?") else ";"
    return [f"{message.removesuffix('.')}{end} see {verb} --help"] if message else []


def _shortened(word: str) -> str:
    return word if len(word) <= _MAX_WORD else f"{word[:60]}... ({len(word)} characters)"
