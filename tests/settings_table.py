"""The settings of a model as the documentation lists them."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel

from mint.settings import variables


def table(model: type[BaseModel], prefix: str, defaults: Mapping[str, str], about: str) -> str:
    """Return the settings as a Markdown table; ``about`` is the heading of the last column."""
    rows = [f"| setting | default | variable | {about} |", "|---|---|---|---|"]
    for name, variable in variables(model, prefix).items():
        description = " ".join((model.model_fields[name].description or "").split())
        rows.append(f"| `{name}` | `{defaults[name]}` | `{variable}` | {description} |")
    return "\n".join(rows)
