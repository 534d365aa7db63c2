import pytest

from stringpe.io.registry import look_up, suggest
from stringpe.io.table import markdown_table


def test_a_near_miss_is_suggested_whatever_its_case():
    assert suggest("Cayly", ["rope", "cayley"]) == "did you mean 'cayley'? "
    assert suggest("xyz", ["rope", "cayley"]) == ""
    assert look_up("encoding", "rope", {"rope": 3}) == 3
    with pytest.raises(ValueError, match=r"no encoding named 'rpoe': did you mean 'rope'\? The names are rope, cayley"):
        look_up("encoding", "rpoe", {"rope": 3, "cayley": 4})


def test_tables_are_aligned_and_escaped():
    assert markdown_table(["row", "top-1"], [["a|b", "3"], ["c", "12"]]).splitlines() == [
        r"| row  | top-1 |",
        r"|------|------:|",
        r"| a\|b |     3 |",
        r"| c    |    12 |",
    ]
