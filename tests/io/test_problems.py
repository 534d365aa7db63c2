import warnings

import pytest

from stringpe.io.problems import Problems


def test_one_line_counts_and_names():
    problems = Problems("pictures", "photos/")
    problems.add("cat.png: cut short")
    with pytest.warns(RuntimeWarning, match=r"^1 of 120 pictures of photos/ cannot be used .*: cat\.png: cut short$"):
        problems.warn(120)
    problems.extend(f"{i}.png: empty" for i in range(7))
    assert problems.describe().startswith("8 pictures of photos/ ")
    assert problems.describe().endswith("; and 3 more")
    assert (len(problems), next(iter(problems))) == (8, "cat.png: cut short")


def test_nothing_wrong_is_not_worth_a_word():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Problems("pictures").warn()


def test_what_is_known_is_neither_counted_nor_reported_again():
    problems = Problems("samples")
    with pytest.warns(RuntimeWarning, match="2 samples cannot"):
        problems.report(["a: bad", "b: bad", "a: bad"])
    with pytest.warns(RuntimeWarning, match="1 samples cannot be used and are left out: c: bad"):
        problems.report(["a: bad", "c: bad"])
    assert problems.reasons == ["a: bad", "b: bad", "c: bad"]


def test_names_cannot_write_to_the_terminal():
    problems = Problems("pictures")
    problems.add("a\x1b[2J\nb\u202e.png: cut")
    problems.report(["a\x1b[2J\nb\u202e.png: cut"])
    assert list(problems) == [r"a\x1b[2J\nb\u202e.png: cut"]
