"""Compose jobs from the files of ``conf/`` and the command line, with Hydra but without its
folders.

An override may be written with or without ``+``. Every setting is checked by its name here and by
its value in :mod:`mint.jobs.job`, before anything is loaded.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, OverrideParseException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException
from yaml import YAMLError

from mint.config_error import ConfigError, closest
from mint.jobs.bundled import bundled
from mint.jobs.settings import CONFIG_GROUPS, defaults
from mint.jobs.typed_text import read_escapes, readable
from mint.rl.settings.config import SHORT_NAMES
from mint.settings import plain_type

CONFIG, PAST, EXPERIMENT = "config", "past_run", "experiment"
FOLDERS = (*CONFIG_GROUPS, EXPERIMENT)  # the folders of ``conf/``


@dataclass(frozen=True)
class Composed:
    """A job: all its settings, and the overrides in which it differs from others of its sweep."""

    job: dict[str, Any]
    swept: tuple[str, ...] = ()


class BundledConf(SearchPathPlugin):
    """Adds mint's own ``conf/`` to Hydra's search path, after the user's."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("mint", str(bundled() / "conf"))


Plugins.instance().register(BundledConf)


def find_conf(folder: Path | None) -> Path:
    """Return the folder of settings: the one that is named, or ``conf`` here, or mint's own."""
    named = folder or Path("conf")
    if any(named.rglob("*.yaml")):
        return named.resolve()
    if folder is not None:
        raise ConfigError(f"There is no YAML file in {folder}. Name a folder that contains some.")
    return bundled() / "conf"


def compose_jobs(
    conf: Path,
    overrides: Sequence[str],
    sweep: bool = False,
    past: Mapping[str, Any] | None = None,
) -> list[Composed]:
    """Return the job of some overrides, or with ``sweep`` one for each combination of values.

    The overrides change the ``past`` job of a run, if it is given.
    """
    known = defaults()
    if past is not None:
        known = {group: {**values, **past[group]} for group, values in known.items()}
    ConfigStore.instance().store(name="settings", node=known)
    ConfigStore.instance().store(name=PAST, node={"defaults": ["settings", "_self_"]})
    primary = CONFIG if past is None else PAST
    with initialize_config_dir(str(conf), version_base="1.3"):
        try:
            typed = {each.key_or_group: each for each in _parsed(overrides)}  # the last wins
            values = [_values(each, sweep) for each in typed.values()]
            swept = [key for key, each in typed.items() if each.is_sweep_override()]
            chosen = (dict(zip(typed, each, strict=True)) for each in product(*values))
            jobs = [_composed(primary, each, swept) for each in chosen]
        except OverrideParseException as error:
            raise _unreadable(error.override) from None
        except InterpolationResolutionError as error:
            raise _unresolved(error) from None
        except (HydraException, OmegaConfBaseException, YAMLError) as error:
            texts = [str(each) for each in (error, error.__cause__) if each is not None]
            raise ConfigError(" ".join(" ".join(texts).split())) from None
    for each in jobs:
        _locate_files(each.job, [conf.parent, bundled()])
    return jobs


def list_choices(conf: Path) -> dict[str, list[str]]:
    """Return the files of every group."""
    with initialize_config_dir(str(conf), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        return {group: loader.get_group_options(group) for group in FOLDERS}


def _parsed(overrides: Sequence[str]) -> list[Override]:
    loader = GlobalHydra.instance().config_loader()
    parser = OverridesParser.create(config_loader=loader)
    return parser.parse_overrides([readable(each, parser) for each in overrides])


def _unreadable(text: str | None) -> ConfigError:
    return ConfigError(
        f"{text!r} cannot be parsed. Write it as training.steps=10; values with commas, spaces or "
        "brackets need quotes: 'task.arguments.x=\"a, b\"'"
    )


def _unresolved(error: InterpolationResolutionError) -> ConfigError:
    if variable := re.search(r"\$\{oc\.env:(\w+)\}", str(error.child_node)):
        return ConfigError(
            f"{error.full_key} uses the environment variable {variable[1]}, which is not set. "
            f"Type: export {variable[1]}=... or {error.full_key}=..."
        )
    return ConfigError(" ".join(str(error).split()))


def _values(override: Override, sweep: bool) -> list[str]:
    """Return the values of an override: several in a sweep."""
    key = override.key_or_group
    if not key:
        raise _unreadable(override.input_line)
    if override.is_delete():
        raise ConfigError(f"{override.input_line}: a setting cannot be removed. Write {key}=...")
    if override.is_hydra_override():
        raise ConfigError(
            f"{override.input_line}: mint uses Hydra only to compose settings; Hydra's "
            "own settings have no effect. The run directory is logging.run_dir."
        )
    if override.package is not None or "/" in key:
        raise ConfigError(
            f"{override.input_line}: groups cannot be moved to another package. Write GROUP=FILE."
        )
    if not override.is_sweep_override():
        return [override.get_value_element_as_str()]
    if not sweep:
        as_list = f" A list is {key}=[a,b]" if _takes_list(key) else ""
        raise ConfigError(
            f"{override.input_line} has several values. `mint train --multirun` runs each.{as_list}"
        )
    if not override.is_discrete_sweep():
        raise ConfigError(f"{override.input_line}: write the values, as in {key}=1,2,3")
    values = list(override.sweep_string_iterator())
    if not values:
        raise ConfigError(f"{override.input_line} has no values. Write them: {key}=1,2,3")
    return values


def _takes_list(key: str) -> bool:
    group, _, name = key.partition(".")
    own = CONFIG_GROUPS[group].model_fields if group in CONFIG_GROUPS else {}
    return name.startswith("arguments.") or (name in own and plain_type(own[name]) is tuple)


def _composed(primary: str, typed: Mapping[str, str], swept: Sequence[str]) -> Composed:
    for key, value in typed.items():
        _check_typed(primary, key, value)
    group = "" if primary == CONFIG else "+"  # only config.yaml has chosen files already
    lines = [f"{group if key in FOLDERS else '++'}{key}={value}" for key, value in typed.items()]
    container = OmegaConf.to_container(compose(primary, lines), resolve=True)
    assert isinstance(container, dict)
    job = {str(group): values for group, values in container.items()}
    check_names(job)
    for key in typed:
        read_escapes(job, key)
    if not job.keys() >= CONFIG_GROUPS.keys():
        raise ConfigError(
            f"{CONFIG}.yaml must have `settings` as the first of its defaults: it provides the "
            "default of every setting. See conf/config.yaml in the repository."
        )
    plain = {key: re.sub(r"\\(.)", r"\1", typed[key]) for key in swept}  # as they were typed
    return Composed(job, tuple(f"{key}={value}" for key, value in plain.items()))


def _check_typed(primary: str, key: str, value: str) -> None:
    if key not in FOLDERS:
        check_key(key)
    elif key == EXPERIMENT and primary == PAST:
        raise ConfigError(
            f"{key}={value} selects all settings, and checkpoint=RUN_DIR has those of its run. "
            "Leave it out, or name the checkpoint by its tinker:// path."
        )
    elif (key, value) != (EXPERIMENT, "null"):
        files = GlobalHydra.instance().config_loader().get_group_options(key)
        if value not in files:
            raise ConfigError(
                f"There is no {key}={value}.{closest(value, files)} "
                f"The files in conf/{key} are: {', '.join(files) or 'none'}."
            )


def _locate_files(job: dict[str, Any], roots: Sequence[Path]) -> None:
    """Look for files here, then in the folder that contains ``conf/``, then among mint's own."""
    for values, name in ((job["task"], "adapter"), (job["training"], "reward_function")):
        place = str(values[name] or "").rpartition(":")[0]
        if place.endswith(".py") and not Path(place).is_file():
            found = [root for root in roots if (root / place).is_file()]
            values[name] = str(found[0] / values[name]) if found else values[name]


# ---- settings and files that do not exist ----


def check_names(job: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` for the first setting that does not exist.

    >>> check_names({"training": {"stpes": 3}})
    Traceback (most recent call last):
    mint.rl.ConfigError: There is no setting training.stpes. Did you mean training.steps?
    """
    for group, values in job.items():
        if not isinstance(values, Mapping):
            if group not in CONFIG_GROUPS:
                raise _unknown(group)
            example = f"{group}.{next(iter(CONFIG_GROUPS[group].model_fields))}=..."
            raise ConfigError(f"{group} is {values!r}; it must be settings, as in {example}")
        for name, value in values.items():
            if name in CONFIG_GROUPS and isinstance(value, Mapping):
                raise ConfigError(
                    f"There is no setting {group}.{name}. A file of conf/{group} that sets {name} "
                    "must begin with the line `# @package _global_`."
                )
            check_key(f"{group}.{name}", value)


def check_key(key: str, value: Any = None) -> None:
    """Raise :class:`ConfigError` for a setting that is unknown or nested in a single value."""
    group, _, rest = key.partition(".")
    name, *below = rest.split(".")
    own = CONFIG_GROUPS[group].model_fields if group in CONFIG_GROUPS else {}
    if name not in own:
        raise _unknown(key)
    if (below or isinstance(value, Mapping)) and plain_type(own[name]) is not dict:
        raise ConfigError(f"{group}.{name} is a single value and has no settings of its own.")


def _unknown(key: str) -> ConfigError:
    """Return the error for an unknown setting, with a suggestion."""
    group, _, name = key.rpartition(".")
    name = SHORT_NAMES.get(name, name)
    places = {each: place for place, own in CONFIG_GROUPS.items() for each in own.model_fields}
    own = [each for each in places if places[each] == group]
    near = get_close_matches(name, own, n=1) or get_close_matches(name, places, n=1)
    folder = [] if group else get_close_matches(key, [*CONFIG_GROUPS, EXPERIMENT], n=1)
    hint = f"The groups are {', '.join(CONFIG_GROUPS)}; --help lists their settings."
    if name in places:
        hint = f"It is {places[name]}.{name}."
    elif near:
        hint = f"Did you mean {places[near[0]]}.{near[0]}?"
    elif folder:
        hint = f"Did you mean {folder[0]}=...?"
    return ConfigError(f"There is no setting {key}. {hint}")
