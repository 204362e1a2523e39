import pytest
from weightless_models import weightless_model

from cachecraft_rag import EngineConfig
from cachecraft_rag.bench.quality.data import Passage, Question, save_questions
from cachecraft_rag.bench.quality.room import context_length
from cachecraft_rag.bench.quality.run import bench_quality
from cachecraft_rag.chunk import Chunk
from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.stand_in import STAND_IN, stand_in_token_ids
from cachecraft_rag.tokenise import PromptTokenizer

CONTEXT = 8192
WAY_OUT = "give less"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return weightless_model(tmp_path_factory.mktemp("model"), CONTEXT)


@pytest.fixture(scope="module")
def tokenizer(model):
    return PromptTokenizer.from_pretrained(model)


@pytest.fixture
def length_for(model, tokenizer):
    def find(prompt, chunk, **options):
        config = EngineConfig(model, **options)
        return context_length(config, tokenizer, prompt, [Chunk("x"), chunk], way_out=WAY_OUT)

    return find


def of_tokens(tokenizer, count):
    text = "x"
    text += " x" * ((count - len(tokenizer.encode_chunk(text))) // 2)
    chunk = Chunk(text if len(tokenizer.encode_chunk(text)) == count else f"{text}x")
    assert len(tokenizer.encode_chunk(chunk)) == count
    return chunk


def in_front(tokenizer, length):
    return len(tokenizer.head_token_ids) + len(stand_in_token_ids(STAND_IN, tokenizer, length))


def test_what_a_prewarm_takes_is_counted(length_for, tokenizer):
    front = in_front(tokenizer, None)
    length = length_for(100, of_tokens(tokenizer, 6000))
    assert length == 6000 + front + 2
    assert in_front(tokenizer, length) == front


def test_all_stand_in_passages_are_taken_as_engines_do_that_name_no_context(length_for, tokenizer):
    assert in_front(tokenizer, length_for(100, Chunk("x"))) == in_front(tokenizer, None)
    assert length_for(100, Chunk("x"), stand_in=()) == 2048


def test_the_longest_prompt_is_counted(length_for):
    assert length_for(7000, Chunk("x")) == 7000
    assert length_for(CONTEXT, Chunk("x")) == CONTEXT


def test_the_models_own_context_is_the_most(length_for, tokenizer):
    room = CONTEXT - in_front(tokenizer, CONTEXT) - 2
    assert length_for(100, of_tokens(tokenizer, room)) == CONTEXT
    with pytest.raises(InvalidInput, match=rf"chunk has {room + 1} tokens, and \d+ of head.*holds 8192: give smaller"):
        length_for(100, of_tokens(tokenizer, room + 1))
    with pytest.raises(InvalidInput, match=r"up to 8193 tokens with their answers .* holds 8192: give less"):
        length_for(CONTEXT + 1, Chunk("x"))


def test_a_context_that_was_named_counts(length_for, tokenizer):
    assert length_for(500, Chunk("x"), max_model_len=512) == 512
    for prompt, chunk in ((513, Chunk("x")), (100, of_tokens(tokenizer, 512))):
        with pytest.raises(InvalidInput, match="context holds 512"):
            length_for(prompt, chunk, max_model_len=512)


def test_the_benchmark_says_so_before_it_starts_an_engine(model, tokenizer, tmp_path):
    passages = (Passage("", of_tokens(tokenizer, 5000).text), Passage("", of_tokens(tokenizer, 5001).text))
    save_questions(tmp_path / "data.jsonl", [Question("What?", ("x",), passages)])
    with pytest.raises(InvalidInput, match="holds 8192: leave out the longest questions"):
        bench_quality(model, tmp_path / "data.jsonl", policies=["first"], ratios=[0.1], progress=False)
