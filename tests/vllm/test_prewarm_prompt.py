import numpy as np
import pytest

from cachecraft_rag.tokenise import Segment
from cachecraft_rag.vllm.forward import slots
from cachecraft_rag.vllm.prewarm import encode_for_prewarm

CHUNK = Segment("chunk", 0, 3, "id", "digest", "a.md")


def test_head_chunk_and_one_token_more():
    prompt = encode_for_prewarm((1, 2), (7, 8, 9), CHUNK)
    assert prompt.token_ids == (1, 2, 7, 8, 9, 9)
    assert prompt.segments == (
        Segment("text", 0, 2),
        Segment("chunk", 2, 5, "id", "digest", "a.md"),
        Segment("text", 5, 6),
    )


def test_without_a_head():
    prompt = encode_for_prewarm((), (7, 8, 9), CHUNK)
    assert prompt.token_ids == (7, 8, 9, 9)
    assert [(s.kind, s.start, s.stop) for s in prompt.segments] == [("chunk", 0, 3), ("text", 3, 4)]


@pytest.mark.parametrize(("block_size", "expected"), [(4, [20, 22, 23, 8, 9, 32]), (16, [80, 82, 83, 84, 85, 88])])
def test_slots_follow_the_block_table(block_size, expected):
    positions = np.array([0, 2, 3, 4, 5, 8])
    assert slots(positions, np.array([5, 2, 8]), block_size).tolist() == expected
