"""Suggestions for mistyped settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from mint.rl.settings.config import SHORT_NAMES
from mint.rl.settings.options import ConfigError, closest
from mint.training.groups import OPEN, settings

EXPERIMENT = "experiment"


def check_names(job: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` for the first setting that does not exist.

    >>> check_names({"training": {"stpes": 3}})
    Traceback (most recent call last):
    mint.rl.ConfigError: There is no setting training.stpes. Did you mean training.steps?
    """
    groups = settings()
    for group, values in job.items():
        if not isinstance(values, Mapping):
            raise _no_settings(group, values) if group in groups else unknown(group)
        for name, value in values.items():
            if name in groups and isinstance(value, Mapping):
                raise ConfigError(
                    f"There is no setting {group}.{name}. A file of conf/{group} that sets {name} "
                    "must begin with the line `# @package _global_`."
                )
            _check_setting(f"{group}.{name}", value)


def check_key(key: str) -> None:
    """Raise :class:`ConfigError` for what is typed below a setting that is one value."""
    setting = ".".join(key.split(".")[:2])
    if setting != key:
        _check_setting(setting, {key.removeprefix(f"{setting}."): "..."})


def _check_setting(key: str, value: Any) -> None:
    if key not in _keys():
        raise unknown(key)
    if isinstance(value, Mapping) and key not in OPEN:
        raise ConfigError(f"{key} is a single value and has no settings of its own: {value}.")


def _no_settings(group: str, value: Any) -> ConfigError:
    example = f"{group}.{next(iter(settings()[group]))}=..."
    return ConfigError(f"{group} is {value!r}; it must be settings, as in {example}")


def check_choice(group: str, choice: str, choices: Iterable[str]) -> None:
    """Raise :class:`ConfigError` for a file that a group does not have.

    >>> check_choice("task", "arithmatic", ["arithmetic", "chat"])
    Traceback (most recent call last):
    mint.rl.ConfigError: There is no task=arithmatic. Did you mean 'arithmetic'? \
The files in conf/task are: arithmetic, chat.
    """
    files = list(choices)
    if choice not in files:
        raise ConfigError(
            f"There is no {group}={choice}.{closest(choice, files)} "
            f"The files in conf/{group} are: {', '.join(files) or 'none'}."
        )


def unknown(key: str) -> ConfigError:
    """The error for a setting that does not exist, with the nearest that does."""
    near = _nearest(key)
    hint = near or f"The groups are {', '.join(settings())}; --help lists their settings."
    return ConfigError(f"There is no setting {key}. {hint}")


def _nearest(key: str) -> str:
    group, _, name = key.rpartition(".")
    name = SHORT_NAMES.get(name, name)
    known = _keys()
    elsewhere = [each for each in known if each.endswith(f".{name}")]
    if elsewhere:
        return f"It is {elsewhere[0]}."
    own = [each for each in known if each.startswith(f"{group}.")]
    for places in (own, known):
        names = {each.partition(".")[2]: each for each in places}
        if found := get_close_matches(name, names, n=1):
            return f"Did you mean {names[found[0]]}?"
    groups = get_close_matches(key, [*settings(), EXPERIMENT], n=1)
    return f"Did you mean {groups[0]}=...?" if groups and not group else ""


def _keys() -> list[str]:
    return [f"{group}.{name}" for group, own in settings().items() for name in own]
