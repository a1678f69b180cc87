"""Attention of torch's own layer, with a rule for each of its projections."""

import math
from collections.abc import Mapping

from torch import Tensor, nn

from ..rules.base import Slot
from ..rules.linear import LinearRule
from .passes import Layer, Passes

_PROJECTIONS = 3  # queries, keys and values, in this order in one parameter


class Attention(nn.Module):
    """An `nn.MultiheadAttention` whose inputs have one width, without further keys and values."""

    def __init__(
        self,
        source: nn.MultiheadAttention,
        slots: Mapping[str, Slot],
        passes: Passes,
    ) -> None:
        """Makes a layer with a rule for each projection.

        Args:
            source: the user's layer, whose settings are taken.
            slots: place of each of the layer's parameters in a model's flat parameters, by name.
            passes: the passes in which the layers are applied.
        """
        super().__init__()
        self.heads = source.num_heads
        self.batch_first = source.batch_first
        # Torch has the weights of three projections in one parameter; each gets its own slot.
        weights = _parts(slots["in_proj_weight"])
        biases = _parts(slots["in_proj_bias"]) if "in_proj_bias" in slots else ()
        projections = []
        for i, weight in enumerate(weights):
            part_slots = {"weight": weight}
            if biases:
                part_slots["bias"] = biases[i]
            projections.append(Layer(LinearRule(source, part_slots), passes))
        self.query, self.key, self.value = projections
        prefix = "out_proj."
        out_slots = {name.removeprefix(prefix): s for name, s in slots.items() if prefix in name}
        self.out = Layer(LinearRule(source, out_slots), passes)

    @staticmethod
    def takes(source: nn.Module) -> bool:
        """Returns whether a layer is attention that this class computes."""
        return (
            type(source) is nn.MultiheadAttention
            and source._qkv_same_embed_dim
            and source.bias_k is None
            and not source.add_zero_attn
            and all(p.requires_grad for p in source.parameters())
        )

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        **options: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Returns outputs [N, L, d], or [L, N, d], and weights if they are needed.

        Arguments are those of `nn.MultiheadAttention`. The option `is_causal` needs no attention:
        it is a hint about `attn_mask`.
        """
        if not self.batch_first:  # inputs [L, N, d]
            query, key, value = (part.transpose(0, 1) for part in (query, key, value))
        queries = self._by_head(self.query(query))
        # [N, heads, length of the queries, length of the keys]
        scores = queries @ self._by_head(self.key(key)).mT / math.sqrt(queries.shape[3])
        if attn_mask is not None:
            if attn_mask.dim() > 2:  # one mask for each head of each example
                attn_mask = attn_mask.view(-1, self.heads, *attn_mask.shape[1:])
            scores = _masked(scores, attn_mask)
        if key_padding_mask is not None:
            # A mask [N, length of the keys] is the same for all heads and queries.
            scores = _masked(scores, key_padding_mask[:, None, None])
        weights = scores.softmax(3)
        values = weights @ self._by_head(self.value(value))
        outputs: Tensor = self.out(values.transpose(1, 2).flatten(2))
        if not self.batch_first:
            outputs = outputs.transpose(0, 1)
        if options.get("average_attn_weights", True):
            weights = weights.mean(1)
        return outputs, weights if need_weights else None

    def _by_head(self, x: Tensor) -> Tensor:
        """Returns [N, L, d] as [N, heads, L, d / heads]."""
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


def _parts(slot: Slot) -> list[Slot]:
    """Returns a slot for each projection: a third of the rows of one parameter [3 * d, ...]."""
    rows, *columns = slot.shape
    shape = (rows // _PROJECTIONS, *columns)
    size = math.prod(shape)
    return [Slot(slot.start + i * size, shape) for i in range(_PROJECTIONS)]


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    """Returns masked scores: -∞ where a boolean mask is true, or the sum if it has numbers."""
    if mask.is_floating_point():
        return scores + mask
    return scores.masked_fill(mask, -math.inf)
