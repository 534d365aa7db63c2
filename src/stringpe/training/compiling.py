"""torch.compile for models whose layers are alike: each layer once, and what surrounds them."""

import sys
import warnings

from torch import nn

from ..models.blocks import Layers

_MOST_FORMS = 256  # of one layer, compiled in the same process


def compile_model(model: nn.Module, *, quiet: bool = True) -> None:
    """Compile the layers that a model repeats, and what surrounds them: equal layers share their code, whereas
    compiling the whole model would compile each of them.

    Of a model whose layers stand in lists of torch's own, such as a tower of transformers, only the layers are
    compiled. A list of single operations, such as the products of an MLP, is not one of layers. A model without
    repeated layers is compiled as a whole."""
    import torch._dynamo

    # Rows of a comparison that share a process compile the same code, each for its own encoding. Beyond a limit of 8,
    # torch would go on without compiling, for all of them.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MOST_FORMS)
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    stacks = [stack for stack in lists if any(any(layer.children()) for layer in stack)]
    if not quiet:
        layers = sum(len(stack) for stack in stacks)
        what = f"{layers} layers" if layers else "the model"
        hint = "the first step takes longer; loop.compile=false turns this off"
        print(f"compiling {what} with torch.compile: {hint}", file=sys.stderr, flush=True)
    # For each size of inputs anew. Two towers share the code of their layers; after the second, torch would by default
    # compile it for sizes that vary, head dimensions among them.
    for stack in stacks:
        if isinstance(stack, Layers):
            stack.compile_each(dynamic=False)
        else:
            for layer in stack:
                layer.compile(dynamic=False)
    if all(isinstance(stack, Layers) for stack in stacks):
        # Products of parameters alone, such as Pᵀ W, are in float32 on purpose (`stringpe.folding`).
        warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores for float32 matrix multiplication")
        model.compile(dynamic=False)
