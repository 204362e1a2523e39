import subprocess
import sys


def test_looking_after_a_store_needs_neither_torch_nor_vllm():
    code = (
        "import sys; import cachecraft_rag.cli_store; from cachecraft_rag.store import archive, audit, catalogue; "
        "print([name for name in ('torch', 'vllm', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
