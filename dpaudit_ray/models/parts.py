"""What several recipes share: the number of outputs, and which shapes are images."""

from __future__ import annotations

from ..errors import SpecError


def outputs(classes: int) -> int:
    """One logit for two classes, else one each; see `Model.build`."""
    return 1 if classes == 2 else classes


def image(shape: tuple[int, ...], name: str, least: int) -> tuple[int, int, int]:
    """`shape` as (channels, height, width).

    Raises:
        SpecError: it is no image, or one with less than `least` pixels a side.
    """
    if len(shape) != 3 or min(shape[1:]) < least:
        raise SpecError(
            "mechanism.model",
            f"{name} needs images [channels, height, width] of at least {least} x {least} pixels, "
            f"but mechanism.data gives {list(shape)}; use another of the two",
        )
    return shape[0], shape[1], shape[2]
