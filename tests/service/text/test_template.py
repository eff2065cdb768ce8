"""Chat templates render as in transformers."""

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from mint.service.text.template import ChatTemplate

MESSAGES = [{"role": "user", "content": "é <b>"}, {"content": "again", "role": "user"}]


@pytest.mark.parametrize(
    "arguments",
    ["", "true", "false, 2", "indent=2", "false, none, (',', ':'), true", "sort_keys=true"],
)
def test_tojson_takes_the_arguments_of_transformers(arguments: str) -> None:
    source = "{{ messages | tojson(%s) }}" % arguments  # noqa: UP031 - braces are the template's
    (expected,), _ = render_jinja_template([MESSAGES], chat_template=source)
    assert ChatTemplate(source).render(messages=MESSAGES) == expected


def test_a_variable_of_the_request_may_have_any_name() -> None:
    template = ChatTemplate("{{ thinking }}")
    assert template.render(thinking=1, self=2, args=3, context=4) == "1"
