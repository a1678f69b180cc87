"""A training that imports torch, and only when it is called."""


def threads(member: bool, seed: int) -> float:
    """Returns the number of torch's threads in the process of a trial."""
    import torch

    return float(torch.get_num_threads())
