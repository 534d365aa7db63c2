from stringpe.io.progress import progress


def test_without_a_terminal_the_last_line_tells_the_whole(capsys):
    with progress("frames of a scene", 10, done=4) as advance:
        advance(3)
        advance(3)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("frames of a scene: 10 / 10 (")
