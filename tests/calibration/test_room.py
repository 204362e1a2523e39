import pytest
from weightless_models import weightless_model

from cachecraft_rag import ChunkPrompt, EngineConfig
from cachecraft_rag.calibration.questions import MOST_TOKENS, opening_question
from cachecraft_rag.calibration.room import context_for
from cachecraft_rag.calibration.samples import Sample
from cachecraft_rag.chunk import Chunk
from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.tokenise import PromptTokenizer

CONTEXT = 8192
SHORT = Sample((Chunk("the words"), Chunk("of text")), Chunk("the words"), "What?")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return weightless_model(tmp_path_factory.mktemp("model"), CONTEXT)


@pytest.fixture(scope="module")
def tokenizer(model):
    return PromptTokenizer.from_pretrained(model)


def test_the_longest_prompt_is_counted(model, tokenizer):
    chunk = Chunk("the words " * 1300)
    samples = [Sample((chunk, Chunk("of text")), chunk, "What?"), SHORT]
    prompt = len(tokenizer.encode(ChunkPrompt.chat(samples[0].chunks, "What?")).token_ids)
    assert context_for(EngineConfig(model, stand_in=()), samples, 100) == prompt + 100
    unasked = Sample(samples[0].chunks, samples[0].own)
    asked = len(tokenizer.encode(ChunkPrompt.chat(unasked.chunks, opening_question(unasked.own))).token_ids)
    assert context_for(EngineConfig(model, stand_in=()), [unasked], 100) == asked + MOST_TOKENS + 100


def test_what_does_not_fit_is_said_with_the_way_out(model):
    many = Sample((Chunk("the words " * 3000), Chunk("of text " * 3000)), Chunk("of text"), "What?")
    with pytest.raises(InvalidInput, match="holds 8192: give fewer --chunks"):
        context_for(EngineConfig(model), [many], 8)
    with_system = EngineConfig(model, max_model_len=512, default_system="the words " * 300)
    with pytest.raises(InvalidInput, match="context holds 512"):
        context_for(with_system, [SHORT], 8)
