"""What tests of the engines draw does not depend on which ran before."""

from __future__ import annotations

import pytest

from tests.engines import on_kernels


@pytest.fixture(autouse=True)
def drawn_anew() -> None:
    on_kernels.GENERATOR.manual_seed(5)
