"""What a device authorization endpoint may answer."""

from typing import Any

import pytest

from goondan_tasks.oauth.device_reply import device_code_of

_REPLY = {
    "device_code": "secret",
    "user_code": "WDJB-MJHT",
    "verification_uri": "https://slack.example/device",
    "expires_in": 600,
}


def test_a_device_code_is_read_and_polled_every_five_seconds_unless_it_says_otherwise() -> None:
    device = device_code_of(_REPLY)

    assert device is not None
    assert (device.user_code, device.interval, device.device_code.get_secret_value()) == (
        "WDJB-MJHT",
        5,
        "secret",
    )


def test_google_calls_the_place_by_another_name() -> None:
    place = _REPLY["verification_uri"]
    device = device_code_of({**_REPLY, "verification_uri": None, "verification_url": place})

    assert device is not None and device.verification_uri == place


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("device_code", ""),
        ("device_code", None),
        ("user_code", ""),
        ("verification_uri", "javascript:alert(1)"),
        ("verification_uri", None),
        ("verification_uri_complete", "file:///etc/passwd"),
        ("expires_in", 0),
        ("expires_in", "soon"),
        ("expires_in", 10**12),
        ("interval", 0),
        ("interval", 601),
    ],
)
def test_one_that_cannot_be_used_is_none(field: str, value: Any) -> None:
    assert device_code_of({**_REPLY, field: value}) is None
