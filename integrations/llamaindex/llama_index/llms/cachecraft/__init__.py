"""LlamaIndex over cachecraft-rag."""
