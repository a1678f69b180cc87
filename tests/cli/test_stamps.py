"""The driver of a Ray job says when it said what."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from dpaudit_ray.cli.stamps import Stamped

TIME = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d "


@pytest.mark.parametrize("job", [True, False])
def test_lines_of_a_job_begin_with_the_time(job: bool) -> None:
    environment = os.environ | ({"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"} if job else {})
    command = [sys.executable, "-m", "dpaudit_ray", "status", "nowhere"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert re.fullmatch(f"{TIME if job else ''}dpaudit: .*nowhere is .+\n", done.stderr)


def test_a_line_in_parts_has_one_stamp_and_lines_at_once_have_one_each() -> None:
    reader, writer = os.pipe()
    stream = Stamped(writer)
    for text in ["one", " and\n", "two\nthree: ε\n", "", "\n", "four"]:
        assert stream.write(text) == len(text)
    stream.close()
    os.close(writer)
    with open(reader, encoding="utf-8") as pipe:
        found = pipe.read().split("\n")
    for line, text in zip(found, ["one and", "two", "three: ε", "", "four"], strict=True):
        assert re.fullmatch(TIME + text, line)
