"""Steps without their host: layers compiled, the whole step captured as a CUDA graph, batches fetched one ahead.

A small model's kernels take less time than Python needs to launch them. A captured step is launched as one. It reads
its batch from tensors that stay where they are, and its learning rates from tensors too; everything else in it must be
a function of these, of the weights and of torch's own generator. A task says of its loss whether that holds
(`Task.capturable`).
"""

import sys
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import nn

from ..data.order import Batch

Step = Callable[[Batch], None]
Graph = Callable[[Callable[[], None]], Callable[[], None]]

_ROWS = 256  # compiled forms of one layer
_WARM = 3  # steps that run as they are written before one is captured


def compile_layers(model: nn.Module, *, quiet: bool = True) -> None:
    """Compile the layers that a model repeats: equal ones share their code, where compiling the whole model would go
    through each of them. A model without any is compiled whole."""
    import torch._dynamo

    # Rows of a comparison that share a process compile the same code, each for its own encoding. Beyond a limit of 8,
    # torch would go on without compiling, for all of them.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _ROWS)
    layers = [layer for each in model.modules() if isinstance(each, nn.ModuleList) for layer in each]
    if not quiet:
        what = f"{len(layers)} layers" if layers else "the model"
        hint = "the first step takes longer; loop.compile=false turns this off"
        print(f"compiling {what} with torch.compile: {hint}", file=sys.stderr, flush=True)
    for layer in layers or [model]:
        layer.compile()


class CapturedStep:
    """A step that is captured after a few calls and replayed from then on.

    The first calls, on a stream of their own as torch asks for, are steps like all others: nothing is trained twice. A
    step that waits for the device, or that cannot be captured, goes on as it is written, with one warning."""

    def __init__(self, step: Step, device: torch.device, graph: Graph | None = None):
        """graph: what turns a function into its replay; a CUDA graph by default."""
        self.step, self.device = step, device
        self.graph = graph or cuda_graph
        self.calls = 0
        self.batch: Batch = {}
        self.replay: Callable[[], None] | None = None

    def __call__(self, batch: Batch) -> None:
        """One step on `batch`; all batches have the shapes of the first."""
        if self.calls < 0:
            self.step(batch)
            return
        self.calls += 1
        if self.calls <= _WARM:
            self._warm(batch)
            return
        if self.replay is None:
            self.batch = {name: tensor.clone() for name, tensor in batch.items()}
            try:
                self.replay = self.graph(lambda: self.step(self.batch))
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self.calls = -1
                said = str(error).strip().partition("\n")[0]
                warnings.warn(f"the step is not captured and runs as it is written: {said}", RuntimeWarning, 2)
                self.step(batch)
                return
        for name, tensor in batch.items():
            self.batch[name].copy_(tensor)
        self.replay()

    def _warm(self, batch: Batch) -> None:
        if self.device.type != "cuda":
            self.step(batch)
            return
        side, current = torch.cuda.Stream(self.device), torch.cuda.current_stream(self.device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            # The first steps may wait: libraries are loaded and code is compiled in them. The last one must not.
            waits = _runs_and_waits(lambda: self.step(batch)) if self.calls == _WARM else self.step(batch)
        current.wait_stream(side)
        if waits:
            self.calls = -1
            warnings.warn("the step waits for the device, so it is not captured", RuntimeWarning, 3)


def _runs_and_waits(run: Callable[[], None]) -> bool:
    """Run it, and tell whether the host waited for the GPU in it."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return any("synchronizing" in str(warning.message) for warning in caught)


def cuda_graph(run: Callable[[], None]) -> Callable[[], None]:
    """Capture what `run` launches, without running it; call the result to run it."""
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        run()
    return captured.replay


def prefetch(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """The same batches. On a GPU each is made on a stream of its own while the step before it runs, so that copies and
    augmentation overlap with training."""
    if device.type != "cuda":
        yield from batches
        return
    side, current = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    side.wait_stream(current)
    following = _on(side, batches)
    while True:
        batch, following = following, _on(side, batches, after=(current, following))
        yield batch


def _on(
    side: torch.cuda.Stream, batches: Iterator[Batch], after: tuple[torch.cuda.Stream, Batch] | None = None
) -> Batch:
    """The next batch, made on the stream `side`; before that, the stream that is given waits for the batch given."""
    if after is not None:
        current, ready = after
        current.wait_stream(side)
        for tensor in ready.values():
            tensor.record_stream(current)  # its memory is used again only after the step that reads it
    with torch.cuda.stream(side):
        return next(batches)
