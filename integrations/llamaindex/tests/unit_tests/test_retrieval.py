"""Retrieved nodes, chat engines that flatten them, and deletion."""

from __future__ import annotations

import uuid

import pytest
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.chat_engine import CondensePlusContextChatEngine, ContextChatEngine
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.llms.cachecraft import (
    AssignChunkIds,
    Cachecraft,
    ChunkIdPostprocessor,
    PrewarmChunks,
    adelete_ref_doc,
    delete_ref_doc,
    get_chunk_synthesizer,
)

from cachecraft_rag import Chunk, chunk_id

TEXTS = [
    f"Passage {name} is about the {name} of the buoy, and about nothing else." for name in ("keel", "hull", "lamp")
]
CONTEXT = "Use this:\n\n{context_str}\n\nAnswer briefly."


class Fixed(BaseRetriever):
    """Returns bare nodes, as retrievers do that keep nothing but texts."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts
        super().__init__()

    def _retrieve(self, query_bundle):
        return [NodeWithScore(node=TextNode(text=text), score=1.0) for text in self.texts]


def test_ids_come_from_the_text_whatever_the_metadata_say(scored):
    nodes = [*scored("one"), *scored("two", metadata={"chunk_id": chunk_id("one")}), *scored(" ")]
    found = ChunkIdPostprocessor().postprocess_nodes(nodes)
    assert [node.metadata.get("chunk_id") for node in found[:2]] == [
        chunk_id("one"),
        chunk_id("chunk_id: " + chunk_id("one") + "\n\ntwo"),
    ]
    assert "chunk_id" not in found[2].metadata
    assert "chunk_id" not in nodes[0].metadata
    assert [node.score for node in found] == [node.score for node in nodes]


def test_nodes_that_lost_their_ids_are_hits_all_the_same(llm):
    PrewarmChunks(llm)([TextNode(text=text) for text in TEXTS])
    synthesizer = get_chunk_synthesizer(llm)
    response = synthesizer.synthesize("why?", Fixed(TEXTS[::-1]).retrieve("why?"))
    [report] = response.metadata["cachecraft"]["reports"]
    assert report.hits == 3


def test_a_node_whose_text_changed_is_a_miss(llm):
    PrewarmChunks(llm)([TextNode(text=TEXTS[0])])
    [report] = (
        get_chunk_synthesizer(llm)
        .synthesize("why?", Fixed([TEXTS[0] + " More."]).retrieve(""))
        .metadata["cachecraft"]["reports"]
    )
    assert (report.hits, report.misses) == (0, 1)


@pytest.mark.parametrize("recover", [True, False])
@pytest.mark.parametrize("kind", ["context", "condense"])
async def test_chat_engines_that_flatten_their_nodes(engine, recover, kind):
    llm = Cachecraft(engine=engine, recover_chunks=recover)
    PrewarmChunks(llm)([TextNode(text=text) for text in TEXTS])
    options = {"llm": llm, "node_postprocessors": [ChunkIdPostprocessor(llm=llm)]}
    if kind == "context":
        chat = ContextChatEngine.from_defaults(Fixed(TEXTS[::-1]), context_template=CONTEXT, **options)
    else:
        chat = CondensePlusContextChatEngine.from_defaults(Fixed(TEXTS[::-1]), context_prompt=CONTEXT, **options)
    whole = str(chat.chat("What is this?"))
    report = llm.engine.requests[-1].prompt.chunks
    assert [chunk.text for chunk in report] == (TEXTS[::-1] if recover else [])
    assert all(chunk.recovered for chunk in report)
    chat.reset()
    assert "".join(chat.stream_chat("What is this?").response_gen) == whole
    chat.reset()
    assert str(await chat.achat("What is this?")) == whole
    chat.reset()
    response = await chat.astream_chat("What is this?")
    assert "".join([delta async for delta in response.async_response_gen()]) == whole
    assert len(llm.engine.requests[-1].prompt.chunks) == (3 if recover else 0)


def test_recovered_chunks_are_said_to_be(engine):
    llm = Cachecraft(engine=engine, recover_chunks=True)
    PrewarmChunks(llm)([TextNode(text=text) for text in TEXTS])
    response = llm.complete(f"Read:\n\n{TEXTS[1]}\n\n{TEXTS[0]}\n\nWhy?")
    report = response.additional_kwargs["report"]
    assert (report.hits, [chunk.recovered for chunk in report.chunks]) == (2, [True, True])


def test_chunks_are_recovered_for_their_own_tenant_only(engine):
    llm = Cachecraft(engine=engine, namespace="a", recover_chunks=True)
    llm.remember([Chunk(TEXTS[0])])
    other = llm.model_copy(update={"namespace": "b"})
    prompt = f"{TEXTS[0]}\n\nWhy?"
    assert llm.complete(prompt).additional_kwargs["report"].chunks[0].recovered
    assert other.complete(prompt).additional_kwargs["report"] is None
    assert llm.complete(prompt, namespace="b").additional_kwargs["report"] is None
    assert other.complete(prompt, namespace="a").additional_kwargs["report"].chunks[0].recovered


@pytest.fixture
def pipeline(llm, embedding) -> IngestionPipeline:
    return IngestionPipeline(
        transformations=[
            SentenceSplitter(chunk_size=25, chunk_overlap=0),
            AssignChunkIds(),
            embedding,
            PrewarmChunks(llm),
        ],
        docstore=SimpleDocumentStore(),
        docstore_strategy=DocstoreStrategy.UPSERTS,
        vector_store=VectorStoreIndex([], embed_model=embedding).vector_store.__class__(),
    )


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_deletion_reaches_the_caches_and_spares_what_others_share(llm, engine, pipeline, asynchronous):
    own = [chunk_id(text) for text in TEXTS]
    documents = [Document(text=" ".join(TEXTS[:2]), id_="a"), Document(text=" ".join(TEXTS[1:]), id_="b")]
    pipeline.run(documents=documents)
    assert sorted(engine.prewarmed) == sorted(own)
    gone = (
        await adelete_ref_doc("a", llm, pipeline=pipeline)
        if asynchronous
        else delete_ref_doc("a", llm, pipeline=pipeline)
    )
    assert gone == [own[0]]
    assert engine.stats()["chunks"] == 2
    assert set(pipeline.docstore.docs) == {"b"}
    assert {
        pipeline.vector_store.data.text_id_to_ref_doc_id[key] for key in pipeline.vector_store.data.embedding_dict
    } == {"b"}
    pipeline.run(documents=documents)
    assert engine.prewarmed.count(own[0]) == 2
    assert engine.prewarmed.count(own[1]) == 1


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_deletion_from_an_index(llm, engine, embedding, asynchronous):
    nodes = AssignChunkIds()(SentenceSplitter()([Document(text=text, id_=text[8:12]) for text in TEXTS]))
    PrewarmChunks(llm)(nodes)
    index = VectorStoreIndex(nodes, embed_model=embedding)
    call = {"ref_doc_id": "hull", "llm": llm, "index": index}
    gone = await adelete_ref_doc(**call) if asynchronous else delete_ref_doc(**call)
    assert gone == [chunk_id(TEXTS[1])]
    found = index.as_retriever(similarity_top_k=5).retrieve("hull")
    assert {node.node.ref_doc_id for node in found} == {"keel", "lamp"}
    [report] = (
        get_chunk_synthesizer(llm).synthesize("why?", Fixed(TEXTS).retrieve("")).metadata["cachecraft"]["reports"]
    )
    assert [chunk.outcome.value for chunk in report.chunks] == ["HIT", "MISS", "HIT"]


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_a_file_that_is_read_again_is_deleted_with_its_caches(llm, engine, embedding, asynchronous):
    store = SimpleVectorStore()
    pipeline = IngestionPipeline(
        transformations=[AssignChunkIds(), embedding, PrewarmChunks(llm)], vector_store=store, disable_cache=True
    )
    for _ in range(3):
        document = str(uuid.uuid4())
        source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=document)}
        node = TextNode(text=TEXTS[0], metadata={"file_path": "/docs/a.txt"}, relationships=source)
        pipeline.run(nodes=[node])
    call = {"ref_doc_id": document, "llm": llm, "pipeline": pipeline}
    gone = await adelete_ref_doc(**call) if asynchronous else delete_ref_doc(**call)
    assert gone == [chunk_id(TEXTS[0])]
    assert (engine.stats()["chunks"], store.data.embedding_dict) == (0, {})


def test_a_chunk_stored_behind_an_answer_belongs_to_its_document(llm, engine, scored):
    get_chunk_synthesizer(llm).synthesize("why?", scored("one two", document="doc"))
    assert delete_ref_doc("doc", llm) == [chunk_id("one two")]
    assert delete_ref_doc("doc", llm) == []
