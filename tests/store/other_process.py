"""What tests of the store run in processes of their own: `python other_process.py ACTION ROOT ...`."""

import errno
import hashlib
import resource
import signal
import sys
import time
from pathlib import Path

import numpy as np

from cachecraft_rag.store.container import TensorSpec
from cachecraft_rag.store.directory import StoreDirectory
from cachecraft_rag.store.disk import DiskStore, Unreadable
from cachecraft_rag.store.header import EntryHeader

MODEL = "m" * 32


def entry(key):
    tensors = (TensorSpec("kv", "BF16", (2, 2, 6, 1, 8)),)
    header = EntryHeader(key, MODEL, "one", np.arange(6, dtype=np.int32), 4, "id", None, (), tensors, "")
    return header, hashlib.shake_128(key.encode()).digest(header.data_bytes)


def write_half(root):
    store = DiskStore(StoreDirectory(root), MODEL)
    with store.directory.writing(store.path("half"), 1000) as unfinished:
        unfinished.file.write(b"x" * 500)
        print("half", flush=True)
        time.sleep(600)


def hammer(root, capacity, number):
    """Write, read and remove; print whatever is not as it should be."""
    store = DiskStore(StoreDirectory(root, int(capacity)), MODEL)
    for turn in range(60):
        key = f"key{(turn * 7 + int(number)) % 12}"
        header, data = entry(key)
        try:
            if turn % 5 == 4:
                store.remove([key])
            elif turn % 2:
                store.write(header, [memoryview(data)])
            else:
                buffer = bytearray(len(data))
                store.read(key, [memoryview(buffer)])
                if bytes(buffer) != data:
                    print(f"{key} was wrong")
        except Unreadable as error:
            if "vanished" not in str(error):
                print(error)
        if store.directory.used_bytes() > int(capacity):
            print("over budget")


def fill(root):
    """Write with a limit on file sizes, which is how the kernel says that there is no room."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store = DiskStore(StoreDirectory(root), MODEL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    header, data = entry("a")
    try:
        store.write(header, [memoryview(data)])
    except OSError as error:
        print(errno.errorcode[error.errno])


if __name__ == "__main__":
    {"write_half": write_half, "hammer": hammer, "fill": fill}[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
