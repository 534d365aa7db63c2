"""Claims on seeds: none is made twice, none is lost, and nobody waits for ever."""

from contextlib import ExitStack

import pytest

from stringpe.robots.data import claims
from stringpe.robots.data.claims import Claims


def test_a_seed_that_is_finished_while_another_looks_is_not_made_again(tmp_path):
    finished: set[int] = set()
    with ExitStack() as other:
        assert other.enter_context(Claims(tmp_path, 0, 5, lambda: finished).next()) == 0

        def look():
            """The other process finishes its seed just after its episodes were counted."""
            before = set(finished)
            finished.add(0)
            other.close()
            return before

        with Claims(tmp_path, 0, 5, look).next() as seed:
            assert seed == 1


def test_the_claim_of_a_process_that_ended_is_free_again(tmp_path):
    folder = tmp_path / ".claims"
    folder.mkdir()
    (folder / "0.claim").write_text("process 1 on elsewhere")
    with Claims(tmp_path, 0, 5, set).next() as seed:
        assert seed == 0


def test_failed_seeds_are_not_tried_again_and_enough_is_enough(tmp_path):
    mine = Claims(tmp_path, 0, 2, lambda: {1})
    mine._folder.mkdir()
    mine.fail(0)
    with mine.next() as seed:
        assert seed == 2
    with Claims(tmp_path, 0, 2, lambda: {1, 2}).next() as seed:
        assert seed is None


def test_waiting_for_others_has_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "_PATIENCE_WITH_OTHERS", 0.2)
    mine = Claims(tmp_path, 0, 1, set)
    with mine.next(), pytest.raises(ValueError, match=r"hold the seeds 0 and have finished none for 0\.2 s"):
        mine.next().__enter__()


def test_waiting_for_a_lock_has_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "_PATIENCE", 0.1)
    busy = pytest.raises(ValueError, match=r"the list is in use by process \d+")
    with claims.wait_for_lock(tmp_path / "lock", "the list"), busy, claims.wait_for_lock(tmp_path / "lock", "the list"):
        pass
