"""Templates and tags."""

from __future__ import annotations

import pytest

from mint.rewards import match_format_approximately, match_format_exactly

ANSWER = "The answer is [NUM]."
TAGS = "<reasoning>…</reasoning><answer>…</answer>"


@pytest.mark.parametrize(
    ("response", "template", "expected"),
    [
        ("The answer is 4.", ANSWER, 1.0),
        ("2 + 2 = 4. The answer is 4.", ANSWER, 1.0),
        ("The answer is 4. \n", ANSWER, 1.0),
        ("The answer is -1,234.5.", ANSWER, 1.0),
        ("The answer is \u22124.", ANSWER, 1.0),
        ("The answer is $4.", ANSWER, 1.0),
        ("The answer is 50%.", ANSWER, 1.0),
        (r"The answer is \frac{1}{2}.", ANSWER, 1.0),
        ("The answer is 1.5×10^3.", ANSWER, 1.0),
        ("The answer is ４.", ANSWER, 1.0),
        ("The answer is 4. I am sure.", ANSWER, 0.5),
        ("The answer is four.", ANSWER, 0.5),
        ("The answer is 4", ANSWER, 0.0),
        ("2 plus 2 equals 4.", ANSWER, 0.0),
        ("the answer is 4.", ANSWER, 0.0),
        ("", ANSWER, 0.0),
        (None, ANSWER, 0.0),
        ("[NUM]", "[NUM]", 0.0),
        ("4", "[NUM]", 1.0),
        ("4 apples", "[NUM]", 0.5),
        ("apples", "[NUM]", 0.0),
        ("50%", "[NUM]%", 1.0),
        ("Because it is so. Result: 4", "Because [TEXT] Result: [NUM]", 1.0),
        ("Because Result: 4", "Because [TEXT] Result: [NUM]", 0.5),
        ("a [b] (c) 4", "a [b] (c) [NUM]", 1.0),
        ("anything", "[TEXT]", 1.0),
        ("  ", "[TEXT]", 0.0),
        ("<reasoning>r</reasoning><answer>4</answer>", TAGS, 1.0),
        ("<reasoning>r</reasoning>\n<answer>4</answer>\n", TAGS, 1.0),
        ("Well. <reasoning>r</reasoning> <answer>4</answer>", TAGS, 1.0),
        ("<reasoning>r</reasoning><answer>4</answer> done", TAGS, 0.5),
        ("<reasoning>r</reasoning><answer>3</answer><answer>4</answer>", TAGS, 0.5),
        ("<answer>4</answer><reasoning>r</reasoning>", TAGS, 0.0),
        ("<reasoning>r</reasoning><answer></answer>", TAGS, 0.5),
        ("<reasoning>r</reasoning>", TAGS, 0.0),
        ("<answer>4</answer>", "<answer>[NUM]</answer>", 1.0),
        ("<answer>four</answer>", "<answer>[NUM]</answer>", 0.5),
    ],
)
def test_match_format_exactly(response: str | None, template: str, expected: float) -> None:
    assert match_format_exactly(response, template) == expected


@pytest.mark.parametrize(
    ("response", "template", "expected"),
    [
        ("The answer is 4.", ANSWER, 1.0),
        ("4", ANSWER, 1 / 3),
        ("", ANSWER, 0.0),
        (None, ANSWER, 0.0),
        ("<reasoning>r</reasoning><answer>4</answer>", TAGS, 1.0),
        ("<reasoning>r</reasoning><answer>4", TAGS, 3 / 4),
        ("<reasoning>r</reasoning><answer>4</answer><answer>5</answer>", TAGS, 2 / 4),
    ],
)
def test_match_format_approximately(response: str | None, template: str, expected: float) -> None:
    assert match_format_approximately(response, template) == pytest.approx(expected)
