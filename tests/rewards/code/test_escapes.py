"""Programs that try to get out, to cheat or to do harm: all score 0 and leave nothing behind."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mint.rewards import CallTest, CodeReward, Limits, StdioTest
from tests.processes import descendants_of

pytestmark = pytest.mark.sandbox

LIMITS = Limits(wall_seconds=1.0, cpu_seconds=1, memory_mb=256, files_mb=4, output_kb=64)
SECRET = "mint-secret-31337"

# Each defines answer(); the right one is the secret, which only a successful attack could know.
ATTACKS = {
    "network": """
import socket
def answer():
    return socket.create_connection(("127.0.0.1", PORT), timeout=1).recv(100).decode()
""",
    "network by number": """
import _socket
def answer():
    s = _socket.socket(2, 1, 0); s.connect(("127.0.0.1", PORT)); return s.recv(100).decode()
""",
    "name resolution": """
import socket
def answer(): return socket.getaddrinfo("localhost", PORT) and socket.gethostname()
""",
    "fork bomb": """
import os
def answer():
    while True: os.fork()
""",
    "fork bomb at load": """
import os
while True: os.fork()
""",
    "process by clone": """
import ctypes
libc = ctypes.CDLL(None)
def answer():
    for number in (56, 57, 58, 435, 220): libc.syscall(number, 17, 0, 0, 0, 0)
    return "still one process"
""",
    "subprocess": """
import subprocess
def answer(): return subprocess.run(["cat", "FILE"], capture_output=True).stdout.decode()
""",
    "thread bomb": """
import threading, time
def answer():
    while True: threading.Thread(target=time.sleep, args=(60,)).start()
""",
    "reading the host": """
def answer(): return open("FILE").read()
""",
    "reading the password file": """
def answer(): return open("/etc/passwd").read()
""",
    "walking the host": """
import os
def answer():
    for folder, _, names in os.walk("/"):
        for name in names:
            if "secret" in name: return open(os.path.join(folder, name)).read()
""",
    "reading the environment": """
import os
def answer(): return os.environ["MINT_TEST_SECRET"]
""",
    "proc": """
def answer(): return open("/proc/1/environ").read() or open("/proc/self/mountinfo").read()
""",
    "memory of others": """
import ctypes
def answer():
    for pid in range(1, 100):
        if ctypes.CDLL(None).ptrace(16, pid, 0, 0) == 0: return "attached"
""",
    "symlink": """
import os
def answer():
    os.symlink("FILE", "/tmp/link"); return open("/tmp/link").read()
""",
    "hard link": """
import os
def answer():
    os.link("/box/solution.py", "/tmp/link"); os.link("FILE", "/tmp/other")
    return open("/tmp/other").read()
""",
    "filling the disk": """
def answer():
    for n in range(10000):
        with open(f"/tmp/{n}", "wb") as file: file.write(bytes(1 << 20))
""",
    "one huge file": """
def answer():
    with open("/tmp/huge", "wb") as file:
        while True: file.write(bytes(1 << 20))
""",
    "memory": """
def answer():
    kept = []
    while True: kept.append(bytearray(1 << 24))
""",
    "hidden memory": """
import ctypes, os
def answer():
    fd = os.memfd_create("x")
    while True: os.write(fd, bytes(1 << 20))
""",
    "writing outside": """
import os
def answer():
    for path in ("FOLDER/written", "/box/x", "/usr/lib/x", "/x", "/dev/shm/x", "/dev/x"):
        try: open(path, "w").write("x")
        except OSError: continue
        return path
""",
    "signals to others": """
import os, signal
def answer():
    for pid in (HOST, os.getppid(), 1, -1):
        try: os.kill(pid, signal.SIGKILL)
        except OSError: pass
    return "sent"
""",
    "namespaces": """
import ctypes
def answer(): return str(ctypes.CDLL(None).unshare(0x10000000))
""",
    "huge output": """
def answer(): return "x" * (1 << 24)
""",
    "endless output": """
def answer():
    while True: print("x" * 1000)
""",
    "infinite loop": """
def answer():
    while True: pass
""",
    "infinite loop at load": """
while True: pass
""",
    "ignoring signals": """
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
def answer():
    while True: pass
""",
    "sys.exit": """
import sys
sys.exit(0)
""",
    "os._exit": """
import os
os._exit(0)
""",
    "exit in the call": """
import os
def answer(): os._exit(0)
""",
    "exit by an exception": """
def answer(): raise SystemExit(0)
""",
    "equality": """
class Equal:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
def answer(): return Equal()
""",
    "equality of a text": """
class Equal(str):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = str.__hash__
def answer(): return Equal("anything")
""",
    "comparing and calculating": """
class All:
    def __getattr__(self, name): return All()
    def __call__(self, *args): return True
    def __lt__(self, other): return True
    __gt__ = __le__ = __ge__ = __contains__ = __lt__
    def __sub__(self, other): return 0
    __rsub__ = __add__ = __radd__ = __sub__
    def __bool__(self): return True
def answer(): return All()
""",
    "patching the built-ins": """
import builtins
builtins.AssertionError = type("Quiet", (Exception,), {})
builtins.isinstance = lambda *args: True
def answer(): return "patched"
""",
    "tampering with the harness": """
import sys
main = sys.modules["__main__"]
main.answer = lambda request, program: "tampered"
main.wire.encode = lambda value, refer: b"t"
def answer(): return "x"
""",
    "forged messages": """
import os, sys
fd = int(sys.argv[1])
body = b"m4:s4:testi0;s6:passedt"
os.write(fd, b"%012d" % len(body) + body)
def answer(): return "x"
""",
    "flooding the checker": """
import os, sys
fd = int(sys.argv[1])
while True: os.write(fd, b"000000000001n" * 1000)
""",
    "colliding values": """
def answer(): return {n * (2**61 - 1) for n in range(2000)}
""",
    "reading the tests": """
import os, gc
def answer():
    for folder, _, names in os.walk("/box"):
        for name in names:
            text = open(os.path.join(folder, name)).read()
            if "mint-secret" in text and "31337" in text and name != "solution.py": return text
    for item in gc.get_objects():
        if isinstance(item, str) and item.startswith("mint-" + "secret"): return item
""",
    "reading the caller": """
import sys
def answer():
    frame = sys._getframe()
    while frame:
        for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
            if isinstance(value, str) and value.startswith("mint-" + "secret"): return value
        frame = frame.f_back
""",
    "deep recursion": """
def answer():
    value = []
    for _ in range(100000): value = [value]
    return value
""",
}


@pytest.fixture
def port() -> Iterator[int]:
    """Where a server of the host tells the secret to whoever connects."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(SECRET.encode())

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def attack(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Fills in the host's real file, folder, process and port."""
    (tmp_path / "secret.txt").write_text(SECRET)
    monkeypatch.setenv("MINT_TEST_SECRET", SECRET)
    places = {
        "FILE": tmp_path / "secret.txt",
        "FOLDER": tmp_path,
        "HOST": os.getpid(),
        "PORT": port,
    }

    def filled(name: str) -> str:
        code = ATTACKS[name]
        for word, value in places.items():
            code = code.replace(word, str(value))
        return code

    return filled


def secret_tests() -> list[str | CallTest]:
    return [
        f"assert answer() == {SECRET!r}",
        f"assert len(answer()) < 1000 and answer() in ({SECRET!r},)",
        CallTest("answer", [], SECRET),
    ]


def test_a_program_that_knows_the_secret_passes_so_the_attacks_could() -> None:
    code = f"def answer(): return {SECRET!r}"
    assert float(CodeReward(tests=secret_tests(), limits=LIMITS)(code) or 0) == 1.0


def test_the_secret_can_be_had_outside_the_sandbox(
    attack: Callable[[str], str], port: int, tmp_path: Path
) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        assert connection.recv(100).decode() == SECRET
    assert str(tmp_path) in attack("reading the host")


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_scores_zero_and_leaves_nothing_behind(
    name: str, attack: Callable[[str], str], tmp_path: Path
) -> None:
    before = descendants_of()
    score = CodeReward(tests=secret_tests(), limits=LIMITS)(attack(name))
    assert score is not None
    assert score.total == 0.0
    assert descendants_of() <= before
    assert [path.name for path in tmp_path.iterdir()] == ["secret.txt"]


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_as_a_program_scores_zero(
    name: str, attack: Callable[[str], str], tmp_path: Path
) -> None:
    before = descendants_of()
    reward = CodeReward(tests=[StdioTest("", SECRET)], limits=LIMITS)
    score = reward(f"{attack(name)}\nprint(answer())")
    assert score is not None
    assert score.total == 0.0
    assert descendants_of() <= before
    assert [path.name for path in tmp_path.iterdir()] == ["secret.txt"]


def test_runs_do_not_see_each_other() -> None:
    write = "import os\ndef answer(): open('/tmp/left', 'w').write('x'); return os.listdir('/tmp')"
    reward = CodeReward(tests=[CallTest("answer", [], ["left"])])
    assert float(reward(write) or 0) == 1.0
    assert float(reward("import os\ndef answer(): return os.listdir('/tmp')") or 0) == 0.0


def test_a_tolerant_assert_cannot_be_talked_into_passing() -> None:
    tests = ["assert abs(f() - 1.41) < 0.01", "assert f() > 1", "assert 3 in f()"]
    code = ATTACKS["comparing and calculating"].replace("answer", "f")
    assert float(CodeReward(tests=tests, limits=LIMITS)(code) or 0) == 0.0
