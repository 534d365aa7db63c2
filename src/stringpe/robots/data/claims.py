"""Which of several processes that fill one folder makes which episode, so that no seed is made twice.

A claim is a locked file. A lock ends with its process, whatever ended it, so that a seed whose maker was killed is free
again. Seeds that failed leave a mark and are not tried again.
"""

import faulthandler
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from ...io.files import hold_lock

_PATIENCE = 120.0  # seconds to wait for a lock that others hold for moments only
_PATIENCE_WITH_OTHERS = 900.0  # seconds in which other processes finish no episode, after which waiting is given up
_PAUSE = 0.02


@contextmanager
def wait_for_lock(path: Path, what: str) -> Iterator[None]:
    """Hold a lock that others hold for moments only; ValueError that names the holder if it takes too long."""
    until = time.monotonic() + _PATIENCE
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(hold_lock(path, what))
                break
            except ValueError:
                if time.monotonic() > until:
                    raise
            time.sleep(_PAUSE)
        yield


@contextmanager
def end_process_after(seconds: float, file: IO[str]) -> Iterator[None]:
    """End this process if the block takes longer, whatever it is doing, and write to `file` what that was.

    The thread that watches runs no Python, so it also ends a call into C that never returns."""
    faulthandler.dump_traceback_later(seconds, file=file, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


class Claims:
    """Claims on the seeds first, first + 1, … of a folder that is to hold a number of episodes.

    done(): seeds of the episodes that the folder holds now."""

    def __init__(self, folder: Path, first: int, episodes: int, done: Callable[[], set[int]]):
        self._folder, self._first, self._episodes, self._done = folder / ".claims", first, episodes, done

    @contextmanager
    def next(self) -> Iterator[int | None]:
        """Hold a seed that no process has made or is making; None once the folder holds enough episodes.

        While other processes are making all episodes that are still wanted, it waits until they succeed or fail;
        ValueError if none of them does for a long time."""
        seen: tuple[int, int] | None = None
        since = time.monotonic()
        with ExitStack() as stack:
            while True:
                with wait_for_lock(self._folder / "lock", f"the list of claims in {self._folder}"):
                    taken = self._taken()  # first: a seed that is finished in between is in `done`, and not free again
                    done = self._done()
                    if len(done | taken) < self._episodes:
                        seed = self._lowest_free(done | taken | self.failed())
                        stack.enter_context(hold_lock(self._claim(seed), f"seed {seed}"))
                        break
                if len(done) >= self._episodes:
                    yield None
                    return
                if seen != (now := (len(done), len(self.failed()))):
                    seen, since = now, time.monotonic()
                elif time.monotonic() - since > _PATIENCE_WITH_OTHERS:
                    held = ", ".join(map(str, sorted(taken)))
                    raise ValueError(
                        f"other processes hold the seeds {held} and have finished none for "
                        f"{_PATIENCE_WITH_OTHERS:g} s: end them, and run it again"
                    )
                time.sleep(5 * _PAUSE)
            yield seed
            self._claim(seed).unlink(missing_ok=True)

    def fail(self, seed: int) -> None:
        """Note that a seed does not give an episode."""
        (self._folder / f"{seed}.failed").touch()

    def failed(self) -> set[int]:
        """Seeds that do not give an episode, including those whose process hung."""
        return {int(path.stem) for path in self._folder.glob("*.failed")} | self.hung()

    @contextmanager
    def end_if_hung(self, seed: int, patience: float) -> Iterator[None]:
        """End this process if the block, which makes a claimed seed, takes longer; the seed then counts as failed. 0:
        no limit."""
        if not patience:
            yield
            return
        place = self.hang_file(seed)
        with open(place, "w") as file, end_process_after(patience, file):
            yield
        place.unlink(missing_ok=True)

    def hung(self) -> set[int]:
        """Seeds whose process was ended because it hung."""
        seeds = set()
        for path in self._folder.glob("*.hung"):
            with suppress(FileNotFoundError):  # its process has just finished the seed
                if path.stat().st_size:
                    seeds.add(int(path.stem))
        return seeds

    def hang_file(self, seed: int) -> Path:
        """The file that says what the process of a seed was doing when it was ended; empty while the process works."""
        return self._folder / f"{seed}.hung"

    def _claim(self, seed: int) -> Path:
        return self._folder / f"{seed}.claim"

    def _taken(self) -> set[int]:
        """Seeds that are being made: their claims are locked. Claims of processes that ended are removed."""
        taken = set()
        for path in self._folder.glob("*.claim"):
            try:
                with hold_lock(path, "a claim"):
                    path.unlink(missing_ok=True)  # its holder may have removed it just now
            except ValueError:
                taken.add(int(path.stem))
        return taken

    def _lowest_free(self, used: set[int]) -> int:
        seed = self._first
        while seed in used:
            seed += 1
        return seed
