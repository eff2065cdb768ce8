"""Reward code: run the model's program against tests, in the sandbox."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mint.rewards.answers.extraction import last_block
from mint.rewards.code.inside.wire import Gone, MessageSocket
from mint.rewards.code.sandbox import Limits, Sandbox, compiled
from mint.rewards.code.tests import (
    AssertTest,
    CallTest,
    CodeTest,
    StdioTest,
    assert_module,
    read_test,
)
from mint.rewards.reward import SingleReward
from mint.rewards.score import Sample, Score

_PYTHON = frozenset(["py", "python", "python3"])
_CHECKER_LIMITS = Limits(cpu_seconds=60, memory_mb=1024)
_STARTING_SECONDS = 10.0


class BrokenTest(RuntimeError):
    """A test that cannot be run, whatever the program does."""


@dataclass(frozen=True)
class TestResult:
    """The result of a test, with the reason if it failed."""

    __test__ = False  # not for pytest to collect

    passed: bool
    error: str = ""


def extract_code(response: str | None) -> str:
    r"""Return the last Python block of a response, or the whole response when there is no block.

    A block without a language counts only when no block says that it is Python.

    >>> extract_code("Here:\n```python\nx = 1\n```\nDone.")
    'x = 1\n'
    """
    code = last_block(response or "", _PYTHON)
    return (response or "") if code is None else code


class CodeReward(SingleReward):
    """The share of tests that the code of a response passes.

    Tests are given here, or per sample in ``metadata["tests"]``. With ``partial_credit=False``
    only a program that passes all of them is rewarded.

    >>> reward = CodeReward(tests=["assert add(2, 3) == 5", "assert add(0, 0) == 0"])
    >>> reward("```python\\ndef add(a, b): return a + b\\n```").total
    1.0
    >>> reward("```python\\ndef add(a, b): return 5\\n```").total
    0.5
    """

    name = "code"

    def __init__(
        self,
        tests: Sequence[CodeTest | str | Mapping[str, Any]] | None = None,
        limits: Limits | None = None,
        partial_credit: bool = True,
        setup: str = "",
        parallel: int | None = None,
    ) -> None:
        self.sandbox = Sandbox(limits)
        self.tests = [read_test(test) for test in tests] if tests is not None else None
        self.partial_credit = partial_credit
        self.setup = setup
        self.parallel = parallel or 3 * (os.cpu_count() or 1)  # starting is mostly waiting

    async def score_one(self, sample: Sample) -> Score:
        tests = self.tests
        if tests is None:
            tests = [read_test(test) for test in sample.metadata.get("tests", ())]
        if not tests:
            raise BrokenTest(
                "There are no tests for this sample. Pass CodeReward(tests=[...]), or add 'tests' "
                "to the sample's metadata."
            )
        results = await asyncio.to_thread(self.run, extract_code(sample.response), tests)
        passed = sum(result.passed for result in results)
        share = passed / len(results)
        total = share if self.partial_credit else float(share == 1.0)
        components = {"tests": len(results), "passed": passed, "share": share}
        return Score(total, components, {"passed": _reason(results)})

    def run(self, code: str, tests: Sequence[CodeTest]) -> list[TestResult]:
        """Run a program against tests; one result per test, in order."""
        checked = [test for test in tests if not isinstance(test, StdioTest)]
        results = iter(_run_checker(self.sandbox, code, checked, self.setup) if checked else [])
        return [
            self._stdio(code, test) if isinstance(test, StdioTest) else next(results)
            for test in tests
        ]

    def _stdio(self, code: str, test: StdioTest) -> TestResult:
        ran = self.sandbox.run(code, test.stdin.encode())
        if not ran.ended_well:
            errors = ran.stderr.decode(errors="replace").strip().splitlines()
            return TestResult(False, ran.stopped or (errors[-1][:500] if errors else "ended badly"))
        if test.accepts(ran.stdout):
            return TestResult(True)
        return TestResult(False, f"printed {ran.stdout[:200].decode(errors='replace')!r}")


def _reason(results: Sequence[TestResult]) -> str:
    """Say how many tests passed, and why the first that failed did."""
    failed = [(number, each) for number, each in enumerate(results, 1) if not each.passed]
    first = [f"; test {number}: {each.error or 'failed'}" for number, each in failed[:1]]
    return f"{len(results) - len(failed)} of {len(results)} tests passed{''.join(first)}"


def _run_checker(
    sandbox: Sandbox, code: str, tests: Sequence[CallTest | AssertTest], setup: str
) -> list[TestResult]:
    """Run tests in one sandbox against the program in another, with a socket between them.

    The checker asks for a fresh program when the last one ended; this side only starts processes
    and passes descriptors. It never reads what the program writes.
    """
    asserts = [test for test in tests if isinstance(test, AssertTest)]
    module, names = assert_module(tuple(asserts), setup)
    seconds = sandbox.limits.wall_seconds
    job = {
        "seconds": seconds,
        "limit": sandbox.limits.output_kb * 1024,
        "names": names,
        "tests": [
            test.message() if isinstance(test, CallTest) else {"assert": asserts.index(test)}
            for test in tests
        ],
    }
    deadline = time.monotonic() + _STARTING_SECONDS + (seconds + 1.0) * len(tests)
    host, theirs = socket.socketpair()
    with host, contextlib.ExitStack() as checker:
        with theirs:
            files = {"asserts.py": module.encode()}
            checker.enter_context(_connected(Sandbox(_CHECKER_LIMITS), "checker", theirs, files))
        control = MessageSocket(host.fileno())
        control.send(job)
        results = [TestResult(False, "not run: out of time")] * len(tests)
        was_started = False
        with contextlib.ExitStack() as program, contextlib.suppress(Gone):
            while True:
                report = control.receive(deadline)
                if "need" in report:
                    was_started = True
                    program.close()
                    program.enter_context(_program(sandbox, code, host))
                elif "unsupported" in report:
                    raise BrokenTest(f"A test cannot be run: {report['unsupported']}.")
                elif "test" in report:
                    results[report["test"]] = TestResult(report["passed"], report["error"])
                elif "done" in report:
                    return results
    if not was_started:
        raise BrokenTest("The tests could not be started; try them on a known program.")
    return results


@contextlib.contextmanager
def _program(sandbox: Sandbox, code: str, host: socket.socket) -> Iterator[None]:
    """Start the program, and send the checker a socket to it."""
    ours, theirs = socket.socketpair()
    files = {"solution.py": code.encode(errors="replace")}
    limit = str(sandbox.limits.output_kb * 1024)
    with ours, theirs, _connected(sandbox, "model", theirs, files, limit):
        theirs.close()
        socket.send_fds(host, [b"p"], [ours.fileno()])
        ours.close()
        yield


def _connected(
    sandbox: Sandbox, script: str, end: socket.socket, files: Mapping[str, bytes], *arguments: str
) -> contextlib.AbstractContextManager[Any]:
    """Start one of our own scripts, which holds one end of a socket."""
    own = {f"{name}.pyc": compiled(name) for name in (script, "wire")}
    descriptor = end.fileno()
    return sandbox.started(
        f"{script}.pyc", {**own, **files}, [str(descriptor), *arguments], [descriptor]
    )
