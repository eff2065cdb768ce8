"""Format durations."""


def duration(seconds: float) -> str:
    """Format a duration in its two largest units.

    >>> duration(45), duration(125), duration(3700), duration(604_800), duration(93_600)
    ('45 s', '2 min 5 s', '1 h 1 min', '7 d', '1 d 2 h')
    """
    left, parts = round(max(seconds, 0)), []
    for name, size in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append((f"{count} {name}", size))
    if not parts:
        return "0 s"
    first, second = parts[0], parts[1:2]
    near = [text for text, size in second if size * 60 >= first[1]]
    return " ".join([first[0], *near])
