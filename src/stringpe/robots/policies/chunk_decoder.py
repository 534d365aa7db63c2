"""The transformer that produces actions: tokens of a chunk attend to each other and to the observed tokens."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...attention import Attention
from ...baselines import SinCos
from ...catalogue import create
from ...models.blocks import Layers
from ...models.initialise import draw_by_fan_in, initialise, set_to_zero
from ...softmax_attention import softmax_attention

Memory = list[tuple[Tensor, Tensor]]
"""Keys and values (b, h, n, d) of the observed tokens, for every layer: computed once, used in every step."""


class CrossAttention(nn.Module):
    """Softmax attention to tokens whose keys and values were computed before."""

    def __init__(self, dim: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.query, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)

    def memory(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (b, h, n, d) of context (b, n, dim)."""
        key, value = self.key_value(context).unflatten(-1, (2 * self.num_heads, -1)).transpose(1, 2).chunk(2, dim=1)
        return key, value

    def forward(self, x: Tensor, memory: tuple[Tensor, Tensor]) -> Tensor:
        query = self.query(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        heads = softmax_attention(query, *memory, scale=query.shape[-1] ** -0.5)
        return self.out(heads.transpose(1, 2).flatten(2))


class ChunkBlock(nn.Module):
    """Attention within the chunk, attention to the observed tokens, MLP; each branch is shifted, scaled and gated by
    the condition (adaLN-zero, as in DiT), so that the block starts as the identity."""

    def __init__(self, dim: int, num_heads: int, mlp_ratio: float):
        super().__init__()
        time = create("rope", head_dim=dim // num_heads, num_heads=num_heads, coord_dim=1)
        self.within, self.across = Attention(dim, num_heads, time), CrossAttention(dim, num_heads)
        hidden = int(mlp_ratio * dim)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))
        self.norms = nn.ModuleList(nn.LayerNorm(dim, eps=1e-6, elementwise_affine=False) for _ in range(3))
        self.modulate = nn.Linear(dim, 9 * dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The modulation starts at zero, so that the block is the identity."""
        set_to_zero(self.modulate)

    def forward(self, x: Tensor, condition: Tensor, times: Tensor, memory: tuple[Tensor, Tensor]) -> Tensor:
        parts = self.modulate(F.silu(condition))[:, None].chunk(9, dim=-1)
        for i, norm in enumerate(self.norms):
            shift, scale, gate = parts[3 * i : 3 * i + 3]
            y = norm(x) * (1 + scale) + shift
            y = self.within(y, times) if i == 0 else self.across(y, memory) if i == 1 else self.mlp(y)
            x = x + gate * y
        return x


class ChunkDecoder(nn.Module):
    """Tokens of a chunk (b, steps, inputs) to (b, steps, outputs), given the memory of the observed tokens and a
    condition (b, dim), or (1, dim) for all rows. A step's position in the chunk enters twice: as sines and cosines that
    are added, and as the coordinate of a rotary encoding."""

    def __init__(self, inputs: int, outputs: int, *, dim: int, layers: int, num_heads: int, mlp_ratio: float = 4.0):
        super().__init__()
        self.enter = nn.Linear(inputs, dim)
        self.place = SinCos(dim, coord_dim=1)
        self.blocks = Layers(ChunkBlock(dim, num_heads, mlp_ratio) for _ in range(layers))
        self.norm, self.leave = nn.LayerNorm(dim, eps=1e-6), nn.Linear(dim, outputs)
        initialise(self)

    def reset_parameters(self) -> None:
        """Actions enter as large as the sines of their position, and the outputs start at zero."""
        draw_by_fan_in(self.enter)
        set_to_zero(self.leave)

    def memory(self, context: Tensor) -> Memory:
        """Keys and values of the observed tokens (b, n, dim)."""
        return [block.across.memory(context) for block in self.blocks if isinstance(block, ChunkBlock)]

    def forward(self, x: Tensor, condition: Tensor, memory: Memory) -> Tensor:
        times = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)[:, None]
        h = self.enter(x)
        h = h + self.place(times).to(h.dtype)
        h = self.blocks(h, [{"condition": condition, "times": times, "memory": part} for part in memory])
        return self.leave(self.norm(h))


def repeat_memory(memory: Memory, times: int) -> Memory:
    """The memory for `times` chunks per observation, (b, …) to (b · times, …)."""
    return [(k.repeat_interleave(times, 0), v.repeat_interleave(times, 0)) for k, v in memory]
