"""Records what a script asks of Opacus' engines and accountants, and inspects private networks."""

import collections
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, RandomSampler, Subset

from ..protocol import ForwardInspection, Made, Report
from .accountants import AccountantWatch
from .forward_passes import in_functorch, lies_time_first, mapped_batch, repeat_forward
from .hooks import around, import_if_there
from .other_updates import note_copies
from .publications import digests_of_all_networks
from .run_state import WatchedRun

_NO_HOOKS = "GradSampleModuleNoOp"  # for grad_sample_mode="no_op"
_USUAL_SAMPLERS = {
    "RandomSampler",
    "SequentialSampler",
    "BatchSampler",
    "DistributedSampler",
    "_InfiniteConstantSampler",
    "UniformWithReplacementSampler",
    "DistributedUniformWithReplacementSampler",
}
_FORWARD_PASSES = 2  # of each network that are repeated


def install(run: WatchedRun) -> None:
    """Watches engines, accountants and networks from now on, if there is Opacus."""
    if not import_if_there("opacus"):
        return
    from opacus import PrivacyEngine
    from opacus.accountants import utils
    from opacus.accountants.accountant import IAccountant

    networks = run.networks

    @around(PrivacyEngine, "make_private")
    def make_private(original: Any, self: Any, **kwargs: Any) -> Any:
        if run.request.one_more:
            kwargs["data_loader"] = one_record_more(kwargs["data_loader"])
        loader = kwargs["data_loader"]
        _note_private(run, kwargs["module"], loader, self.accountant)
        private = original(self, **kwargs)
        run.loaders.private.append(private[-1])
        networks.batch_first = bool(kwargs.get("batch_first", True))
        is_poisson = bool(kwargs.get("poisson_sampling", True))
        entry = _made(run.phase, loader, private[1], is_poisson)
        epsilon, delta = networks.target
        networks.target = (None, None)
        run.put(replace(entry, target_epsilon=epsilon, target_delta=delta))
        return private

    def note_target(original: Any, *args: Any, **kwargs: Any) -> Any:
        networks.target = (kwargs.get("target_epsilon"), kwargs.get("target_delta"))
        return original(*args, **kwargs)

    around(PrivacyEngine, "make_private_with_epsilon")(note_target)
    around(utils, "get_noise_multiplier")(note_target)

    @around(PrivacyEngine, "__init__")
    def prepare(
        original: Any,
        self: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        original(self, *args, **kwargs)
        run.accountants.of_engines.append(self.accountant)

    def report(accountant: Any, delta: float, epsilon: float) -> None:
        run.note_line("get_epsilon")
        run.accountants.reports.append((accountant, Report(delta, epsilon, run.releases, -1)))

    watch = AccountantWatch(run.accountants, run.request.answers, report)
    for kind in _subclasses(IAccountant):
        around(kind, "__init__")(watch.register)
    if run.request.inspects:
        _inspect_forward_passes(run)


def _inspect_forward_passes(run: WatchedRun) -> None:
    passes = collections.Counter[int]()  # repeated, by network

    @around(torch.nn.Module, "__call__")
    def forward(
        original: Any,
        self: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if run.inspects and self.training and _is_private(run, self):
            is_mapped = in_functorch()
            trains = is_mapped or torch.is_grad_enabled()
            if trains and passes[id(self)] < _FORWARD_PASSES:
                passes[id(self)] += 1
                inspect = _inspect_mapped if is_mapped else _inspect_forward
                run.put(inspect(run, self, args, kwargs))
        return original(self, *args, **kwargs)


def _is_private(run: WatchedRun, module: Any) -> bool:
    if type(module).__name__ == _NO_HOOKS:  # calls the network's forward, and not the network
        module = module._module
    return any(module is private for private in run.networks.modules)


def _inspect_forward(
    run: WatchedRun,
    module: Any,
    args: Any,
    kwargs: Any,
) -> ForwardInspection:
    networks = run.networks
    with run.replay():
        entry = repeat_forward(module, args, kwargs, 0 if networks.batch_first else 1)
    current = run.loaders.current
    if not networks.batch_first or current is None or not current.batches:
        return entry
    time_first = lies_time_first(args, kwargs, len(current.batches[-1]))
    return replace(entry, time_first=time_first)


def _inspect_mapped(
    run: WatchedRun,
    module: Any,
    args: Any,
    kwargs: Any,
) -> ForwardInspection:
    """Notes a pass under `vmap`, which separates its entries; each may have several records."""
    records = mapped_batch(args, kwargs)
    if records is None:
        return ForwardInspection(unseen="a forward pass in torch.func without vmap")
    run.networks.records_each = max(run.networks.records_each, records)
    return ForwardInspection(by_vmap=True)


def _note_private(
    run: WatchedRun,
    module: Any,
    loader: Any,
    accountant: Any,
) -> None:
    """Notes a network that becomes private, and what there was before."""
    run.networks.data.append(loader.dataset)
    run.networks.accountants.append(accountant)
    run.networks.modules.append(module)
    run.accountants.has_engine = True
    run.networks.rate = 1 / max(1, len(loader))
    run.note_line("the sampler", "the accountant", "the data set", "before make_private")
    if run.request.inspects:
        run.publications.before |= digests_of_all_networks()
        note_copies(run, module)


def _made(
    phase: str,
    loader: Any,
    optimizer: Any,
    is_poisson: bool,
) -> Made:
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
        poisson_sampling=is_poisson,
        replaced_sampler=_replaced_sampler(loader) if is_poisson else "",
    )


def _replaced_sampler(loader: Any) -> str:
    """Returns the class of a sampler that Opacus drops for Poisson sampling; "" if it is usual."""
    for sampler in (loader.sampler, loader.batch_sampler):
        name = type(sampler).__name__
        if sampler is not None and name not in _USUAL_SAMPLERS:
            return name
    return ""


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
