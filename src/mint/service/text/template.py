"""Chat templates: Jinja that comes with the model, run in a sandbox with what its authors use."""

import json
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mint.service.errors import UserError


class ChatTemplate:
    """A compiled template.

    >>> ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}").render(
    ...     messages=[{"role": "user", "content": "Hi"}]
    ... )
    '<user>Hi'
    """

    def __init__(self, source: str) -> None:
        self.knows_developer = "developer" in source
        try:
            self._template: Template = _environment().from_string(source)
        except TemplateError as error:
            raise UserError(f"The model's chat template cannot be parsed: {error}") from error

    def render(self, /, **variables: Any) -> str:
        """Return the text of a conversation. Raises UserError with the template's own message."""
        try:
            return self._template.render(variables)
        except Exception as error:  # templates fail in as many ways as Python does
            raise UserError(
                f"The model's chat template does not accept these messages: {error}. "
                "Check the roles, their order and the tools."
            ) from error


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


class _Generation(Extension):
    """``{% generation %}`` marks what to train on, and has no effect on rendering."""

    tags = {"generation"}  # noqa: RUF012  (as the base class declares it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Encode a value with the arguments of transformers' filter; Jinja's own escapes HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
