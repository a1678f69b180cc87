"""The kinds of findings of a script's audit: code, weight and words of each, in one table.

Codes are stable: a page of the documentation has a section for each, and reports of CI refer to
them. A kind that is removed leaves its code unused.
"""

import dataclasses
import re
from enum import StrEnum

from ..errors import SpecError


class Weight(StrEnum):
    """Consequence of a finding for the claim."""

    VIOLATION = "VIOLATION"  # the claim is violated
    WARNING = "WARNING"  # the claim is not proven, or part of it was not observed
    NOTE = "NOTE"  # worth knowing; without consequence for the claim


@dataclasses.dataclass(frozen=True)
class FindingKind:
    """A kind of finding; texts have their values in braces.

    Attributes:
        code: DPA and three digits.
        title: a few words, as in the documentation.
        check: name of the check that it belongs to.
        weight: consequence for the claim.
        expected: what a script without a violation shows.
        observed: what was observed instead.
        fix: what to do, as a command; may be "".
    """

    code: str
    title: str
    check: str
    weight: Weight
    expected: str
    observed: str
    fix: str = ""


# Short names, and texts of several kinds, for the table below.
_V = Weight.VIOLATION
_W = Weight.WARNING
_N = Weight.NOTE
_POISSON = "each record sampled independently at a rate of {rate:.3g} (Poisson), as accounted"
_SAMPLE = "sample by poisson_sampling=True, or account without amplification"

_PINNED = "{names}, which changed with another record although all releases were the same"
_WITHOUT_NOISE = "no training on these records without noise"
_SPENT = "{composed:.3g} spent: the noise was chosen for fewer steps, or for a lower rate"
_UNPREDICTABLE = "noise that no one can recompute"

# By a name that checks use. A row has the fields of `FindingKind`, in their order.
# fmt: off
KINDS: dict[str, FindingKind] = {
    "no noise": FindingKind(
        "DPA001", "no noise", "noise", _V,
        "noise on every gradient",
        "the same gradient for any state of the generators: the noise is missing or constant",
        "correct the code that adds the noise, or that seeds its generator"),
    "bare": FindingKind(
        "DPA002", "tensor without noise", "noise", _V,
        "noise on every gradient", "none on {bare}, which depends on records"),
    "short noise": FindingKind(
        "DPA003", "too little noise", "noise", _V,
        "a noise multiplier of {noise:.3g}, as accounted",
        "{effective:.3g} or less, by {change}",
        "scale noise to its multiplier times the largest change by one record; add up squared "
        "bounds"),
    "counted": FindingKind(
        "DPA004", "adaptive clipping", "noise", _V,
        "a noise multiplier of {noise:.3g}, as accounted",
        "{effective:.3g} or less: {share} of it because the clipping bound follows a count",
        "add more noise to the count: Opacus assumes half of a record's effect on it, so double "
        "unclipped_num_std, or use larger batches if it is a share of them"),
    "not finite": FindingKind(
        "DPA005", "divergence", "noise", _W,
        "finite numbers",
        "inf or NaN in the releases of {count} of {steps} steps",
        "make training stable: whether it diverges may depend on a record"),
    "scale": FindingKind(
        "DPA006", "scaled by the batch size", "scale", _V,
        "a record without a gradient changes nothing",
        "everything scaled with the batch, as with a noise multiplier of {effective:.3g}, not "
        "{noise:.3g}",
        "divide by the expected batch size, not by the size of the batch"),
    "unclipped": FindingKind(
        "DPA007", "unclipped gradient", "clipping", _V,
        "no record changes the release by more than the clipping bound",
        "{change} moved the release {ratio:.0f} times as far as a noise multiplier of "
        "{noise:.3g} allows",
        "clip each record's gradient, over all parameters, before they are added up"),
    "ghost": FindingKind(
        "DPA008", "ghost clipping", "clipping", _V,
        "no clipped gradient longer than {bound:.3g}",
        "{longest:.3g}, of {change}",
        "ghost clipping bounds the norms that it computes: compare them with the gradients"),
    "correlation": FindingKind(
        "DPA009", "correlated noise", "correlation of {pairs}", _V,
        "independent noise",
        "noise of {what} with a correlation of {correlation:.2f}",
        "draw fresh noise for every parameter and every step, from one generator"),
    "law": FindingKind(
        "DPA010", "noise is not Gaussian", "law of the noise", _V,
        "Gaussian noise",
        "a different distribution ({distance:.3f} away from the normal one, over {numbers} "
        "numbers)"),
    "mixes": FindingKind(
        "DPA011", "mixed records", "records apart", _V,
        "outputs that do not depend on other records of the batch",
        "exchanging the first record changed the other outputs by {by:.2g} of their size",
        "replace batch normalisation, and everything else that combines records of a batch"),
    "time first": FindingKind(
        "DPA012", "time before batch", "records apart", _V,
        "one record in each row of the first dimension",
        "records along the second dimension, which is as long as the draw",
        "pass batches as (records, time), or make_private(batch_first=False)"),
    "buffers": FindingKind(
        "DPA013", "buffers", "buffers", _V,
        "buffers that no record changes",
        "values computed from the batch, without noise",
        "freeze them, or use GroupNorm: they are published with the model"),
    "passes": FindingKind(
        "DPA015", "several backward passes", "clipping", _V,
        "one clipped gradient for each record",
        "{passes} gradients per record, from {passes} backward passes, at {count} steps: one "
        "record changes the sum by up to {passes} clipping bounds",
        "add the losses up and call backward once, or average a record's gradients first"),
    "not accounted": FindingKind(
        "DPA016", "steps not accounted", "accounting", _V,
        "{taken} steps, as taken", "{counted} in the accountant's history",
        "account every release: attach_step_hook replaces the engine's own hook"),
    "less reported": FindingKind(
        "DPA017", "reported ε too small", "accounting", _V,
        "ε = {composed:.4g} at δ = {delta}, from all accounted steps by PLD",
        "{epsilon:.4g}, reported to the script ({name}){engines}",
        "report the ε of all steps on the same records, by accountant=\"prv\""),
    "reported apart": FindingKind(
        "DPA018", "several reported ε", "accounting", _W,
        "ε = {composed:.4g}, for all {engines} engines together",
        "{epsilon:.4g} at the end, for {count} of them",
        "report one ε for all, and state it with @audited(epsilon=...)"),
    "target": FindingKind(
        "DPA019", "target exceeded", "accounting", _N,
        "ε = {target:.3g}, the target that the noise was chosen for", _SPENT,
        "report the ε that was spent"),
    "reported early": FindingKind(
        "DPA020", "ε reported early", "accounting", _N,
        "an ε at the end of training, at δ = {delta}",
        "{epsilon:.4g} at δ = {other}, after {steps} of {taken} steps",
        "report ε after the last step, at the δ that is claimed"),
    "carried sum": FindingKind(
        "DPA021", "carried-over gradients", "accumulation", _V,
        "a release that contains only one draw of records",
        "it contains the gradients of an earlier draw: a record in both counts twice under one "
        "noise",
        "leave BatchMemoryManager only at the end of a batch"),
    "not private": FindingKind(
        "DPA022", "update without noise", "updates", _V,
        "every update is a private release",
        "{names} updated by an optimizer that no PrivacyEngine wraps",
        "step the optimizer that make_private returned, and only that"),
    "no privacy": FindingKind(
        "DPA023", "no private step", "updates", _V,
        "a private release in each step, as ε = {promised:.3g} is claimed",
        "{steps} steps of {optimizer}, none with noise that this audit recognises",
        "call make_private; if your own code adds noise, decorate the function that returns the "
        "noisy gradient with @audited_release(records=[...], noise_multiplier=..., "
        "max_grad_norm=...)"),
    "warm-up": FindingKind(
        "DPA024", "warm-up", "updates", _V,
        _WITHOUT_NOISE,
        "{names} trained on the data set that make_private received later",
        "warm up on public data only, or in the private loop"),
    "comes between": FindingKind(
        "DPA025", "gradient changed after release", "updates", _V,
        "updates computed from the release alone",
        "another record changed {count} of {steps} updates although all releases were the same: "
        "a gradient changed between release and update",
        "change no gradient after pre_step(), and call the optimizer of make_private"),
    "decided": FindingKind(
        "DPA026", "choice by private values", "updates", _V,
        "choices based on releases or public records", _PINNED,
        "fix rates and epochs in advance, or choose by public records"),
    "outside": FindingKind(
        "DPA028", "other optimizer", "updates", _W,
        "private updates only", "updates {what}",
        "keep it if it uses only public data and private releases"),
    "beside": FindingKind(
        "DPA029", "network trained without noise", "records elsewhere", _W,
        _WITHOUT_NOISE,
        "{value}, trained on them by an optimizer that no engine wraps",
        "train it privately, or on public data: private steps learn from it without noise"),
    "common scale": FindingKind(
        "DPA030", "data scaled by own statistics", "records elsewhere", _W,
        "data scaled by constants, or by public values",
        "columns that {what}: the records were scaled or rotated by their own statistics",
        "scale by constants, or by values that have noise and are accounted"),
    "unwatched process": FindingKind(
        "DPA031", "unobserved process", "records elsewhere", _N,
        "all training in this process",
        "{count} processes ({process}): their steps were not observed",
        "train in the main process"),
    "moves others": FindingKind(
        "DPA032", "effect on other gradients", "records apart", _V,
        "a record is in one gradient of its batch",
        "{count} of {rows} gradients changed ({drawn} records sampled): {change}",
        "compute one row for each record: no weight, scale or length may depend on the batch or "
        "its size, and a network may not look up other records"),
    "goes on": FindingKind(
        "DPA033", "carried state", "state", _V,
        "steps that depend on earlier records only through releases",
        "{count} of {others} steps without the record changed with it, although all pinned "
        "releases were the same; step {first} was the first to have it",
        "keep nothing of a batch except its release, and look up no record by its index"),
    "let out": FindingKind(
        "DPA034", "value that bypasses noise", "release", _V,
        "only what was released", _PINNED,
        "leave it out, or add noise to it and account for it"),
    "gradients": FindingKind(
        "DPA035", "unreleased gradients", "release", _V,
        "no gradients except released ones",
        ".grad of {names}, which was not released",
        "return it after optimizer.zero_grad(), or only its state_dict()"),
    "others": FindingKind(
        "DPA036", "other gradients", "release", _W,
        "no gradient", ".grad of {names}, not from a private optimizer"),
    "tensors": FindingKind(
        "DPA037", "unexplained tensors", "release", _W,
        "private parameters, and values from before training",
        "{names}, which is neither",
        "leave it out, or name it in @audited(public=[...]) if noise hides its records"),
    "saved": FindingKind(
        "DPA038", "saved per-example gradients", "release", _V,
        "only parameters",
        "gradients of single records in a file, as grad_sample of {names}",
        "save its state_dict(), after optimizer.zero_grad()"),
    "records": FindingKind(
        "DPA039", "published records", "release", _V,
        "no record of the data", "{names}, whose rows are records",
        "leave it out"),
    "statistics": FindingKind(
        "DPA040", "published statistics", "release", _V,
        "no statistic of the records without noise",
        "{names}, which are means, deviations, extremes, quantiles, axes or centres of the records",
        "use constants, or add noise to it and account for it"),
    "earlier": FindingKind(
        "DPA041", "parameters of an earlier step", "release", _W,
        "parameters of the last step", "{names}",
        "if a loss on records chose this step, no noise hides the choice; choose by public "
        "records and name the tensor in @audited(public=[...]), or return the last step"),
    "examples": FindingKind(
        "DPA042", "per-example gradients in the model", "release", _N,
        "only parameters", "gradients of single records in grad_sample",
        "save its state_dict(): a pickled model has them"),
    "same seeds": FindingKind(
        "DPA043", "same seeds", "seeds", _V,
        _UNPREDICTABLE,
        "a generator with the seed {seed} in every run: anyone with the script knows its noise",
        "leave noise_generator out, or seed it from os.urandom"),
    "fixed seed": FindingKind(
        "DPA044", "fixed seed", "seeds", _W,
        _UNPREDICTABLE,
        "a constant seed in the script: anyone with the script can compute the noise",
        "train the published model without it; further runs of this audit use other seeds"),
    "promise": FindingKind(
        "DPA045", "stated ε too small", "promise", _V,
        "ε = {promised:g} or less at δ = {delta}, as stated",
        "{composed:.4g}, from all accounted steps by PLD",
        "train for fewer steps, or with more noise"),
    "draws lost": FindingKind(
        "DPA046", "skipped draws", "sampling", _W,
        "a step for every draw", "{count} draws that led to no step",
        "do not skip draws because of their records"),
    "records passed over": FindingKind(
        "DPA047", "skipped records", "sampling", _W,
        "all sampled records in their step",
        "{used} of {drawn}; too few at {count} steps in all",
        "do not skip records because of others in the batch (top-k)"),
    "more rows": FindingKind(
        "DPA048", "more gradients than records", "sampling", _W,
        "one gradient for each sampled record",
        "{used} for {drawn}; too many at {count} steps in all",
        "average the copies of a record before clipping: noise is for one clipped gradient"),
    "empty passed over": FindingKind(
        "DPA049", "skipped empty draws", "sampling", _V,
        "a step for every draw, empty ones too",
        "{count} empty draws without a step",
        "take the step: its noise hides that no record was sampled"),
    "too often": FindingKind(
        "DPA050", "record used too often", "sampling", _V,
        "no record in more than {counted} steps, as accounted",
        "one record in {most}"),
    "rate": FindingKind(
        "DPA051", "wrong sampling rate", "sampling", _V,
        "a rate of {rate:.4g}, as accounted",
        "{share:.4g}: {total} records in {draws} draws from {records}",
        "account for the loader's sampling rate"),
    "twice": FindingKind(
        "DPA052", "record drawn twice", "sampling", _V,
        "each record at most once in a batch",
        "{count} records that were drawn twice into one batch",
        "keep each record once in the data, and draw without replacement"),
    "no empty": FindingKind(
        "DPA053", "no empty draws", "sampling", _V,
        "about {expected:.0f} empty draws", "none in all",
        "keep empty batches: without them, a step shows that some record was sampled"),
    "dependent": FindingKind(
        "DPA054", "dependent draws", "sampling", _V,
        "each record sampled independently at a rate of {rate:.4g}",
        "some records drawn together, or more often than others"),
    "not Poisson": FindingKind(
        "DPA055", "not Poisson", "sampling", _V,
        _POISSON,
        "draws that are {how}; if all other gradients point the other way, neighbouring data "
        "exceed ε = {epsilon:.3g} with a δ of at least {reached}, where {delta} is claimed",
        _SAMPLE),
    "not proven": FindingKind(
        "DPA056", "not proven", "sampling", _W,
        _POISSON,
        "draws that are {how}: no accountant proves the claim for them", _SAMPLE),
    "sampler": FindingKind(
        "DPA057", "replaced sampler", "sampling", _N,
        "the loader's own sampler, {sampler}",
        "make_private replaced it with Poisson sampling with equal rates",
        "weight records in the loss by constants instead"),
    "secret size": FindingKind(
        "DPA058", "secret size", "secret size", _V,
        "nothing published depends on the number of records",
        "{changed}", "choose sample rate, expected batch size and steps as constants"),
    "guessed": FindingKind(
        "DPA059", "canaries guessed", "{check}", _V, "{claim}", "{observed}"),
    "failed": FindingKind(
        "DPA060", "failed runs", "every step a trial", _W,
        "runs that end", "{observed}",
        "correct the failing step: it counts as a wrong guess"),
    "micro-batches": FindingKind(
        "DPA061", "micro-batches", "clipping", _V,
        "a clipped gradient of one record",
        "{used} gradients of up to {records} records each, for {drawn} records at {count} steps: "
        "one record changes the direction of all of its micro-batch",
        "clip the gradient of each record, or account for 2 clipping bounds"),
    "copies": FindingKind(
        "DPA062", "duplicate records", "sampling", _W,
        "each record in the data once",
        "{count} records of the first batches that are equal to another record",
        "remove copies: each is drawn separately, so the record is drawn more often than "
        "accounted"),
    "large delta": FindingKind(
        "DPA063", "large delta", "accounting", _W,
        "a δ below 1 / {records}, for {records} records",
        "a δ at which publishing a random record would satisfy the claim, too",
        "state ε at a smaller δ"),
    "initial values": FindingKind(
        "DPA065", "initial values", "records elsewhere", _V,
        "networks initialised with constants or random numbers",
        "{names}, initialised with statistics of the records, which no noise hides",
        "initialise with constants, or add noise to the statistics and account for it"),
    "participation": FindingKind(
        "DPA066", "participation", "sampling", _V,
        "records that take part every {b} steps, as claimed",
        "record {record} in steps {first} and {second}",
        "order batches so that a record is only in every separation-th step, or claim less"),
    "preparation from several records": FindingKind(
        "DPA067", "preparation from several records", "preparation", _W,
        "each record prepared without regard to the others",
        "{changed} of {records} records changed when {rows} other rows were changed: a scale, "
        "filling, encoding, choice or mixture is computed from several rows, without noise",
        "compute it from public records, or add noise to it and account for it"),
    "settings from records": FindingKind(
        "DPA068", "settings from records", "preparation", _W,
        "settings that no record decides",
        "{names} changed when {rows} rows were changed, before training was private",
        "choose constants, or choose by public records"),
    "noise again": FindingKind(
        "DPA069", "noise of an earlier step", "pinned releases", _V,
        "fresh noise in each step",
        "noise that an earlier step had drawn, without the record of that step",
        "draw fresh noise for every step, or audit the matrix that correlates it"),
    "no ghost": FindingKind(
        "DPA070", "ghost clipping left out", "clipping", _V,
        "a backward pass of the criterion that make_private returns, which clips",
        "gradients of a backward pass that computed no record's length, and so clipped none",
        "compute the loss by the criterion that make_private returns"),
    "only target": FindingKind(
        "DPA071", "target exceeded, and no other ε stated", "accounting", _V,
        "ε = {target:.3g}, the target that the noise was chosen for and the only ε of the script",
        _SPENT,
        "choose the noise for these steps and this rate, or report the ε that was spent"),
    "states": FindingKind(
        "DPA072", "state of a random generator", "release", _W,
        _UNPREDICTABLE,
        "the state of a generator, saved with other values: {names}",
        "save it in a separate file, and keep that secret: all noise can be computed from it"),
}
# fmt: on


def parse_reasons(texts: list[str]) -> dict[str, str]:
    """Parses texts as DPA044=reason; returns reasons by code. Raises SpecError for other texts."""
    codes = {kind.code for kind in KINDS.values()}
    for text in texts:
        if not re.fullmatch(r"DPA\d{3}=.*\S.*", text):
            raise SpecError("--ignore", f"is {text!r}; write code and reason: DPA044='a test run'")
        if text[:6] not in codes:
            raise SpecError(
                "--ignore",
                f"is {text!r}, but no finding has that code; "
                "the verdict prints it with the finding",
            )
    return {text[:6]: text[7:] for text in texts}
