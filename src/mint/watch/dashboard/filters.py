"""The filters of a search, and their SQL."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

_COMPONENT = "list_extract(map_extract(components, ?), 1)"
_ERRORS = {"any": "error IS NOT NULL", "none": "error IS NULL"}
_Text = Annotated[str, Field(max_length=1_000)] | None
_Number = Annotated[float, Field(allow_inf_nan=False)] | None
_Step = Annotated[int, Field(ge=-(2**62), le=2**62)] | None


class BadFilter(ValueError):
    """A search that cannot be carried out; the text says what to change."""


class Filter(BaseModel):
    """Conditions on rollouts, in SQL with the field's type; all that are given must hold.

    >>> where, values = Filter(text="42", reward_min=0.5).sql()
    >>> where
    '(contains(response, ?) OR contains(prompt, ?)) AND reward >= ?'
    >>> values
    ['42', '42', 0.5]
    """

    model_config = ConfigDict(frozen=True)

    text: Annotated[_Text, "(contains(response, ?) OR contains(prompt, ?))"] = None
    regex: Annotated[_Text, "regexp_matches(response, ?)"] = None
    reward_min: Annotated[_Number, "reward >= ?"] = None
    reward_max: Annotated[_Number, "reward <= ?"] = None
    component: Annotated[_Text, f"{_COMPONENT} IS NOT NULL"] = None
    component_min: Annotated[_Number, f"{_COMPONENT} >= ?"] = None
    component_max: Annotated[_Number, f"{_COMPONENT} <= ?"] = None
    stop: Annotated[Literal["stop", "length"] | None, "stop = ?"] = None
    error: Annotated[_Text, "contains(error, ?)"] = None
    step_min: Annotated[_Step, "step >= ?"] = None
    step_max: Annotated[_Step, "step <= ?"] = None

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Self:
        """Read a filter from query parameters; empty ones are ignored.

        >>> Filter.read({"reward_min": "0.5", "text": ""}) == Filter(reward_min=0.5)
        True
        """
        try:
            chosen = cls.model_validate({name: text for name, text in given.items() if text})
        except ValidationError as error:
            first = error.errors()[0]
            raise BadFilter(f"{first['loc'][0]}: {first['msg']}.") from None
        if chosen.component is None and (chosen.component_min, chosen.component_max) != (None,) * 2:
            raise BadFilter("component_min and component_max require component=NAME.")
        return chosen

    def sql(self) -> tuple[str, list[Any]]:
        """Return the condition and its values. Regular expressions are RE2's: linear in time."""
        parts: list[str] = []
        values: list[Any] = []
        for name, value in self:
            if value is None:
                continue
            if name == "error" and value in _ERRORS:
                parts.append(_ERRORS[value])
                continue
            (condition,) = type(self).model_fields[name].metadata
            parts.append(condition)
            of_component = [self.component] if name.startswith("component_") else []
            values += [*of_component, *[value] * (condition.count("?") - len(of_component))]
        return " AND ".join(parts) or "true", values

    def may_be_in(self, first: int, last: int) -> bool:
        """Return whether a file with this range of steps can have hits."""
        return (self.step_min is None or last >= self.step_min) and (
            self.step_max is None or first <= self.step_max
        )
