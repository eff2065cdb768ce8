"""Compile the kernels with the machine's C compiler, once, and load them.

The library is kept in the user's cache folder under a name that is a hash of all it depends on. It
uses the thread pool of torch: both name their OpenMP library ``libgomp.so.1``, and the loader takes
the one that is loaded already. Two pools would spin against each other.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor  # torch's OpenMP library must be loaded first

_SOURCES = sorted(Path(__file__).parent.glob("*.c"))
_FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-fopenmp", "-shared", "-fPIC")
_NEEDED = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16"}


class Unavailable(Exception):
    """The reason why there are no kernels on this machine, as a message."""


@cache
def load() -> ctypes.CDLL | Unavailable:
    """Return the kernels, compiled if need be, or why there are none."""
    try:
        flags = _cpu_flags()
        if not set(flags.split()) >= _NEEDED:
            raise Unavailable("this CPU has no AVX-512 products of bfloat16")
        if "amx_bf16" in flags.split():
            raise Unavailable("torch's products use this CPU's AMX units")
        return _load(flags)
    except Unavailable as error:
        return error
    except OSError as error:
        return Unavailable(f"they cannot be loaded ({error})")


def _load(cpu_flags: str) -> ctypes.CDLL:
    compiler = shutil.which("gcc")
    if compiler is None:
        raise Unavailable("there is no C compiler, type: apt-get install gcc libc6-dev")
    version = _run([compiler, "--version"])
    parts = (*(source.read_text() for source in _SOURCES), *_FLAGS, version, cpu_flags)
    name = f"kernels-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}.so"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    library = Path(base) / "mint" / name
    with suppress(OSError):  # not there yet, or cut short when the machine stopped
        return ctypes.CDLL(str(library))
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            os.replace(_compile(compiler, Path(folder) / name), library)
        return ctypes.CDLL(str(library))
    except OSError:  # no home, or none for files that are run: once per process
        with tempfile.TemporaryDirectory() as folder:
            return ctypes.CDLL(str(_compile(compiler, Path(folder) / name)))


def _compile(compiler: str, target: Path) -> Path:
    _run([compiler, *_FLAGS, *map(str, _SOURCES), "-o", str(target), "-lm"])
    return target


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[0]
        raise Unavailable(
            f"{command[0]} failed ({said}), type: apt-get install --reinstall gcc libc6-dev"
        )
    return done.stdout


def _cpu_flags() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return ""


def missing() -> str | None:
    """Return why there are no kernels on this machine, or None."""
    loaded = load()
    return str(loaded) if isinstance(loaded, Unavailable) else None


def call(name: str, *arguments: Any) -> None:
    """Call a kernel, where none are missing: tensors become pointers, integers 64 bits wide."""
    loaded = load()
    if isinstance(loaded, Unavailable):
        raise loaded
    getattr(loaded, name)(*map(_argument, arguments))


def _argument(value: Any) -> Any:
    if isinstance(value, Tensor):
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, ctypes.Structure | ctypes.Array):
        return ctypes.byref(value)
    if isinstance(value, float):
        return ctypes.c_float(value)
    return None if value is None else ctypes.c_int64(value)


def address(tensor: Tensor | None) -> int | None:
    """Return where a tensor is, as a field of a structure."""
    return None if tensor is None else tensor.data_ptr()
