"""A training that imports torch, and only when it is called."""


def threads(member: bool, seed: int) -> float:
    """How many torch has where a trial runs."""
    import torch

    return float(torch.get_num_threads())
