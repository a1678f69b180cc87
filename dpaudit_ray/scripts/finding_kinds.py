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
        check: name of the check that it belongs to.
        weight: consequence for the claim.
        expected: what a script without a violation shows.
        observed: what was observed instead.
        fix: what to do, as a command; may be "".
    """

    code: str
    check: str
    weight: Weight
    expected: str
    observed: str
    fix: str = ""


_V, _W, _N = Weight.VIOLATION, Weight.WARNING, Weight.NOTE
_POISSON = "each record sampled separately at a rate of {rate:.3g} (Poisson), as accounted"
_SAMPLE = "sample by poisson_sampling=True, or account without amplification"
_PUBLIC = "harmless on public data and private releases only"
_PINNED = "{names}, which another record changed although all releases were the same"
_WITHOUT_NOISE = "no training on these records without noise"
_UNPREDICTABLE = "noise that no one can compute again"

# fmt: off
KINDS: dict[str, FindingKind] = {
    "no noise": FindingKind(
        "DPA001", "noise", _V, "noise on every gradient",
        "the same gradient from any state of the generators: no noise, or always the same",
        "correct the code that adds the noise, or that seeds its generator"),
    "bare": FindingKind(
        "DPA002", "noise", _V, "noise on every gradient", "none on {bare}, which records change"),
    "short noise": FindingKind(
        "DPA003", "noise", _V, "a noise multiplier of {noise:.3g}, as accounted",
        "{effective:.3g} or less, by {change}",
        "noise is its multiplier times the largest change by one record: add up squared bounds"),
    "counted": FindingKind(
        "DPA004", "noise", _V, "a noise multiplier of {noise:.3g}, as accounted",
        "{effective:.3g} or less: {share} of it by the clipping bound, which a count changes",
        "the count needs noise too: Opacus gives a record half of its weight in the count, so make "
        "unclipped_num_std twice as large, or batches larger if it is a share of them"),
    "not finite": FindingKind(
        "DPA005", "noise", _W, "finite numbers",
        "a release with inf or NaN in it, at {count} of {steps} steps",
        "make training stable: whether it diverges may depend on a record"),
    "scale": FindingKind(
        "DPA006", "scale", _V, "a record without a gradient to change nothing",
        "all scaled with the batch, as by a noise multiplier of {effective:.3g}, not {noise:.3g}",
        "divide by the expected batch size, not by the size of the batch"),
    "unclipped": FindingKind(
        "DPA007", "clipping", _V, "no record to change the release by more than the clipping bound",
        "{change} changed it {ratio:.0f} times as far as a noise multiplier of {noise:.3g} allows",
        "clip each record's gradient, over all parameters, before they are added up"),
    "ghost": FindingKind(
        "DPA008", "clipping", _V, "no clipped gradient longer than {bound:.3g}",
        "{longest:.3g}, of {change}",
        "ghost clipping bounds the norms that it computes: compare them with the gradients"),
    "correlation": FindingKind(
        "DPA009", "correlation of {pairs}", _V, "independent noise",
        "noise of {what} with a correlation of {correlation:.2f}",
        "draw fresh noise for every parameter and every step, from one generator"),
    "law": FindingKind(
        "DPA010", "law of the noise", _V, "Gaussian noise",
        "another law ({distance:.3f} away from the normal one, of {numbers} numbers)"),
    "mixes": FindingKind(
        "DPA011", "records apart", _V, "outputs that do not depend on other records of the batch",
        "another record in the first place changed the others by {by:.2g} of their size",
        "replace batch normalisation, and all else that combines records of a batch"),
    "time first": FindingKind(
        "DPA012", "records apart", _V, "a record in each row of the first dimension",
        "records along the second, which is as long as the draw of records",
        "pass batches as (records, time), or make_private(batch_first=False)"),
    "buffers": FindingKind(
        "DPA013", "buffers", _V, "buffers that no record changes",
        "values computed from the batch, without noise",
        "freeze them, or use GroupNorm: they are published with the model"),
    "passes": FindingKind(
        "DPA015", "clipping", _V, "one clipped gradient for each record",
        "{passes} gradients a record, from {passes} backward passes, at {count} steps: one record "
        "changes the sum by up to {passes} clipping bounds",
        "add the losses up and call backward once, or average a record's gradients first"),
    "not accounted": FindingKind(
        "DPA016", "accounting", _V, "{taken} steps, which were taken", "{counted} in its history",
        "account every release: attach_step_hook replaces the engine's own hook"),
    "less reported": FindingKind(
        "DPA017", "accounting", _V,
        "ε = {composed:.4g} at δ = {delta}, from all accounted steps by PLD",
        "{epsilon:.4g}, reported to the script ({name}){engines}",
        "report the ε of all steps on the same records, by accountant=\"prv\""),
    "reported apart": FindingKind(
        "DPA018", "accounting", _W, "ε = {composed:.4g}, of all {engines} engines together",
        "{epsilon:.4g} at the end, of {count} of them",
        "report one ε for all, and state it by @audited(epsilon=...)"),
    "target": FindingKind(
        "DPA019", "accounting", _N, "ε = {target:.3g}, the target of make_private_with_epsilon",
        "{composed:.3g} spent: training took more steps than planned",
        "report the ε that was spent"),
    "reported early": FindingKind(
        "DPA020", "accounting", _N, "an ε at the end of training, at δ = {delta}",
        "{epsilon:.4g} at δ = {other}, after {steps} of {taken} steps",
        "report ε after the last step, at the δ that is claimed"),
    "carried sum": FindingKind(
        "DPA021", "accumulation", _V, "a release of one draw of records",
        "the gradients of an earlier draw in it: a record of both counts twice under one noise",
        "leave BatchMemoryManager only at the end of a batch"),
    "not private": FindingKind(
        "DPA022", "updates", _V, "every update to be a private release",
        "{names} updated by an optimizer that no PrivacyEngine wraps",
        "step the optimizer that make_private returned, and only that"),
    "no privacy": FindingKind(
        "DPA023", "updates", _V, "a private release in each step, as ε = {promised:.3g} is claimed",
        "{steps} steps of {optimizer}, none with noise that this audit knows",
        "call make_private; if your own code adds noise, decorate the function that returns the "
        "noisy gradient by @audited_release(records=[...], noise_multiplier=..., "
        "max_grad_norm=...)"),
    "warm-up": FindingKind(
        "DPA024", "updates", _V, _WITHOUT_NOISE,
        "{names} trained on the data set that make_private was given later",
        "warm up on public data only, or in the private loop"),
    "comes between": FindingKind(
        "DPA025", "updates", _V, "updates by what was released",
        "another record changed {count} of {steps} updates although all releases were the same: "
        "a gradient comes in between release and update",
        "change no gradient after pre_step(), and call the optimizer of make_private"),
    "decided": FindingKind(
        "DPA026", "updates", _V, "choices by releases, or by public records", _PINNED,
        "plan rates and epochs ahead, or choose by public records"),
    "outside": FindingKind(
        "DPA028", "updates", _W, "private updates only", "updates {what}", _PUBLIC),
    "beside": FindingKind(
        "DPA029", "records elsewhere", _W, _WITHOUT_NOISE,
        "{value}, trained on them by an optimizer that no engine wraps",
        "train it privately, or on public data: what private steps learn from it has no noise"),
    "common scale": FindingKind(
        "DPA030", "records elsewhere", _W, "data scaled by constants, or by public values",
        "columns that {what}: the records were scaled, or rotated, by themselves",
        "scale by constants, or by values that have noise and are accounted"),
    "unwatched process": FindingKind(
        "DPA031", "records elsewhere", _N, "all training in this process",
        "{count} processes ({process}): their steps were not observed",
        "train in the main process"),
    "moves others": FindingKind(
        "DPA032", "records apart", _V, "a record to be in one gradient of its batch",
        "{change} changed {count} of {rows} gradients, of {drawn} records",
        "compute one row for each record; no weight, scale or length may depend on the batch, or "
        "on its size, and a network may look up no other record"),
    "goes on": FindingKind(
        "DPA033", "state", _V, "steps that depend on earlier records by releases only",
        "{count} of {others} without the record released something else with another in its "
        "place, although releases were the same; step {first} had it first",
        "keep nothing of a batch for later except its release, and look no record up by its index"),
    "let out": FindingKind(
        "DPA034", "release", _V, "only what was released", _PINNED,
        "leave it out, or add noise to it and account for that"),
    "gradients": FindingKind(
        "DPA035", "release", _V, "no gradient except released ones",
        ".grad of {names}, which was not released",
        "return it after optimizer.zero_grad(), or only its state_dict()"),
    "others": FindingKind(
        "DPA036", "release", _W, "no gradient", ".grad of {names}, from no private optimizer"),
    "tensors": FindingKind(
        "DPA037", "release", _W, "private parameters, and values from before training",
        "{names}, which is neither",
        "leave it out, or name it in @audited(public=[...]) if noise hides its records"),
    "saved": FindingKind(
        "DPA038", "release", _V, "only parameters",
        "gradients of single records in a file, as grad_sample of {names}",
        "save its state_dict(), after optimizer.zero_grad()"),
    "records": FindingKind(
        "DPA039", "release", _V, "no record of the data", "{names}, whose rows are records",
        "leave it out"),
    "statistics": FindingKind(
        "DPA040", "release", _V, "no statistic of the records without noise",
        "{names}, which are means, deviations, extremes, quantiles, axes or centres of the records",
        "use constants, or add noise to it and account for that"),
    "earlier": FindingKind(
        "DPA041", "release", _W, "parameters of the last step", "{names}",
        "if a loss on records chose it, no noise hides that; choose by public records and name it "
        "in @audited(public=[...]), or return the last"),
    "examples": FindingKind(
        "DPA042", "release", _N, "only parameters", "gradients of single records in grad_sample",
        "save its state_dict(): a pickled model has them"),
    "same seeds": FindingKind(
        "DPA043", "seeds", _V, _UNPREDICTABLE,
        "a generator with the seed {seed} in every run: anyone with the script knows its noise",
        "leave noise_generator out, or seed it from os.urandom"),
    "fixed seed": FindingKind(
        "DPA044", "seeds", _W, _UNPREDICTABLE,
        "a constant seed in the script: anyone with the script can compute the noise",
        "train what is published without it; further runs of this audit have other seeds"),
    "promise": FindingKind(
        "DPA045", "promise", _V, "ε = {promised:g} or less at δ = {delta}, as stated",
        "{composed:.4g}, from all accounted steps by PLD",
        "train for fewer steps, or with more noise"),
    "draws lost": FindingKind(
        "DPA046", "sampling", _W, "a step for every draw", "{count} draws that led to no step",
        "skip no draw because of its records"),
    "records passed over": FindingKind(
        "DPA047", "sampling", _W, "all sampled records in their step",
        "{used} of {drawn}, and fewer at {count} steps in all",
        "skip no record of a batch because of the others: no top-k"),
    "more rows": FindingKind(
        "DPA048", "sampling", _W, "one gradient for each sampled record",
        "{used} for {drawn}, and more at {count} steps in all",
        "average the copies of a record before clipping: noise is for one clipped gradient"),
    "empty passed over": FindingKind(
        "DPA049", "sampling", _V, "a step for every draw, empty ones too",
        "{count} empty draws without a step",
        "take the step: its noise hides that no record was sampled"),
    "too often": FindingKind(
        "DPA050", "sampling", _V, "no record in more than {counted} steps, which were accounted",
        "one that was in {most}"),
    "rate": FindingKind(
        "DPA051", "sampling", _V, "a rate of {rate:.4g}, as accounted",
        "{share:.4g}: {total} records in {draws} draws of {records}",
        "account the rate that the loader samples at"),
    "twice": FindingKind(
        "DPA052", "sampling", _V, "a record once in a batch",
        "{count} records that were drawn twice into one batch",
        "let the data have each record once, and draw without replacement"),
    "no empty": FindingKind(
        "DPA053", "sampling", _V, "about {expected:.0f} empty draws", "none in all",
        "keep empty batches: without them, a step shows that some record was sampled"),
    "dependent": FindingKind(
        "DPA054", "sampling", _V, "each record drawn by itself at a rate of {rate:.4g}",
        "records that are drawn together, or some more often than others"),
    "not Poisson": FindingKind(
        "DPA055", "sampling", _V, _POISSON,
        "draws that are {how}; neighbouring data whose other gradients all point away exceed "
        "ε = {epsilon:.3g} with δ = {reached} at least, where {delta} is claimed",
        _SAMPLE),
    "not proven": FindingKind(
        "DPA056", "sampling", _W, _POISSON,
        "draws that are {how}: no accountant proves the claim for them", _SAMPLE),
    "sampler": FindingKind(
        "DPA057", "sampling", _N, "the loader's own sampler, {sampler}",
        "make_private replaced it by Poisson sampling with equal rates",
        "weight records in the loss by constants instead"),
    "secret size": FindingKind(
        "DPA058", "secret size", _V, "nothing published to depend on the number of records",
        "{changed}", "choose sample rate, expected batch size and steps as constants"),
    "guessed": FindingKind("DPA059", "{check}", _V, "{claim}", "{observed}"),
    "failed": FindingKind(
        "DPA060", "every step a trial", _W, "runs that end", "{observed}",
        "correct the failing step: it counts as a wrong guess"),
    "micro-batches": FindingKind(
        "DPA061", "clipping", _V, "a clipped gradient of one record",
        "{used} gradients of up to {records} records each, for {drawn} records at {count} steps: "
        "one record changes the direction of all of its micro-batch",
        "clip the gradient of each record, or account for 2 clipping bounds"),
    "copies": FindingKind(
        "DPA062", "sampling", _W, "each record in the data once",
        "{count} records of the first batches with the same numbers as another one",
        "leave copies out: each is drawn by itself, and so its record more often than accounted"),
    "large delta": FindingKind(
        "DPA063", "accounting", _W, "less than 1 in {records}, the number of records",
        "that much or more, which publishing one of them at random keeps, too",
        "ask for ε at a smaller δ"),
    "initial values": FindingKind(
        "DPA065", "records elsewhere", _V, "networks that begin with constants or random numbers",
        "{names}, which began as statistics of the records: no noise hides these",
        "begin with constants, or add noise to the statistics and account for that"),
    "participation": FindingKind(
        "DPA066", "sampling", _V, "records that take part every {b} steps, as claimed",
        "record {record} in steps {first} and {second}",
        "order batches so that a record is only in each separation-th step, or claim less"),
    "prepared by others": FindingKind(
        "DPA067", "preparation", _W, "each record prepared without regard to the others",
        "{changed} of {records} records that changed when {rows} rows were: a scale, filling, "
        "encoding, choice or mixture is computed from several rows, and no noise is for that",
        "compute it from public records, or add noise to it and account for that"),
    "set by records": FindingKind(
        "DPA068", "preparation", _W, "settings that no record decides",
        "{names} that changed when {rows} rows were, before training was private",
        "choose constants, or choose by public records"),
}
# fmt: on


def parse_reasons(texts: list[str]) -> dict[str, str]:
    """Returns reasons by code of `DPA044=reason` texts. Raises SpecError for anything else."""
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
