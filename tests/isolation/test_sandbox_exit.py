"""The process that runs are forked from goes at once: nobody waits for what it has imported."""

import os
from pathlib import Path

from dpaudit_ray.isolation import Sandbox

SLOW = """
import atexit, pathlib

here = pathlib.Path(__file__).parent
(here / "entered").touch()
atexit.register((here / "left").touch)
"""


def test_a_room_is_left_without_tearing_down_what_it_imported(tmp_path):
    (tmp_path / "slow_to_leave.py").write_text(SLOW)
    root = Path(__file__).resolve().parents[2]
    surroundings = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(root)])}
    with Sandbox(("slow_to_leave",), environment=surroundings) as room:
        assert room.call("json:dumps", "x").value == '"x"'
    assert (tmp_path / "entered").exists()
    assert not (tmp_path / "left").exists()
