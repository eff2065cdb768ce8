"""The sandbox for model code: bubblewrap with limits, and without network and host files."""

import contextlib
import marshal
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import MAGIC_NUMBER
from pathlib import Path

from mint.rewards.code import seccomp

_PYTHON = os.path.realpath(sys.executable)
_HOST_LIBRARIES = ("/usr/lib", "/usr/lib64", "/usr/lib32", "/lib", "/lib64")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
_ERRORS_KEPT = 4000


class SandboxUnavailable(RuntimeError):
    """Model code cannot be run safely here; the text says why and what to install."""


@dataclass(frozen=True)
class Limits:
    """Limits of a run in the sandbox. A run is one process: the sandbox refuses new ones.

    ``wall_seconds`` is for one test, ``cpu_seconds`` and ``memory_mb`` for one process,
    ``files_mb`` for all it writes, ``output_kb`` for what it prints or returns.
    """

    wall_seconds: float = 5.0
    cpu_seconds: int = 5
    memory_mb: int = 512
    files_mb: int = 16
    open_files: int = 64
    output_kb: int = 256

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise ValueError(f"Limits.{name} must be positive, not {value}.")


@dataclass(frozen=True)
class Ran:
    """The result of a program: its output, and why it stopped."""

    stdout: bytes
    stderr: bytes
    returncode: int
    stopped: str | None = None

    @property
    def ended_well(self) -> bool:
        """Whether the program ended by itself and without an error."""
        return self.stopped is None and self.returncode == 0


class Sandbox:
    """Starts Python programs in a fresh, empty, limited environment each.

    >>> Sandbox().run("print(int(input()) + 1)", stdin=b"41").stdout
    b'42\\n'
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        _check()

    def run(self, source: str, stdin: bytes = b"") -> Ran:
        """Run a program to its end, or until a limit stops it."""
        files = {"program.py": source.encode(errors="replace")}
        with _in_memory(stdin) as given, _in_memory() as printed, _in_memory() as errors:
            streams = given, printed, errors
            with self.started("program.py", files, streams=streams) as process:
                stopped = None
                try:
                    process.wait(self.limits.wall_seconds)
                except subprocess.TimeoutExpired:
                    stopped = f"took longer than {self.limits.wall_seconds:g} s"
            most = self.limits.output_kb * 1024
            stdout = os.pread(printed, most + 1, 0)
            if len(stdout) > most:
                stopped = f"printed more than {self.limits.output_kb} kB"
            start = max(0, os.fstat(errors).st_size - _ERRORS_KEPT)
            stderr = os.pread(errors, _ERRORS_KEPT, start)
        return Ran(stdout[:most], stderr, process.returncode, stopped)

    @contextlib.contextmanager
    def started(
        self,
        script: str,
        files: Mapping[str, bytes],
        arguments: Sequence[str] = (),
        pass_fds: Sequence[int] = (),
        streams: tuple[int, int, int] = (subprocess.DEVNULL,) * 3,
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Yield a process that runs one of the ``files``, which are under /box; kill it at the end.

        ``streams`` are its standard input, output and error. As files, they are bounded by the
        limit of what it may write.
        """
        stdin, stdout, stderr = streams
        limits = self.limits
        limited = (
            f"ulimit -t {limits.cpu_seconds}; ulimit -v {limits.memory_mb * 1024}; "
            f"ulimit -f {limits.files_mb * 2048}; ulimit -n {limits.open_files}; ulimit -c 0; "
            'exec "$@"'
        )
        shell = ["/bin/sh", "-c", limited, "sandbox"]
        python = [_PYTHON, "-I", "-S", "-B", f"/box/{script}", *arguments]
        with contextlib.ExitStack() as descriptors:
            program = descriptors.enter_context(_in_memory(seccomp.filter_program()))
            box: list[str] = []
            held = [program]
            for name, content in files.items():
                held.append(descriptors.enter_context(_in_memory(content)))
                box += ["--ro-bind-data", str(held[-1]), f"/box/{name}"]
            process = subprocess.Popen(
                [*shell, *_bubblewrap(limits), *box, *_sealed(program), *python],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=[*held, *pass_fds],
                env={"PATH": os.defpath},
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@cache
def compiled(script: str) -> bytes:
    """Return one of our own scripts as .pyc bytes: compiling is a third of a short run."""
    path = Path(__file__).parent / "inside" / f"{script}.py"
    code = compile(path.read_text(encoding="utf-8"), f"/box/{script}.py", "exec")
    return MAGIC_NUMBER + bytes(12) + marshal.dumps(code)


@cache
def _bubblewrap(limits: Limits) -> list[str]:
    binary = shutil.which("bwrap")
    assert binary is not None
    command = [binary, "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
    command += ["--uid", "65534", "--gid", "65534", "--hostname", "box", "--cap-drop", "ALL"]
    command += ["--clearenv", "--setenv", "LANG", "C.UTF-8", "--setenv", "HOME", "/tmp"]
    for path in _libraries():
        if os.path.islink(path):
            command += ["--symlink", os.readlink(path).lstrip("/"), path]
        else:
            command += ["--ro-bind", path, path]
    for folder in _installed_packages():
        command += ["--size", "4096", "--tmpfs", folder, "--remount-ro", folder]
    for device in _DEVICES:
        command += ["--dev-bind", device, device]
    command += ["--size", str(limits.files_mb << 20), "--tmpfs", "/tmp"]
    return [*command, "--dir", "/box"]


def _sealed(filter_descriptor: int) -> list[str]:
    return ["--remount-ro", "/", "--chdir", "/tmp", "--seccomp", str(filter_descriptor), "--"]


def _libraries() -> list[str]:
    """Return the interpreter, its standard library and the C library; nothing else of the host."""
    prefix = Path(sys.base_prefix)
    own = [path for path in (prefix / "lib", prefix / "lib64") if path.is_dir()]
    paths = [path for path in _HOST_LIBRARIES if os.path.isdir(path)]
    return list(dict.fromkeys([*paths, *map(str, own), _PYTHON]))


def _installed_packages() -> list[str]:
    """Package folders inside the bound libraries: hidden, they may hold datasets with answers."""
    folders = [
        folder
        for path in _libraries()
        if os.path.isdir(path) and not os.path.islink(path)
        for pattern in ("python3*/site-packages", "python3*/dist-packages", "python3/*-packages")
        for folder in map(str, Path(path).glob(pattern))
        if os.path.realpath(folder) == folder
    ]
    return sorted(set(folders))


@cache
def _check() -> None:
    """Try the sandbox once; say what is missing if it does not work."""
    if shutil.which("bwrap") is None:
        raise SandboxUnavailable(
            "Model code runs only in a sandbox, and bubblewrap is not installed. On Debian or "
            "Ubuntu, type: apt-get install bubblewrap"
        )
    if platform.machine() not in seccomp.ARCHITECTURES:
        raise SandboxUnavailable(
            "Model code runs only in a sandbox, whose system-call filter supports x86-64 and "
            "arm64. Score code on such a machine."
        )
    with _in_memory(seccomp.filter_program()) as program:
        command = [*_bubblewrap(Limits()), *_sealed(program), _PYTHON, "-I", "-S", "-c", ""]
        tried = subprocess.run(
            command, capture_output=True, pass_fds=[program], env={"PATH": os.defpath}, timeout=60
        )
    if tried.returncode != 0:
        raise SandboxUnavailable(
            "bubblewrap is installed but cannot create a sandbox here: "
            f"{tried.stderr.decode(errors='replace').strip()[:300]}. User namespaces must be "
            "allowed: see the sysctl user.max_user_namespaces and, on Ubuntu, "
            "kernel.apparmor_restrict_unprivileged_userns."
        )


@contextlib.contextmanager
def _in_memory(content: bytes = b"") -> Iterator[int]:
    """Return a file in memory, positioned at its beginning."""
    with os.fdopen(os.memfd_create("box"), "r+b") as file:
        file.write(content)
        file.seek(0)
        yield file.fileno()
