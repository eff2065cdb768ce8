"""Suggestions for mistyped settings."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from mint.config_error import ConfigError, closest
from mint.rl.settings.config import SHORT_NAMES
from mint.settings import kind_of
from mint.training.groups import GROUPS

EXPERIMENT = "experiment"


def check_names(job: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` for the first setting that does not exist.

    >>> check_names({"training": {"stpes": 3}})
    Traceback (most recent call last):
    mint.rl.ConfigError: There is no setting training.stpes. Did you mean training.steps?
    """
    for group, values in job.items():
        if not isinstance(values, Mapping):
            if group not in GROUPS:
                raise _unknown(group)
            example = f"{group}.{next(iter(GROUPS[group].model_fields))}=..."
            raise ConfigError(f"{group} is {values!r}; it must be settings, as in {example}")
        for name, value in values.items():
            if name in GROUPS and isinstance(value, Mapping):
                raise ConfigError(
                    f"There is no setting {group}.{name}. A file of conf/{group} that sets {name} "
                    "must begin with the line `# @package _global_`."
                )
            check_key(f"{group}.{name}", value)


def check_key(key: str, value: Any = None) -> None:
    """Raise :class:`ConfigError` for a setting that does not exist, and below one that is a single
    value."""
    group, _, rest = key.partition(".")
    name, *below = rest.split(".")
    own = GROUPS[group].model_fields if group in GROUPS else {}
    if name not in own:
        raise _unknown(key)
    if (below or isinstance(value, Mapping)) and kind_of(own[name]) is not dict:
        raise ConfigError(f"{group}.{name} is a single value and has no settings of its own.")


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


def _unknown(key: str) -> ConfigError:
    """The error for a setting that does not exist, with the nearest that does."""
    hint = _nearest(key) or f"The groups are {', '.join(GROUPS)}; --help lists their settings."
    return ConfigError(f"There is no setting {key}. {hint}")


def _nearest(key: str) -> str:
    group, _, name = key.rpartition(".")
    name = SHORT_NAMES.get(name, name)
    places = {each: place for place, own in GROUPS.items() for each in own.model_fields}
    if name in places:
        return f"It is {places[name]}.{name}."
    for known in ([each for each in places if places[each] == group], places):
        if found := get_close_matches(name, known, n=1):
            return f"Did you mean {places[found[0]]}.{found[0]}?"
    found = get_close_matches(key, [*GROUPS, EXPERIMENT], n=1)
    return f"Did you mean {found[0]}=...?" if found and not group else ""
