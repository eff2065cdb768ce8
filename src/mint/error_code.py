"""The codes of failed requests, for programs that must tell one failure from another."""

import re

import tinker

_CODE = re.compile(r"\[([a-z_]+)\](?: for self\.request_id=|$)")


def error_code(error: tinker.RequestFailedError) -> str | None:
    """Return the code of a failed request, such as ``not_finite``; None if it has none.

    The wire protocol has no field for a code, and the SDK passes on only the text and the category
    of a failure. So a mint service writes the code in brackets at the end of the text.

    >>> user = tinker.types.RequestErrorCategory.User
    >>> error_code(tinker.RequestFailedError("The loss is NaN. [not_finite]", "1", user))
    'not_finite'
    """
    found = _CODE.search(error.message)
    return found[1] if found else None
