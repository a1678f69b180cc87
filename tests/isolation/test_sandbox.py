"""Calls in child processes: however one ends, it is told, and the next one is made."""

import os
import signal
import subprocess
import sys
import threading
import time
import unittest.mock
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dpaudit_ray.errors import ClusterError
from dpaudit_ray.isolation import Ended, Limits, Sandbox, forkserver
from tests.conftest import ROOT
from tests.head import tree, wait_for

HERE = str(Path(__file__).parent)
CALLED = "called"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(path=(HERE,)) as opened:
        yield opened


def called(sandbox: Sandbox, name: str, argument: Any = None, **limits: float) -> Ended:
    return sandbox.call(f"{CALLED}:{name}", argument, Limits(**limits))


def gone(process: int) -> bool:
    """Whether it has ended."""
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def processes_of(sandbox: Sandbox) -> list[psutil.Process]:
    """Returns all processes that a sandbox has started, its guardian and its server too.

    Its folder is in the command line of all that are forked from these two.
    """
    name = str(sandbox.folder)
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        alive = process.info["status"] != psutil.STATUS_ZOMBIE
        if alive and any(name in part for part in process.info["cmdline"] or ()):
            found.append(process)
    return found


@pytest.mark.parametrize("value", [1, 0.1 + 0.2, None, "ε", [1, {"a": [True]}], float("inf")])
def test_what_is_returned_comes_back(sandbox, value):
    ended = called(sandbox, "given", value)
    assert (ended.how, ended.value, ended.message, ended.traceback) == ("returned", value, "", "")
    assert ended.output == "said\nand complained\n"
    assert ended.seconds > 0


@pytest.mark.parametrize(
    ("name", "argument", "said"),
    [
        ("raising", "boom\nand more", "ValueError: boom"),
        ("leaving", 3, "SystemExit: 3"),
        ("no_json", None, "TypeError: Object of type set is not JSON serializable"),
        ("nothing_of_the_name", None, "AttributeError: module 'called' has no attribute"),
        ("raising", "", "ValueError"),
        ("raising", "\x1b[31mred", "ValueError: \\x1b[31mred"),
    ],
)
def test_all_that_fails_is_a_line(sandbox, name, argument, said):
    ended = called(sandbox, name, argument)
    assert (ended.how, ended.value) == ("raised", None)
    assert ended.message.startswith(said)
    assert "\n" not in ended.message
    if name == "raising":
        assert "in raising" in ended.traceback
        assert ended.output == "before"


def test_what_takes_too_long_is_ended(sandbox):
    ended = called(sandbox, "hanging", 600, seconds=3)
    assert (ended.how, ended.message) == ("hung", "took more than 3 s")
    assert ended.output == "waits\n", "it has said so, though it was killed"
    assert ended.seconds >= 3


@pytest.mark.parametrize("name", ["growing", "growing_below", "growing_apart"])
def test_what_takes_too_much_memory_is_ended(sandbox, name):
    ended = called(sandbox, name, 0.4, gib=0.2, seconds=20)
    assert (ended.how, ended.message) == ("memory", "took more than 0.2 GiB")


@pytest.mark.parametrize(
    ("name", "argument", "said"),
    [
        ("killed", int(signal.SIGKILL), "ended with signal SIGKILL"),
        ("killed", int(signal.SIGSEGV), "ended with signal SIGSEGV"),
        ("quitting", 0, "ended with exit status 0"),
        ("quitting", 9, "ended with exit status 9"),
    ],
)
def test_what_dies_is_told(sandbox, name, argument, said):
    ended = called(sandbox, name, argument)
    assert (ended.how, ended.message) == ("died", said)
    assert ("in killed" in ended.output) is said.endswith("SIGSEGV"), "of a crash, the place"


def test_of_megabytes_beginning_and_end_are_kept(sandbox):
    ended = called(sandbox, "printing", 8)
    assert ended.how == "returned"
    assert len(ended.output) < 21_000
    assert ended.output.startswith("first line\n")
    assert ended.output.endswith("x\nlast line\n")
    assert " bytes left out ..." in ended.output


def test_what_a_call_leaves_behind_is_ended(sandbox):
    ended = called(sandbox, "leaving_one_behind")
    assert ended.how == "returned"
    wait_for(lambda: gone(ended.value))


APART = ["session", "daemon", "deaf", "forking", "family"]


def assert_no_beats(folder: Path) -> None:
    """A process that forks on and on is in no list of processes, but writes all the time."""
    beats = folder / "beats"
    if beats.exists():
        size = beats.stat().st_size
        time.sleep(0.2)
        assert beats.stat().st_size == size


@pytest.mark.parametrize("kind", APART)
def test_processes_that_leave_their_group_end_with_the_call(kind, tmp_path):
    with Sandbox(path=(HERE,)) as sandbox:
        for _ in range(2):
            assert called(sandbox, "starting_apart", [kind, str(tmp_path)]).how == "returned"
            assert len(processes_of(sandbox)) == 2, "guardian and server"
            assert_no_beats(tmp_path)


@pytest.mark.parametrize("kind", APART)
def test_processes_of_a_call_that_hangs_end_with_it(kind, tmp_path):
    with Sandbox(path=(HERE,)) as sandbox:
        argument = [kind, str(tmp_path)]
        ended = called(sandbox, "starting_apart_and_waiting", argument, seconds=0.5)
        assert (ended.how, ended.output) == ("hung", "started\n")
        assert len(processes_of(sandbox)) == 2
        assert_no_beats(tmp_path)


@pytest.mark.parametrize(
    ("kind", "victim"),
    [
        ("session", "guardian"),
        ("session", "server"),
        ("forking", "server"),
        ("session", "asker"),
        ("session", "asker's group"),
    ],
)
def test_no_process_of_a_call_outlives_those_around_it(kind, victim, tmp_path):
    """Kills one of them by SIGKILL during the call, which none of them can answer."""
    code = (
        "from dpaudit_ray.isolation import Sandbox\n"
        f"sandbox = Sandbox(path=({HERE!r},))\n"
        f"server = sandbox.call('{CALLED}:where', None).value['parent']\n"
        "print(sandbox.folder, sandbox._server[0].pid, server, flush=True)\n"
        f"argument = {[kind, str(tmp_path)]!r}\n"
        f"sandbox.call('{CALLED}:starting_apart_and_waiting', argument)\n"
    )
    asker = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    with asker:
        assert asker.stdout is not None
        folder, guardian, server = asker.stdout.readline().split()
        wait_for((tmp_path / "started").exists, 30)
        if victim == "asker's group":
            os.killpg(asker.pid, signal.SIGKILL)
        else:
            pids = {"guardian": guardian, "server": server, "asker": asker.pid}
            os.kill(int(pids[victim]), signal.SIGKILL)
    marked = unittest.mock.Mock(folder=folder)
    wait_for(lambda: not processes_of(marked), 30)
    assert_no_beats(tmp_path)


def test_helpers_that_a_preloaded_module_started_stay(tmp_path):
    (tmp_path / "helped.py").write_text(
        "import subprocess\nhelper = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
    )
    (tmp_path / "helping.py").write_text("import helped\npid = lambda _: helped.helper.pid\n")
    with Sandbox(("helped",), (str(tmp_path),)) as sandbox:
        helpers = {sandbox.call("helping:pid", None).value for _ in range(2)}
        (helper,) = helpers
        assert not gone(helper)
    wait_for(lambda: gone(helper))


def test_threads_hold_nothing_up(sandbox):
    assert called(sandbox, "with_threads", 3, seconds=10).value == 4


def test_a_server_leaves_it_to_who_asks_when_to_end(sandbox):
    assert called(sandbox, "stopping_server").value == 3
    assert called(sandbox, "given", 4).value == 4


def test_a_server_that_is_killed_is_told_and_replaced():
    with Sandbox(path=(HERE,)) as sandbox:
        with pytest.raises(ClusterError, match="has died; run it again"):
            called(sandbox, "ending_server", seconds=10)
        server = called(sandbox, "where").value["parent"]
        os.kill(server, signal.SIGKILL)
        wait_for(lambda: gone(server))
        again = called(sandbox, "where")
        assert again.how == "returned"
        assert again.value["parent"] != server


def test_every_call_is_a_process_of_its_own(sandbox):
    first, second = (called(sandbox, "where").value for _ in range(2))
    assert first["process"] != second["process"]
    assert first["parent"] == second["parent"]
    assert first["path"][0] == HERE


def test_closed_it_leaves_nothing():
    sandbox = Sandbox(path=(HERE,))
    server = called(sandbox, "where").value["parent"]
    sandbox.close()
    wait_for(lambda: gone(server))
    assert not sandbox.folder.exists()
    sandbox.close()


def test_whoever_asks_may_be_killed():
    """Its calls end with it, and its folder goes."""
    code = (
        "import sys, threading, time; from dpaudit_ray.isolation import Sandbox\n"
        f"sandbox = Sandbox(path=({HERE!r},)); sandbox.call('{CALLED}:where', None)\n"
        "print(sandbox.folder, flush=True)\n"
        f"sandbox.call('{CALLED}:hanging', 60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as asks:
        assert asks.stdout is not None
        folder = Path(asks.stdout.readline().strip())
        below = wait_for(lambda: (seen := tree(asks.pid)[1:])[2:] and seen)
        asks.kill()
    assert len(below) == 3
    wait_for(lambda: all(gone(process.pid) for process in below) and not folder.exists())


SLOW = """
import atexit, pathlib

here = pathlib.Path(__file__).parent
(here / "entered").touch()
atexit.register((here / "left").touch)
"""


def test_modules_print_no_answer_replace_no_other_and_are_not_torn_down(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise ValueError('a stranger')")
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "loud.py").write_text("print('hello'); raise SystemExit(3)")
    (folder / "slow_to_leave.py").write_text(SLOW)
    monkeypatch.chdir(tmp_path)
    places = {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    with Sandbox(("loud", "slow_to_leave"), (HERE,), places) as sandbox:
        assert called(sandbox, "given", 1).value == 1
    assert (folder / "entered").exists()
    assert not (folder / "left").exists()


def test_a_call_is_made_whatever_descriptors_are_open():
    """The connection has any number in the server: also one between the two ends of its pipe."""
    code = (
        "import os\n"
        "from dpaudit_ray.isolation import Sandbox\n"
        "for _ in range(6):\n"
        "    with Sandbox() as sandbox:\n"
        "        print(sandbox.call('math:sqrt', 4.0).value)\n"
        "    os.open(os.devnull, os.O_RDONLY)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2.0"] * 6


@pytest.mark.skipif(sys.platform != "linux", reason="other systems list no threads")
def test_children_are_listed_though_a_thread_ends_meanwhile(monkeypatch):
    """The first thread's list cannot be read: a later thread's child is listed all the same."""
    children: list[subprocess.Popen[bytes]] = []
    over = threading.Event()

    def start_child() -> None:
        """Starts a process as this thread's child; the thread stays until the test is over."""
        children.append(subprocess.Popen(["sleep", "60"]))
        over.wait()

    read_text = Path.read_text
    unread: list[Path] = []

    def read(path: Path) -> str:
        """Reads a file, but the first list of children."""
        if path.name == "children" and not unread:
            unread.append(path)
            raise FileNotFoundError(path)
        return read_text(path)

    thread = threading.Thread(target=start_child)
    thread.start()
    wait_for(lambda: bool(children))
    monkeypatch.setattr(Path, "read_text", read)
    try:
        assert children[0].pid in forkserver._children(os.getpid())
        assert unread
    finally:
        over.set()
        children[0].kill()
        children[0].wait()
        thread.join()
