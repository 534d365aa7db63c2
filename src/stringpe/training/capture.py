"""Steps that do not wait for Python: the whole step as one CUDA graph, batches made one step ahead.

A small model's kernels take less time than Python needs to launch them. A captured step is launched as a whole. It
reads its batch and its learning rates from tensors that stay in place, and adds the loss to one that stays; everything
else in it must depend on nothing but these, the weights and torch's own generator. `Task.capturable` says whether that
holds for a task's loss.
"""

import warnings
from collections.abc import Callable, Iterator
from functools import partial

import torch

from ..data.order import Batch

Step = Callable[[Batch], None]
Graph = Callable[[Callable[[], None]], Callable[[], None]]
Form = dict[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape and type of every tensor of a batch, by name."""

_WARM_UP = 3  # steps that run as they are written before one is captured


class CapturedStep:
    """A step that is captured after a few calls and replayed from then on.

    The first calls, which torch wants on a stream of their own, are steps like all others, so that no step is taken
    twice. A step that waits for the device, or that cannot be captured, goes on uncaptured, with one warning."""

    def __init__(self, step: Step, device: torch.device, graph: Graph | None = None):
        """graph: captures a function and returns its replay; a CUDA graph by default."""
        self.step, self.device = step, device
        # One stream for the first steps and the capture: autograd accumulates a gradient on the stream where it first
        # met the parameter, and a graph should have no other stream in it.
        self.side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.graph = graph or partial(cuda_graph, stream=self.side)
        self.calls = 0
        self.batch: Batch = {}
        self.form: Form = {}
        self.replay: Callable[[], None] | None = None

    def __call__(self, batch: Batch) -> None:
        """One step on `batch`. A batch with other names, shapes or types than the first has ends the capturing: what
        was captured would read it broadcast, converted or in part."""
        if self.calls >= 0 and self.batch and (form := _read_form(batch)) != self.form:
            self.calls = -1
            warnings.warn(
                f"from now on steps are not replayed from a graph but run one by one, because this batch has another "
                f"form than the first: {form} and not {self.form}", RuntimeWarning, 2,
            )  # fmt: skip
        if self.calls < 0:
            self.step(batch)
            return
        # The first steps, too, read the tensors that stay: layers are then compiled for these, before the capture.
        if not self.batch:
            self.batch = {name: torch.empty_like(tensor) for name, tensor in batch.items()}
            self.form = _read_form(batch)
        for name, tensor in batch.items():
            self.batch[name].copy_(tensor)
        self.calls += 1
        if self.calls <= _WARM_UP:
            self._warm()
            return
        if self.replay is None:
            try:
                self.replay = self.graph(lambda: self.step(self.batch))
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self.calls = -1
                reason = str(error).strip().partition("\n")[0]
                warnings.warn(f"the step is not captured as a graph and runs uncaptured: {reason}", RuntimeWarning, 2)
                self.step(batch)
                return
        self.replay()

    def _warm(self) -> None:
        if self.side is None:
            self.step(self.batch)
            return
        side, current = self.side, torch.cuda.current_stream(self.device)
        side.wait_stream(current)
        waits = False
        with torch.cuda.stream(side):
            # The first steps may wait: libraries are loaded and code is compiled in them. The last one must not.
            if self.calls == _WARM_UP:
                waits = _runs_and_waits(lambda: self.step(self.batch))
            else:
                self.step(self.batch)
        current.wait_stream(side)
        if waits:
            self.calls = -1
            warnings.warn("the step waits for the device, so it is not captured", RuntimeWarning, 3)


def _read_form(batch: Batch) -> Form:
    """The form of a batch."""
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in batch.items()}


def _runs_and_waits(run: Callable[[], None]) -> bool:
    """Run it, and return whether the host waited for the GPU meanwhile."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    # Not "synchronizing" alone: torch's first warning of a process says that this mode does not find everything.
    return any("called a synchronizing" in str(warning.message) for warning in caught)


def cuda_graph(run: Callable[[], None], stream: torch.cuda.Stream | None = None) -> Callable[[], None]:
    """Capture what `run` launches, without running it; call the result to run it. stream: the one to capture on."""
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    # By default, a capture fails if another thread allocates meanwhile, as the one does that pins the loader's batches.
    with torch.cuda.graph(captured, stream=stream, capture_error_mode="thread_local"):
        run()
    return captured.replay


def prefetch(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """The same batches. On a GPU each of them is made on another stream while the step before it runs, so that copies
    and augmentation overlap with training."""
    if device.type != "cuda":
        yield from batches
        return
    side, current = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    side.wait_stream(current)
    following = _next_on(side, batches)
    while True:
        batch, following = following, _next_on(side, batches, after=(current, following))
        yield batch


def _next_on(
    side: torch.cuda.Stream, batches: Iterator[Batch], after: tuple[torch.cuda.Stream, Batch] | None = None
) -> Batch:
    """The next batch, made on the stream `side`. after: a stream that first waits until its batch is made."""
    if after is not None:
        current, ready = after
        current.wait_stream(side)
        for tensor in ready.values():
            tensor.record_stream(current)  # its memory is used again only after the step that reads it
    with torch.cuda.stream(side):
        return next(batches)
