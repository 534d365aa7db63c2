"""The one training loop: a task's batches through its model, on whatever Accelerate finds: a CPU, GPUs, machines."""

import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)

from ..data.fingerprints import check_files, digest_files
from ..data.order import Batch, Place
from ..io import checkpoint as checkpoints
from ..io.checkpoint import Checkpoint
from ..recipes.overrides import differences
from ..recipes.schema import Recipe
from ..seeds import derive
from ..tasks.base import Task
from .capture import CapturedStep, Step, prefetch
from .compiling import compile_model
from .costs import Clock
from .log import Log, start_tracker
from .state import Ema, restore_generators, save_generators

_STOP_CHECK_EVERY = 10  # steps between asking the other processes whether one of them was told to stop


class Run:
    """One training run in the folder `out`: call `train` once. It continues from the newest checkpoint there."""

    def __init__(self, recipe: Recipe, task: Task, out: Path, accelerator: Accelerator, *, quiet: bool = False):
        self.recipe, self.task, self.out, self.accelerator, self.quiet = recipe, task, out, accelerator, quiet
        self.place = Place(accelerator.process_index, accelerator.num_processes, accelerator.device)
        self.total = recipe.total_steps(task.examples)
        self.files = digest_files(recipe.data)
        share = self.place.share(recipe.loop.batch_size)
        if share % recipe.loop.accumulate:
            raise ValueError(
                f"{share} examples per process do not divide into loop.accumulate={recipe.loop.accumulate} parts: "
                f"change it or loop.batch_size"
            )
        torch.manual_seed(derive(recipe.seed, "model"))  # the same model in every process
        model = task.model().to(accelerator.device)
        for parameter in model.parameters():
            if parameter.numel() == 0:  # nothing to learn, and sharding refuses empty gradients
                parameter.requires_grad_(False)
        self.parameters = sum(p.numel() for p in model.parameters()) // recipe.loop.seeds
        if recipe.loop.compile:
            compile_model(model, quiet=quiet)
        self.model: nn.Module
        captures = (
            recipe.loop.compile and self.place.world == 1 and self.place.device.type == "cuda" and task.capturable
        )
        self.model, self.optimizer = accelerator.prepare(
            model, _optimizer(model, task, accelerator.device, capturable=captures)
        )
        self.rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.ema = Ema(self.bare, recipe.optim.ema, recipe.optim.ema_power) if recipe.optim.ema else None
        self.clock = Clock()
        self.window = torch.zeros(2, device=accelerator.device)  # sum and number of losses since the last log
        self.descend: Step = CapturedStep(self._descend, self.place.device) if captures else self._descend
        torch.manual_seed(derive(recipe.seed, "train", self.place.rank))  # dropout differs between processes

    @property
    def bare(self) -> nn.Module:
        """The model without Accelerate's wrappers."""
        return self.accelerator.unwrap_model(self.model, keep_torch_compile=True)

    def train(self) -> dict[str, Any]:
        """Train to the end and evaluate. Raises Stopped after SIGTERM, with everything saved."""
        began = time.monotonic()
        start, log_bytes = self._resume()
        title = f"{self.recipe.name} {self.recipe.model.encoding} seed {self.recipe.seed}"
        with catch_sigterm() as told_to_stop, self._open_log(title, start, log_bytes) as log:
            first = "the first step, with compilation," if self.recipe.loop.compile else "the first step"
            self._show_stage(log, first)
            batches = prefetch(self.task.batches(start, self.place), self.place.device)
            for step in range(start, self.total):
                self.step(step, next(batches))
                if log is not None:
                    log.count(step + 1)
                self._log_and_evaluate(step + 1, log)
                stop = self._any_told_to_stop(step, told_to_stop())
                if stop or (step + 1) % self.recipe.loop.save_every == 0 or step + 1 == self.total:
                    self._save(step + 1, log)
                if stop:
                    raise Stopped(f"stopped by SIGTERM after step {step + 1}, which is saved: run it again to go on")
            metrics = self._evaluate_and_log(self.total, log)
        return {
            "step": self.total,
            "metrics": metrics,
            "counters": self.task.counters(),
            "parameters": self.parameters,
            "step_ms": self.clock.milliseconds(),
            "seconds": time.monotonic() - began,
        }

    def evaluate(self) -> dict[str, float]:
        """Metrics of the validation set, and its "count"; of the averaged weights if an average is kept."""
        self.model.eval()
        # A compiled model is evaluated as it was written: compiling it once more takes longer than that saves.
        as_written = torch.compiler.set_stance("force_eager") if self.recipe.loop.compile else nullcontext()
        with torch.no_grad(), as_written, self.ema.swap() if self.ema else nullcontext():
            metrics = self.task.evaluate(self.model, self.place)
        self.model.train()
        return metrics

    def step(self, step: int, batch: Batch) -> None:
        """One optimisation step on this process's share. Nothing in it waits for the device."""
        optim = self.recipe.optim
        factor = SCHEDULES[optim.schedule](step, self.total, optim.warmup_steps)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate * factor)
            else:
                group["lr"] = rate * factor
        self.descend(batch)
        if self.ema:
            self.ema.update(step)
        self.clock.tick()

    def _descend(self, batch: Batch) -> None:
        """Gradients of the batch, clipped, and one step of the optimiser: what can be captured."""
        try:
            self._add_gradients(batch)
            if self.recipe.optim.clip:
                self._clip(self.recipe.optim.clip)
            self.optimizer.step()
        finally:  # gradients that a failed capture leaves were never computed, and the next step would add to them
            self.optimizer.zero_grad()

    def _add_gradients(self, batch: Batch) -> None:
        """Gradients of the batch's mean loss, part after part, and that loss in the window."""
        parts = self.recipe.loop.accumulate
        pieces = [dict(zip(batch, p, strict=True)) for p in zip(*(t.chunk(parts) for t in batch.values()), strict=True)]
        for i, piece in enumerate(pieces):
            last = i == parts - 1
            with nullcontext() if last else self.accelerator.no_sync(self.model):
                loss = self.task.loss(self.model, piece) / parts
                self.accelerator.backward(loss)
            self.window[0] += loss.detach()
        self.window[1] += 1

    def _clip(self, limit: float) -> None:
        """Bring the norm of the gradient down to the limit: that of each seed, where several train in one step."""
        if self.recipe.loop.seeds == 1:
            self.accelerator.clip_grad_norm_(self.model.parameters(), limit)
            return
        for gradients in self.task.gradients_by_seed(self.bare):
            norm = nn.utils.get_total_norm(gradients)
            torch._foreach_mul_(gradients, (limit / (norm + 1e-6)).clamp(max=1.0))  # as torch clips

    def _log_and_evaluate(self, done: int, log: Log | None) -> None:
        """Log the loss, and evaluate, where it is time after `done` steps."""
        loop = self.recipe.loop
        if done % loop.log_every == 0 or done == self.total:
            loss, count = self.accelerator.reduce(self.window, "mean").tolist()
            self.clock.mark()
            if not math.isfinite(loss):
                raise Diverged(f"the loss is {loss} before step {done}: lower optim.lr or raise optim.warmup_steps")
            rate = float(self.optimizer.param_groups[0]["lr"])
            mean = loss / count / loop.seeds
            self._write(log, done, {"loss": mean, "lr": rate, **self.task.counters()})
            self.window.zero_()
        if loop.eval_every and done % loop.eval_every == 0 and done < self.total:
            self._evaluate_and_log(done, log)
            self.clock.resume()

    def _evaluate_and_log(self, step: int, log: Log | None) -> dict[str, float]:
        self._show_stage(log, "evaluating")
        metrics = self.evaluate()
        self._write(log, step, {f"val/{k}": v for k, v in metrics.items()})
        return metrics

    def _write(self, log: Log | None, step: int, values: dict[str, float]) -> None:
        if log is not None:
            log.write(step, values)
            log.show(step, values)

    def _show_stage(self, log: Log | None, text: str) -> None:
        if log is not None:
            log.stage(text)

    @contextmanager
    def _open_log(self, title: str, start: int, log_bytes: int) -> Iterator[Log | None]:
        """The log, in the main process; None in the others."""
        if not self.accelerator.is_main_process:
            yield None
            return
        tracker = start_tracker(self.recipe, self.out, title, start)
        with Log(
            self.out, title, self.total, quiet=self.quiet, start=start, position=log_bytes, tracker=tracker
        ) as log:
            yield log

    def _any_told_to_stop(self, step: int, told: bool) -> bool:
        """Whether any process was told to stop; all give the same answer."""
        if self.place.world == 1:
            return told
        if step % _STOP_CHECK_EVERY:
            return False
        flag = torch.tensor(float(told), device=self.place.device)
        return float(self.accelerator.reduce(flag, "sum")) > 0

    def _save(self, step: int, log: Log | None) -> None:
        """Write a checkpoint, unless weights or optimiser are no longer finite."""
        self._check_finite(step)
        self.window.copy_(self.accelerator.reduce(self.window, "mean"))  # the same in all processes: one pair to save
        # Full tensors under plain names, however the model is wrapped or sharded.
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights, optimizer = map(_as_dict, get_state_dict(self.model, self.optimizer.optimizer, options=options))
        average = None
        if self.ema:
            with self.ema.swap():
                swapped = _as_dict(get_model_state_dict(self.model, options=options))
                average = {name: t.clone() for name, t in swapped.items()}  # on a CPU these are the weights themselves
        state = save_generators(self.place.device)
        state = {name: self.accelerator.gather(t[None].to(self.place.device)) for name, t in state.items()}
        if self.accelerator.is_main_process:
            assert log is not None
            checkpoint = Checkpoint(
                step=step,
                recipe=self.recipe,
                model=weights if average is None else average,
                weights=None if average is None else weights,
                optimizer=optimizer,
                rng=state,
                progress={"window": self.window.tolist(), "log_bytes": log.position(), "files": self.files},
                files=self.task.files(),
            )
            checkpoints.write(self.out, checkpoint, keep=self.recipe.loop.keep)
        self.accelerator.wait_for_everyone()
        self.clock.resume()

    def _check_finite(self, step: int) -> None:
        """Refuse weights, averages or optimiser states with NaN or infinity, in all processes if in any."""
        state = [t for entry in self.optimizer.optimizer.state.values() for t in entry.values()]
        average = list(self.ema.average.values()) if self.ema else []
        tensors = [t for t in (*self.bare.state_dict().values(), *average, *state) if isinstance(t, torch.Tensor)]
        local = [_local(t) for t in tensors if t.is_floating_point()]
        broken = torch.stack([(~t.isfinite()).any().to(self.place.device) for t in local]).any().float()
        if float(self.accelerator.reduce(broken, "sum")) == 0:
            return
        saved = checkpoints.list_checkpoints(self.out)
        newest = f"the newest checkpoint is {saved[-1]}" if saved else "there is no checkpoint yet"
        raise Diverged(
            f"the weights are no longer finite at step {step}, which is not saved; {newest}: lower optim.lr or raise "
            f"optim.warmup_steps"
        )

    def _newest(self) -> Checkpoint | None:
        """The newest checkpoint that can be read. Damaged ones are set aside, with a warning that names them."""
        for path in reversed(checkpoints.list_checkpoints(self.out)):
            try:
                return checkpoints.read(path)
            except ValueError as error:
                self.accelerator.wait_for_everyone()  # all have seen it
                if self.accelerator.is_main_process:
                    checkpoints.set_aside(path)
                    warnings.warn(
                        f"{error}. The run goes on from the checkpoint before; this one is kept as {path.name}.damaged",
                        RuntimeWarning,
                        3,
                    )
                self.accelerator.wait_for_everyone()
        return None

    def _resume(self) -> tuple[int, int]:
        """Load the newest checkpoint that can be read, if any; returns its step and its length of metrics.jsonl."""
        checkpoint = self._newest()
        if checkpoint is None:
            return 0, 0
        changed = differences(checkpoint.recipe, self.recipe)
        if changed:
            raise ValueError(
                f"{self.out} holds a run of another recipe ({'; '.join(changed)}): choose another folder, or repeat it"
            )
        check_files(checkpoint.progress, self.files, self.out)
        if self.accelerator.is_main_process:
            checkpoints.prune(self.out, self.recipe.loop.keep)  # a kill may have come between writing and removing
        options = StateDictOptions(full_state_dict=True)
        weights = checkpoint.model if checkpoint.weights is None else checkpoint.weights
        if self.ema:
            with self.ema.swap():
                set_model_state_dict(self.model, _as_dict(checkpoint.model), options=options)
        set_state_dict(
            self.model,
            self.optimizer.optimizer,
            model_state_dict=_as_dict(weights),
            optim_state_dict=self._for_this_device(checkpoint.optimizer),
            options=options,
        )
        for group in self.optimizer.param_groups if isinstance(self.descend, CapturedStep) else ():
            group["lr"] = torch.tensor(float(group["lr"]), device=self.place.device)
        # Rows are copied: torch reads a state from the start of its storage.
        states = checkpoint.rng.items()
        rows = {name: t[self.place.rank].clone() for name, t in states if len(t) == self.place.world}
        if rows:  # with another number of processes, dropout goes on from a new seed
            restore_generators(rows, self.place.device)
        self.window.copy_(torch.tensor(checkpoint.progress["window"]))
        return checkpoint.step, checkpoint.progress["log_bytes"]

    def _for_this_device(self, optimizer: dict[str, Any]) -> dict[str, Any]:
        """The state of an optimiser, which may have been saved on a GPU or on a CPU, with the settings that suit this
        device."""
        own = {key: self.optimizer.param_groups[0][key] for key in ("foreach", "fused", "capturable")}
        return optimizer | {"param_groups": [group | own for group in optimizer["param_groups"]]}


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part of a tensor, which may be sharded."""
    part: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def _as_dict(state: Any) -> dict[str, Any]:
    """A state dict, without the narrower type that torch gives it."""
    return state


def _optimizer(model: nn.Module, task: Task, device: torch.device, *, capturable: bool) -> torch.optim.Optimizer:
    o, groups = task.recipe.optim, task.parameter_groups(model)
    if device.type != "cuda":
        return torch.optim.AdamW(groups, lr=o.lr, betas=(o.beta1, o.beta2), eps=o.eps)
    if capturable:  # a captured step reads its learning rates from the device
        for group in groups:
            group["lr"] = torch.tensor(group["lr"], device=device)
        warnings.filterwarnings("ignore", message=".*constructed with capturable=True")  # its first steps are not
    return torch.optim.AdamW(groups, lr=o.lr, betas=(o.beta1, o.beta2), eps=o.eps, fused=True, capturable=capturable)


def cosine(step: int, total: int, warmup: int) -> float:
    """The share of the learning rate at a step: a linear warm-up, then half a cosine to 0."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(total - warmup, 1)))


def constant(step: int, total: int, warmup: int) -> float:
    """The share of the learning rate at a step: a linear warm-up, then 1."""
    return min((step + 1) / max(warmup, 1), 1.0)


SCHEDULES: dict[str, Callable[[int, int, int], float]] = {"cosine": cosine, "constant": constant}
"""By name in `optim.schedule`."""


class Diverged(ValueError):
    """The loss or the weights of a run are no longer finite."""


class Stopped(SystemExit):
    """The run was asked to stop and has saved; the exit status is 143 (128 + SIGTERM), as a shell reports it."""

    def __init__(self, message: str):
        super().__init__(143)
        self.message = message

    def __str__(self) -> str:
        return self.message


@contextmanager
def catch_sigterm() -> Iterator[Callable[[], bool]]:
    """Inside, SIGTERM does not end the process; the function yielded says whether it was received."""
    if threading.current_thread() is not threading.main_thread():  # the only one that can set handlers
        yield lambda: False
        return
    received = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received = True

    before = signal.signal(signal.SIGTERM, note)
    try:
        yield lambda: received
    finally:
        signal.signal(signal.SIGTERM, before)
