"""Where settings come from: flags win over ``MINT_*`` variables, these over the YAML file.

The file is ``--config FILE``, or ``config.yaml`` in the home folder when there is one. Its keys are
the fields of :class:`~.settings.Settings`; a variable is ``MINT_`` and the key, but
``MINT_MODELS`` holds the aliases (``NAME=FOLDER,NAME=FOLDER``) and ``MINT_PRELOAD`` the models.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic_core import ErrorDetails

from mint.config_error import ConfigError, closest
from mint.home import CONFIG_FILE, default_home
from mint.service.admin.settings import Settings
from mint.settings import read_variables, reporting, variables

PREFIX = "MINT_"
VARIABLES = variables(Settings, PREFIX)
_NOT_IN_FILES = Settings.model_fields.keys() - VARIABLES
_YAML_END = "...\n"  # the library appends it to a bare number or word
_FOLDERS = {"home", "cache", "tls_certificate", "tls_key"}
_OF_CLIENTS = ("MINT_BASE_URL", "MINT_API_KEY")
_OTHER_FLAGS = {"models": "--model", "aliases": "--model", "parent_pid": "--parent"}


@dataclass(frozen=True)
class Configuration:
    """The effective settings and, for each that is not the default, where it was set."""

    settings: Settings
    sources: Mapping[str, str]

    def __str__(self) -> str:
        """Return YAML that ``--config`` reads, with the source of each key."""
        values = self.settings.model_dump(mode="json", exclude=_NOT_IN_FILES)
        if values["database_url"] is not None:
            from sqlalchemy import make_url

            values["database_url"] = str(make_url(values["database_url"]))  # without its password
        lines = []
        for key, value in values.items():
            text = yaml.safe_dump(value, default_flow_style=True, width=10**9)
            line = f"{key}: {text.removesuffix(_YAML_END).strip()}"
            lines.append(f"{line:<44} # {self.sources.get(key, 'default')}")
        return "\n".join(lines)


def load(flags: Mapping[str, Any], file: Path | None = None) -> Configuration:
    """Return the configuration of a service; a flag of None was not given. Raises ConfigError."""
    given = {key: value for key, value in flags.items() if value is not None}
    path = file or Path(given.get("home") or default_home()) / CONFIG_FILE
    if file is not None and not file.is_file():
        raise ConfigError(f"There is no configuration file {file}.")
    in_file = read_file(path)
    _refuse_misspelt_variables()
    sources = _find_sources(given, in_file, path)
    layers = (_beside(path, in_file), read_variables(Settings, PREFIX, os.environ), given)
    values = {key: value for layer in layers for key, value in layer.items()}
    aliases = [found for layer in layers if isinstance(found := layer.get("aliases"), Mapping)]
    if aliases:
        values["aliases"] = {name: folder for each in aliases for name, folder in each.items()}
    with reporting(Settings.model_fields, lambda key: f"{sources.get(key, 'default')}: ", _hint):
        return Configuration(Settings(**values), sources)


def _hint(fault: ErrorDetails) -> str:
    unknown = fault["type"] == "extra_forbidden"
    return " `mint serve --check-config` lists the settings." if unknown else ""


def read_file(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file; empty if there is no file."""
    if not path.is_file():
        return {}
    try:
        content = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must be a mapping, such as `port: 8000`.")
    for key in _NOT_IN_FILES:
        if key in content:
            raise ConfigError(f"{path}: {key} cannot be set in a file. Remove it.")
    return {str(key): value for key, value in content.items() if value is not None}


def _beside(path: Path, in_file: dict[str, Any]) -> dict[str, Any]:
    """Resolve the relative folders in a file against the folder of the file."""

    def resolve(value: Any) -> Any:
        return path.parent / Path(value).expanduser() if isinstance(value, str) else value

    resolved = {key: resolve(in_file[key]) for key in _FOLDERS & in_file.keys()}
    if isinstance(aliases := in_file.get("aliases"), dict):
        resolved["aliases"] = {str(name): resolve(folder) for name, folder in aliases.items()}
    return in_file | resolved


def _find_sources(
    flags: Mapping[str, Any], in_file: Mapping[str, Any], path: Path
) -> dict[str, str]:
    sources = {}
    for key in dict.fromkeys([*Settings.model_fields, *in_file]):
        variable = VARIABLES.get(key, "")
        found = [
            (key in flags, _OTHER_FLAGS.get(key, f"--{key.replace('_', '-')}")),
            (bool(os.environ.get(variable)), variable),
            (key in in_file, str(path)),
        ]
        names = [name for is_set, name in found if is_set]
        if names:
            sources[key] = " + ".join(names) if key == "aliases" else names[0]
    return sources


def _refuse_misspelt_variables() -> None:
    """Refuse variables that are almost a setting's. Others may belong to other programs."""
    known = VARIABLES.values()
    for name in os.environ.keys() - {*known, *_OF_CLIENTS}:
        if name.startswith(PREFIX) and (hint := closest(name, known, cutoff=0.85)):
            raise ConfigError(f"There is no setting {name}.{hint}")
