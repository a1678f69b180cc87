"""Who computes on the cores: models, or torch's own threads."""

import pytest
import torch

from dpaudit_ray.engines.cpu import threads


@pytest.fixture(autouse=True)
def two(one_thread: None) -> None:
    torch.set_num_threads(2)


def seen(models: int) -> list[int]:
    """How many threads torch has where each part is computed."""
    found: list[int] = []
    threads.run_on_threads(lambda thread, part: found.append(torch.get_num_threads()), models)
    return found


def test_torch_rests_while_models_have_its_threads():
    with threads.torch_on_one_thread():
        assert (torch.get_num_threads(), threads.thread_count()) == (1, 2)
        assert seen(8) == [1, 1]
        with threads.torch_on_one_thread():
            assert threads.thread_count() == 2
        assert (torch.get_num_threads(), threads.thread_count()) == (1, 2)
    assert (torch.get_num_threads(), threads.thread_count()) == (2, 2)


def test_one_model_and_what_is_not_spread_have_torchs():
    with threads.torch_on_one_thread():
        assert seen(1) == [2]
        with threads.torch_on_all_threads():
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == 1


def test_they_come_back_after_an_error():
    with pytest.raises(ValueError, match="no"), threads.torch_on_one_thread():
        raise ValueError("no")
    assert (torch.get_num_threads(), threads.thread_count()) == (2, 2)


def test_noise_is_drawn_beside_what_is_spread():
    with threads.torch_on_one_thread():
        drawn = threads.start_in_background(torch.get_num_threads, worthwhile=True)
        assert drawn() == 1, "on a thread of the pool"
