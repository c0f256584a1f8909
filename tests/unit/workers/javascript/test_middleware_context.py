"""What the contexts of middlewares in JavaScript send, and what they take over."""

from typing import Any

import pytest

from workers.javascript.middleware_context import with_exact_integers

EXACT = 653247040368672769
#: as JavaScript writes it
SHOWN = 653247040368672800


@pytest.mark.parametrize(
    ("sent", "given", "exact"),
    [
        ({"id": EXACT}, {"id": SHOWN, "more": 1}, {"id": EXACT, "more": 1}),
        ({"ids": [1, EXACT]}, {"ids": [{"moved": SHOWN}]}, {"ids": [{"moved": EXACT}]}),
        ({"id": EXACT}, {"id": 2**60}, {"id": 2**60}),
        ({"id": -EXACT}, [-SHOWN, SHOWN], [-EXACT, SHOWN]),
        ({"id": EXACT}, {"text": str(SHOWN), "yes": True, "float": 1e300}, None),
        (None, SHOWN, SHOWN),
    ],
)
def test_integers_that_javascript_has_rounded_are_exact_again(sent: Any, given: Any, exact: Any) -> None:
    assert with_exact_integers(given, lambda: sent) == (given if exact is None else exact)


def test_two_integers_equal_in_javascript_are_error() -> None:
    with pytest.raises(ValueError, match="the same number in JavaScript"):
        with_exact_integers({"id": SHOWN}, lambda: [EXACT, EXACT + 1])


def test_value_without_large_integers_is_not_examined() -> None:
    value = {"id": 2**53 - 1}
    assert with_exact_integers(value, lambda: pytest.fail("looked at")) is value
