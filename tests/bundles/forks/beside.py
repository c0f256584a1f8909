"""A file beside an entry."""


def triple(number: int) -> int:
    return 3 * number
