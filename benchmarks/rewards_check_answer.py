"""How many short plain-number responses ``check_answer`` scores per second, on one core."""

from __future__ import annotations

import time

from mint.rewards import check_answer

COUNT = 100_000
SHAPES = (
    "{n}",
    "The answer is {n}.",
    "2 + 2 = {n}. The answer is {n}.",
    "So there are {n} apples.",
)


def main() -> None:
    """Print responses per second for each shape and over all."""
    total = 0.0
    for shape in SHAPES:
        responses = [shape.format(n=number) for number in range(COUNT // len(SHAPES))]
        golds = [str(number) for number in range(len(responses))]
        started = time.process_time()
        right = sum(map(check_answer, responses, golds))
        seconds = time.process_time() - started
        total += seconds
        assert right == len(responses)
        print(f"{shape:>35}: {len(responses) / seconds:9,.0f} responses/s")
    print(f"{'all':>35}: {COUNT / total:9,.0f} responses/s")


if __name__ == "__main__":
    main()
