import pytest

from cachecraft_rag import EngineConfig
from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.stand_in import STAND_IN, stand_in_token_ids


class Letters:
    def encode_chunk(self, chunk):
        return tuple(ord(letter) for letter in chunk)


@pytest.mark.parametrize(("limit", "text"), [(None, "abcdef"), (24, "abcdef"), (23, "abc"), (12, "abc"), (11, "")])
def test_whole_passages_up_to_a_quarter_of_the_context(limit, text):
    assert stand_in_token_ids(["abc", "def"], Letters(), limit) == tuple(map(ord, text))


def test_those_of_the_package_are_single_lines():
    assert len(STAND_IN) == 3
    assert all(passage == " ".join(passage.split()) and passage.endswith(".") for passage in STAND_IN)


def test_a_list_of_own_ones_is_kept_as_a_tuple():
    assert EngineConfig("m", stand_in=["one", "two"]).stand_in == ("one", "two")
    assert EngineConfig("m", stand_in=()).stand_in == ()
    assert EngineConfig("m").stand_in == STAND_IN


@pytest.mark.parametrize("value", ["text", None, 3, [""], [" \n"], [3]])
def test_what_is_no_list_of_texts_is_refused(value):
    with pytest.raises(InvalidInput, match="stand_in"):
        EngineConfig("m", stand_in=value)
