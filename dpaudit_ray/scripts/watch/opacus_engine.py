"""Records what a script asks of Opacus' engines and accountants, and inspects private networks."""

from __future__ import annotations

import collections
import hashlib
import sys
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, RandomSampler, Subset

from ..protocol import Made, Report
from .forward_passes import repeat_forward
from .hooks import around
from .other_updates import note_copies
from .publications import digests_of_all_networks
from .run_state import WatchedRun

_FORWARD_PASSES = 2  # of each network that are repeated


def install(run: WatchedRun) -> None:
    """Watches engines, accountants and networks from now on."""
    from opacus import PrivacyEngine
    from opacus.accountants.accountant import IAccountant

    passes = collections.Counter[int]()  # repeated, by network
    accountants = run.accountants

    @around(PrivacyEngine, "make_private")
    def make_private(original: Any, self: Any, **kwargs: Any) -> Any:
        if run.request.one_more:
            kwargs["data_loader"] = one_record_more(kwargs["data_loader"])
        _note_private(run, kwargs["module"], kwargs["data_loader"])
        private = original(self, **kwargs)
        run.loaders.private.append(private[-1])
        run.networks.batch_first = bool(kwargs.get("batch_first", True))
        run.put(_made(run.phase, kwargs["data_loader"], private[1]))
        return private

    @around(PrivacyEngine, "__init__")
    def prepare(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        accountants.of_engines.append(self.accountant)

    @around(PrivacyEngine, "get_epsilon")
    def get_epsilon(original: Any, self: Any, delta: float) -> Any:
        # The same question in each run of an audit, and an answer may take a second.
        question = repr((self.accountant.mechanism(), self.accountant.history, delta))
        key = hashlib.blake2b(question.encode(), digest_size=16).hexdigest()
        answers = run.request.answers
        epsilon = np.float64(answers[key]) if key in answers else original(self, delta)
        accountants.answers[key] = float(epsilon)
        run.note_line("get_epsilon")
        index = [a is self.accountant for a in accountants.of_engines].index(True)
        accountants.reports.append(Report(delta, float(epsilon), run.releases, index))
        return epsilon

    @around(torch.nn.Module, "__call__")
    def forward(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        trains = self.training and torch.is_grad_enabled()
        is_private = any(self is module for module in run.networks.modules)
        if run.inspects and trains and is_private and passes[id(self)] < _FORWARD_PASSES:
            passes[id(self)] += 1
            with run.replay():
                entry = repeat_forward(self, args, kwargs, 0 if run.networks.batch_first else 1)
            run.put(entry)
        return original(self, *args, **kwargs)

    def register(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        # Some are made by others, which compute with them.
        caller = sys._getframe(2).f_globals["__name__"]
        helps = caller.startswith("opacus.accountants.analysis")
        if not helps and not any(self is accountant for accountant in accountants.all):
            accountants.all.append(self)

    for kind in _subclasses(IAccountant):
        around(kind, "__init__")(register)


def _note_private(run: WatchedRun, module: Any, loader: Any) -> None:
    """Notes a network that becomes private, and what there was before."""
    run.networks.data.append(loader.dataset)
    run.networks.modules.append(module)
    run.accountants.has_engine = True
    run.networks.rate = 1 / max(1, len(loader))
    run.note_line("the sampler", "the accountant", "the data set", "before make_private")
    if run.request.inspects:
        run.publications.before |= digests_of_all_networks()
        note_copies(run, module)


def _made(phase: str, loader: Any, optimizer: Any) -> Made:
    try:
        records = len(loader.dataset)
    except TypeError:  # data that come as a stream
        records = None
    return Made(
        phase=phase,
        records=records,
        batches=len(loader),
        noise=float(optimizer.noise_multiplier),
        expected_batch_size=optimizer.expected_batch_size,
    )


def _subclasses(base: Any) -> list[Any]:
    kinds = []
    for child in base.__subclasses__():
        kinds += [child, *_subclasses(child)]
    return kinds


def one_record_more(loader: Any) -> Any:
    """Returns the same loader over a record more, a copy of the first.

    A loader with a custom sampler is returned as it is.
    """
    if not isinstance(loader.batch_sampler, BatchSampler):
        return loader
    names = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn")
    data = loader.dataset
    return DataLoader(
        ConcatDataset([data, Subset(data, [0])]),
        batch_size=loader.batch_sampler.batch_size,
        shuffle=isinstance(loader.sampler, RandomSampler),
        drop_last=loader.drop_last,
        generator=loader.generator,
        **{name: getattr(loader, name) for name in names},
    )
