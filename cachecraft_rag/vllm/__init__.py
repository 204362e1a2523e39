"""Everything that touches vLLM. Importing this package does not import vLLM; its modules do."""
