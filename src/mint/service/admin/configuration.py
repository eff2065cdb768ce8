"""Where settings come from: flags win over ``MINT_*`` variables, these over the YAML file.

The file is ``--config FILE``, or ``config.yaml`` in the home folder when there is one. Its keys are
the fields of :class:`~.settings.Settings`; a variable is ``MINT_`` and the key, but
``MINT_MODELS`` holds the aliases (``NAME=FOLDER,NAME=FOLDER``) and ``MINT_PRELOAD`` the models.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
)
from pydantic_settings.exceptions import SettingsError

from mint.home import CONFIG_FILE, default_home
from mint.service.admin.settings import Settings

_NO_VARIABLE = ("api_key", "parent_pid")  # MINT_API_KEY is the key that clients send
_YAML_END = "...\n"  # what the library puts after a bare number or word
_OF_CLIENTS = ("MINT_BASE_URL", "MINT_API_KEY")
_OTHER_VARIABLES = {"models": "MINT_PRELOAD", "aliases": "MINT_MODELS"}
_OTHER_FLAGS = {"models": "--model", "aliases": "--model", "parent_pid": "--parent"}


class ConfigurationError(ValueError):
    """A setting is wrong. The text says which, where it was set, and what would be right."""


@dataclass(frozen=True)
class Configuration:
    """The settings in force and, for each that is not the default, where it was set."""

    settings: Settings
    sources: Mapping[str, str]

    def __str__(self) -> str:
        """YAML as ``--config`` reads it, with the source of each key."""
        values = self.settings.model_dump(mode="json", exclude=set(_NO_VARIABLE))
        if values["database_url"] is not None:
            values["database_url"] = _without_password(values["database_url"])
        lines = []
        for key, value in values.items():
            text = yaml.safe_dump(value, default_flow_style=True, width=10**9)
            line = f"{key}: {text.removesuffix(_YAML_END).strip()}"
            lines.append(f"{line:<44} # {self.sources.get(key, 'default')}")
        return "\n".join(lines)


def _without_password(url: str) -> str:
    from sqlalchemy.engine import make_url

    return str(make_url(url))


def load(flags: Mapping[str, Any], file: Path | None = None) -> Configuration:
    """The configuration of a service. A flag that is None was not given.

    Raises ConfigurationError, which names the wrong key and the closest right one.
    """
    given = {key: value for key, value in flags.items() if value is not None}
    path = file or Path(given.get("home") or default_home()) / CONFIG_FILE
    if file is not None and not file.is_file():
        raise ConfigurationError(f"There is no configuration file {file}.")
    in_file = read_file(path)
    _refuse_misspelt_variables()
    sources = _sources_of(given, in_file, path)
    try:
        return Configuration(_merged(given, _beside(path, in_file)), sources)
    except SettingsError as error:
        raise ConfigurationError(str(error.__cause__)) from error
    except ValidationError as error:
        raise ConfigurationError(_describe(error, sources)) from error


def environment_variable(key: str) -> str | None:
    """The environment variable of a setting.

    >>> environment_variable("port"), environment_variable("aliases")
    ('MINT_PORT', 'MINT_MODELS')
    """
    return None if key in _NO_VARIABLE else _OTHER_VARIABLES.get(key, f"MINT_{key.upper()}")


def parse_aliases(entries: Iterable[str]) -> dict[str, Path]:
    """``NAME=FOLDER`` entries as a mapping.

    >>> parse_aliases(["a/b=models/b"])
    {'a/b': PosixPath('models/b')}
    """
    aliases = {}
    for entry in entries:
        name, _, folder = entry.partition("=")
        if not name or not folder:
            raise ConfigurationError(f"MINT_MODELS has {entry!r}: write NAME=FOLDER,NAME=FOLDER")
        aliases[name] = Path(folder)
    return aliases


# ---- the sources ---------------------------------------------------------------------------------


def _merged(flags: Mapping[str, Any], in_file: Mapping[str, Any]) -> Settings:
    class Sourced(BaseSettings, Settings):  # type: ignore[misc]
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            *_: PydanticBaseSettingsSource,
            **__: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            file = InitSettingsSource(settings_cls, dict(in_file))
            return init_settings, _Environment(settings_cls), file

    return Sourced(**flags)


class _Environment(EnvSettingsSource):
    """``MINT_*`` variables, with lists and aliases written as on the command line."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        variable = environment_variable(field_name)
        return os.environ.get(variable) or None if variable else None, field_name, False

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        entries = [entry.strip() for entry in value.split(",") if entry.strip()]
        return parse_aliases(entries) if field_name == "aliases" else entries


def read_file(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; empty when there is none."""
    if not path.is_file():
        return {}
    try:
        content = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path} is not valid YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path} must be a mapping, such as `port: 8000`.")
    for key in _NO_VARIABLE:
        if key in content:
            raise ConfigurationError(f"{path}: {key} cannot be set in a file. Remove it.")
    return {str(key): value for key, value in content.items() if value is not None}


def _beside(path: Path, in_file: dict[str, Any]) -> dict[str, Any]:
    """Relative folders in a file are relative to the file."""
    resolved = dict(in_file)
    for key in ("home", "cache"):
        if isinstance(resolved.get(key), str):
            resolved[key] = path.parent / Path(resolved[key]).expanduser()
    if isinstance(aliases := resolved.get("aliases"), dict):
        resolved["aliases"] = {
            str(name): path.parent / Path(folder).expanduser()
            if isinstance(folder, str)
            else folder
            for name, folder in aliases.items()
        }
    return resolved


def _sources_of(flags: Mapping[str, Any], in_file: Mapping[str, Any], path: Path) -> dict[str, str]:
    sources = {}
    for key in dict.fromkeys([*Settings.model_fields, *in_file]):
        variable = environment_variable(key) or ""
        found = [
            (key in flags, _OTHER_FLAGS.get(key, f"--{key.replace('_', '-')}")),
            (bool(os.environ.get(variable)), variable),
            (key in in_file, str(path)),
        ]
        names = [name for is_set, name in found if is_set]
        if names:
            sources[key] = " + ".join(names) if key == "aliases" else names[0]
    return sources


# ---- mistakes ------------------------------------------------------------------------------------


def _describe(error: ValidationError, sources: Mapping[str, str]) -> str:
    lines = []
    for fault in error.errors():
        key = str(fault["loc"][0])
        where = sources.get(key, "default")
        if fault["type"] == "extra_forbidden":
            lines.append(
                f"{where}: there is no setting {key!r}.{_guess(key, Settings.model_fields)}"
            )
        else:
            inside = "".join(f"[{part!r}]" for part in fault["loc"][1:])
            lines.append(f"{where}: {key}{inside} is {fault['input']!r}: {fault['msg']}.")
    return "\n".join(lines)


def _guess(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]}?" if close else " `mint serve --check-config` lists them."


def _refuse_misspelt_variables() -> None:
    """A variable that is almost a setting's is taken for a mistake; others are somebody else's."""
    known = {variable for key in Settings.model_fields if (variable := environment_variable(key))}
    for name in os.environ:
        if name.startswith("MINT_") and name not in known and name not in _OF_CLIENTS:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
            if close:
                raise ConfigurationError(f"There is no setting {name}. Did you mean {close[0]}?")
