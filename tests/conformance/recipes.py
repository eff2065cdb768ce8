"""Runs recipes of the unmodified tinker-cookbook, one after the other, each by its command line.

    python recipes.py '{"sft": ["tinker_cookbook.recipes.sl_loop", "batch_size=4"]}'

It runs in the environment of the cookbook and prints how each recipe ended, as JSON. One process
for all of them, because importing the cookbook takes longer than any of these runs.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback


def run(module: str, arguments: list[str]) -> str:
    """Run a recipe to its end; "" or the traceback of its failure."""
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except (Exception, SystemExit):
        return traceback.format_exc()
    return ""


def main() -> None:
    recipes = json.loads(sys.argv[1])
    report = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    failures = {name: run(module, arguments) for name, (module, *arguments) in recipes.items()}
    print(json.dumps(failures), file=report, flush=True)


if __name__ == "__main__":
    main()
