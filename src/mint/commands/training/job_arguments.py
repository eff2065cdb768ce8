"""The command line of ``mint train`` and ``mint eval``: overrides, and a few options."""

import argparse
import json
import re
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mint.config_error import ConfigError
from mint.jobs.compose import Composed, compose_jobs, find_conf, list_choices
from mint.jobs.job import as_yaml, check
from mint.jobs.settings import CONFIG_GROUPS, defaults


class Arguments(argparse.Namespace):
    """The parsed command line."""

    overrides: list[str]
    multirun = False
    cfg: str | None
    help: bool
    config_dir: Path | None
    usage: str

    def jobs(self, past: Mapping[str, Any] | None = None) -> list[Composed] | None:
        """Return the jobs, checked without loading; None after printing help or settings."""
        if self.help:
            print(_fit(self.usage + _settings_text(self.config_dir)))
            return None
        jobs = compose_jobs(find_conf(self.config_dir), self.overrides, self.multirun, past)
        if self.cfg:
            for composed in jobs:
                print(f"--- # {' '.join(composed.swept)}\n" if self.multirun else "", end="")
                print(as_yaml(composed.job), end="", flush=True)
        for composed in jobs:
            check(composed.job)
        return None if self.cfg else jobs


def read_arguments(
    arguments: Sequence[str], program: str, usage: str, conf: Path | None, sweeps: bool
) -> Arguments:
    """Parse the command line. A mistake ends with exit code 2, as argparse does."""
    text = usage.format(program=program)
    parser = argparse.ArgumentParser(program, text.partition("\n")[0][7:], add_help=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("-c", "--cfg", choices=["job"])
    parser.add_argument("--config-dir", type=Path, default=conf)
    if sweeps:
        parser.add_argument("-m", "--multirun", action="store_true")
    return parser.parse_intermixed_args(list(arguments), Arguments(usage=text))


def _settings_text(conf: Path | None) -> str:
    """Return help on the groups, their files, and every setting with its default."""
    lines = ["\nGROUP=FILE:\n"]
    try:
        files = list_choices(find_conf(conf))
    except ConfigError as error:
        lines.append(f"  {error}")
    else:
        lines += [f"  {group + '=':<13}{', '.join(names)}" for group, names in files.items()]
    values = defaults()
    lines.append("\nGROUP.SETTING=DEFAULT, before any file:")
    for group, known in CONFIG_GROUPS.items():
        lines.append("")
        for name, each in known.model_fields.items():
            value = values[group][name]
            shown = value if isinstance(value, str) else json.dumps(value)
            lines.append(f"  {group}.{name}={shown}\n      {each.description}")
    return "\n".join(lines)


def _fit(text: str) -> str:
    """Fit a help text to the width of the terminal. Lines without an indent form paragraphs."""
    width = shutil.get_terminal_size().columns
    fitted = []
    for line in re.sub(r"(?<=\S)\n(?=\S)", " ", text).split("\n"):
        column = re.match(r" +(?:\S.*?  +)?|", line)  # where the text of an option begins
        indent = " " * (column.end() if column else 0)
        fitted.append(textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False))
    return "\n".join(fitted)
