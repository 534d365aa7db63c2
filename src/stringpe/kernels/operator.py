"""A kernel as a PyTorch operator, and the layout of its results."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, library, nn


class Operator:
    """The operator stringpe::name, which torch.compile and torch.export take whole.

    In eager mode, on plain tensors, a call launches the kernel without torch's dispatcher and without the autograd that
    torch makes for registered operators: for small tensors these take longer than the kernel.

    schema: "name(arguments) -> results". launch: computes the results. fake: their shapes, dtypes and strides.
    backward: from (ctx, gradients) to one gradient per argument, given what `save(ctx, inputs, output)` keeps.
    """

    def __init__(
        self,
        schema: str,
        launch: Callable[..., Any],
        fake: Callable[..., Any],
        backward: Callable[..., Any],
        save: Callable[[Any, tuple[Any, ...], Any], None] | None = None,
    ):
        name, _, arguments = schema.partition("(")
        library.define(f"stringpe::{name}", f"({arguments}", tags=(torch.Tag.pt2_compliant_tag,))
        library.impl(f"stringpe::{name}", "default", launch)
        library.register_fake(f"stringpe::{name}", fake)
        library.register_autograd(f"stringpe::{name}", backward, setup_context=save)
        self.op = getattr(torch.ops.stringpe, name).default
        self.launch = launch
        self.function = None if save is None else _as_function(name, launch, save, backward)

    def __call__(self, *arguments: Any) -> Any:
        if not _is_eager(arguments):
            return self.op(*arguments)
        if self.function is None or not torch.is_grad_enabled():
            return self.launch(*arguments)
        return self.function.apply(*arguments)


def _as_function(name: str, launch: Callable[..., Any], save: Callable[..., None], backward: Callable[..., Any]) -> Any:
    """The same as an autograd.Function. Without a `setup_context` of its own: torch would look up the signature of
    `forward` in every call."""

    def forward(ctx: Any, *arguments: Any) -> Any:
        results = launch(*arguments)
        save(ctx, arguments, results)
        return results

    return type(
        name, (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    )


_PLAIN = (Tensor, nn.Parameter, int, bool, float, type(None))


def _is_eager(arguments: Sequence[Any]) -> bool:
    """Whether nothing compiles, traces or watches operators, and all tensors are plain ones."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state():
        return False
    return all(type(a) in _PLAIN for a in arguments)


def dense_like(x: Tensor) -> Tensor:
    """A new tensor of the shape (b, h, n, d) of x, dense in memory as (b, n, h, d) where the heads of a token lie side
    by side in x, as a projection returns them, and as (b, h, n, d) otherwise. The layout of every result, real and
    fake."""
    b, h, n, d = x.shape
    if x.stride(1) < x.stride(2):
        return x.new_empty(b, n, h, d).transpose(1, 2)
    return x.new_empty(b, h, n, d)
