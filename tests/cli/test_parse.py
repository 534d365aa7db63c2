"""Command lines generated from signatures, with and without key=value words in between."""

from pathlib import Path

import pytest

from stringpe.cli.parse import Changes, Count, call, make_parser, split_docstring

CALLS = []


def made(
    recipe: str = "scenes",
    /,
    rows: tuple[str, ...] = (),
    seeds: Count = 2,
    box: tuple[float, float] | None = None,
    out: Path | None = None,
    costs: bool = True,
    changes: Changes = (),
) -> None:
    """Make things.

    At length.

    Args:
        recipe: What to make,
            of what there is.
        seeds: How often.
    """
    CALLS.append(dict(locals()))


def parsed(*words):
    CALLS.clear()
    call(made, words, "stringpe made")
    return CALLS[0]


def test_defaults_and_types():
    assert parsed() == {
        "recipe": "scenes", "rows": (), "seeds": 2, "box": None, "out": None, "costs": True, "changes": ()
    }  # fmt: skip
    found = parsed("toy", "--seeds", "3", "--box", "1", "-2.5", "--out", "runs/a", "--no-costs", "--rows", "a", "b")
    assert found["recipe"] == "toy"
    assert (found["seeds"], found["box"], found["out"]) == (3, (1.0, -2.5), Path("runs/a"))
    assert (found["costs"], found["rows"]) == (False, ("a", "b"))


@pytest.mark.parametrize(
    "words",
    [
        ("toy", "a.b=1", "c=2", "--rows", "x", "y:z=3"),
        ("a.b=1", "toy", "--rows", "x", "y:z=3", "c=2"),
        ("a.b=1", "--rows", "x", "c=2", "y:z=3", "--seeds", "2", "toy"),
        ("--seeds", "2", "toy", "a.b=1", "--rows", "x", "y:z=3", "c=2"),
    ],
)
def test_changes_stand_anywhere(words):
    found = parsed(*words)
    assert (found["recipe"], found["rows"], found["changes"]) == ("toy", ("x", "y:z=3"), ("a.b=1", "c=2"))


def test_the_value_of_an_option_and_a_file_are_no_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x=1").touch()
    assert parsed("--out", "a=b", "c=1")["out"] == Path("a=b")
    found = parsed("x=1", "c=1")
    assert (found["recipe"], found["changes"]) == ("x=1", ("c=1",))


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("--seeds", "0"), "--seeds: must be at least 1, got 0"),
        (("--seeds", "many"), "--seeds: must be a whole number, got 'many'"),
        (("--box", "nan", "1"), "--box: must be a finite number, got 'nan'"),
        (("--box", "1"), "--box: expected 2 arguments"),
        (("--sedes", "3"), "there is no option --sedes: did you mean '--seeds'?"),
        (("a", "b"), "unrecognized arguments: b"),
    ],
)
def test_mistakes_are_one_line(words, answer, capsys):
    with pytest.raises(SystemExit, match="2"):
        parsed(*words)
    text = capsys.readouterr().err
    assert answer in text
    assert text.count("\n") == 1


def test_help_comes_from_the_docstring():
    assert split_docstring(made) == (
        "Make things.\n\nAt length.",
        {"recipe": "What to make, of what there is.", "seeds": "How often."},
    )
    text = make_parser(made, "stringpe made").format_help()
    assert "What to make, of what there is." in text
    assert "How often. (default: 2)" in text


def sized(size: tuple[Count, Count] = (128, 128), changes: Changes = ()) -> None:
    """Draw something.

    Args:
        size: Height and width.
    """
    CALLS.append({"size": size, "changes": changes})


@pytest.mark.parametrize(
    ("words", "size"), [((), (128, 128)), (("--size", "64"), (64, 64)), (("--size", "64", "48"), (64, 48))]
)
def test_a_size_is_two_numbers_or_one(words, size, capsys):
    CALLS.clear()
    call(sized, [*words, "a.b=1"], "stringpe sized")
    assert [{"size": size, "changes": ("a.b=1",)}] == CALLS
    with pytest.raises(SystemExit):
        call(sized, ["--size", "1", "2", "3"], "stringpe sized")
    assert "argument --size: takes one or two numbers, got 1 2 3" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        call(sized, ["--size", "0"], "stringpe sized")
    assert "argument --size: must be at least 1" in capsys.readouterr().err
