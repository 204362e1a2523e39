"""LangChain over cachecraft-rag."""
