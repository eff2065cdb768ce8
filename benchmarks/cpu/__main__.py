"""Measure mint and its peers on two CPU cores, in turns, and write benchmarks/results/cpu.json.

    make bench
    python -m benchmarks.cpu --rounds 5 --peers vllm,transformers,peft
    python -m benchmarks.cpu --trl          # with a GRPO step of TRL: make trl-env first

Sampling is measured for each peer in turn with mint, then training and a whole GRPO step. The
machine's own speed is measured in every round. What came out so far is written after every round.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.cpu.contenders import (
    DEFAULT_FAMILIES,
    FAMILIES,
    REPOSITORY,
    Contender,
    Process,
    environment,
    find_contenders,
    missing_environments,
)
from benchmarks.cpu.peer import Peer, PeerFailed
from benchmarks.cpu.workload import Workload, make_workload

SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
RESULTS = REPOSITORY / "benchmarks/results/cpu.json"
PRECISIONS = ("auto", "exact", "bfloat16", "half")


class Comparison:
    """The measurements of a run, and the processes that make them."""

    def __init__(self, options: argparse.Namespace, folder: Path, work: Workload) -> None:
        self.options = options
        self.folder = folder
        self.work = work
        self.result: dict[str, Any] = {
            "kind": "cpu",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": describe_machine(options.cores),
            "settings": {
                "model": options.model or SMOLLM2,
                "precision": options.precision,
                "rounds": options.rounds,
                "prompts": len(work.prompts_P_T),
                "group": work.group,
                "prompt_tokens": [len(prompt) for prompt in work.prompts_P_T],
                "long": options.long,
                "short": options.short,
                "train_tokens": work.train_tokens,
                "rank": work.rank,
            },
            "contenders": {},
            "ceilings": [],
            "measurements": [],
        }

    def run(self, contenders: Sequence[Contender]) -> None:
        """Measure every session; mint and the machine are there in all of them."""
        with ExitStack() as stack:
            size = ["--size", str(self.options.matmul_size)] if self.options.matmul_size else []
            machine = stack.enter_context(self._start(_ours("machine", *size), keep_still=True))
            mint = stack.enter_context(self._start(self._mint(), keep_still=False))
            self.result["mint"] = mint.facts
            self.result["gap"] = mint.ask("gap", tokens=self.options.long)
            self.result["beside"] = mint.ask("beside", tokens=self.options.short)
            sessions = groupby(contenders, key=lambda contender: contender.session)
            for members in [list(members) for _, members in sessions] or [[]]:
                self._run_session(members, mint, machine)

    def _run_session(self, contenders: list[Contender], mint: Peer, machine: Peer) -> None:
        with ExitStack() as stack:
            peers = self._start_peers(contenders, stack)
            alive = [c for c in contenders if c.process.name in peers]
            if contenders and not alive:
                return
            for number in range(self.options.rounds):
                turn = [c for c in alive if number == 0 or not c.once]
                if contenders and not turn:
                    break
                self.result["ceilings"].append(machine.ask("measure"))
                for contender in turn:
                    self._take_turns(number, contender, peers[contender.process.name], mint)
                self._measure_alone(number, contenders, mint)
                self.save()

    def _start_peers(self, contenders: list[Contender], stack: ExitStack) -> dict[str, Peer]:
        """Start the processes of a session. One that fails is a result too."""
        peers: dict[str, Peer] = {}
        errors: dict[str, str] = {}
        for contender in contenders:
            process = contender.process
            if process.name not in peers and process.name not in errors:
                try:
                    peers[process.name] = stack.enter_context(self._start(process))
                except PeerFailed as error:
                    errors[process.name] = str(error)
                    print(f"  {error}", flush=True)
            started = peers.get(process.name)
            self.result["contenders"][contender.name] = {
                "label": contender.label,
                "family": contender.family,
                "work": contender.work,
                "facts": started.facts if started else {},
                "error": errors.get(process.name),
            }
        return peers

    def _take_turns(self, number: int, contender: Contender, peer: Peer, mint: Peer) -> None:
        """Measure a peer, then mint, for every size of its work."""
        for job in self._jobs(contender.work):
            try:
                self._measure(number, contender.name, peer, job, contender.options)
            except PeerFailed as error:
                self.result["contenders"][contender.name]["error"] = str(error)
                print(f"  {error}", flush=True)
                return
            self._measure(number, "mint", mint, job)

    def _measure_alone(self, number: int, contenders: list[Contender], mint: Peer) -> None:
        """Measure what mint does and no peer of the session did: a GRPO step, mostly."""
        done = {contender.work for contender in contenders}
        wanted = {"step"} if contenders else {"sample", "train", "step"}
        for work in sorted(wanted - done):
            for job in self._jobs(work):
                self._measure(number, "mint", mint, job)

    def _jobs(self, work: str) -> Iterator[dict[str, Any]]:
        if work == "sample":
            yield from ({"do": work, "tokens": n} for n in (self.options.long, self.options.short))
        elif work == "step":
            yield {"do": work, "tokens": self.options.short}
        else:
            yield {"do": work}

    def _measure(
        self, number: int, who: str, peer: Peer, job: dict[str, Any], more: Any = None
    ) -> None:
        what = "-".join(str(part) for part in job.values())
        answer = peer.ask(**job, **(more or {}))
        self.result["measurements"].append({"round": number, "what": what, "who": who, **answer})
        rate = answer["tokens"] / answer["seconds"]
        print(f"  {number + 1} {what:10} {who:30} {answer['seconds']:8.2f} s {rate:9.1f} tok/s")
        sys.stdout.flush()

    def _mint(self) -> Process:
        home = str(self.folder / "home")
        variables = {"MINT_HOME": home, "MINT_PRECISION": self.options.precision}
        return _ours("mint", variables=variables)

    def _start(self, process: Process, keep_still: bool = True) -> Peer:
        print(f"Starting {process.name}.", flush=True)
        command = [str(process.python), "-m", process.module]
        command += ["--workload", str(self.folder / "workload.json"), *process.arguments]
        log = self.folder / f"{process.name}.log"
        return Peer(process.name, command, environment(process.variables), log, keep_still)

    def save(self) -> None:
        """Write what there is."""
        self.options.out.parent.mkdir(parents=True, exist_ok=True)
        self.options.out.write_text(json.dumps(self.result, indent=1) + "\n")


def _ours(name: str, *arguments: str, variables: dict[str, str] | None = None) -> Process:
    module = f"benchmarks.cpu.side_{name}"
    return Process(name, module, Path(sys.executable), arguments, variables or {})


def describe_machine(cores: Sequence[int]) -> dict[str, Any]:
    """Return what the figures were measured on, and which commit."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": len(cores),
        "system": platform.platform(),
        "python": platform.python_version(),
        "commit": describe_commit(),
        "load_before": os.getloadavg()[0],
    }


def describe_commit() -> str:
    """Return the commit of this folder; a plus says that files were changed since."""
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--peers",
        default=",".join(DEFAULT_FAMILIES),
        help=f"of {', '.join(FAMILIES)}, or one by its name such as vllm-bfloat16-merged; "
        "none measures mint alone (default: %(default)s)",
    )
    parser.add_argument("--trl", action="store_true", help="a GRPO step of TRL too")
    parser.add_argument("--precision", choices=PRECISIONS, default="auto", help="mint's")
    parser.add_argument("--model", help=f"a folder with weights; default: where {SMOLLM2} is")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the JSON to write")
    parser.add_argument("--logs", type=Path, help="a folder to keep the logs of all sides in")
    parser.add_argument("--cores", type=int, default=2, help="how many to use")
    sizes = {"prompts": 8, "group": 6, "long": 64, "short": 16}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--matmul-size", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = [] if options.peers == "none" else options.peers.split(",")
    options.cores = sorted(os.sched_getaffinity(0))[: options.cores]
    try:
        options.contenders = find_contenders(names + ["trl"] * options.trl, options.cores)
    except ValueError as error:
        parser.error(f"--peers: {error}")
    if missing := missing_environments(options.contenders):
        parser.error("\n".join(missing))
    return options


def main() -> None:
    options = parse()
    os.sched_setaffinity(0, options.cores)  # which the processes of all sides inherit
    from mint.catalog import Catalog

    model = Path(options.model) if options.model else Catalog().locate(SMOLLM2)
    with tempfile.TemporaryDirectory(prefix="mint-bench-") as scratch:
        folder = options.logs or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        work = make_workload(model, folder, options.prompts, options.group, options.short)
        work.save(folder)
        comparison = Comparison(options, folder, work)
        try:
            comparison.run(options.contenders)
        except PeerFailed as error:
            comparison.save()
            sys.exit(
                f"{error}\n--logs FOLDER keeps the logs. What was measured is in {options.out}"
            )
    print(f"Wrote {options.out}. Type: python -m benchmarks.report")


if __name__ == "__main__":
    main()
