"""What a device authorization endpoint answers (RFC 8628 §3.2)."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from goondan_tasks.oauth.records import DeviceCode

#: a day; no user takes longer, and a clock takes it
_LONGEST_SECONDS = 86_400


def device_code_of(fields: Mapping[str, Any]) -> DeviceCode | None:
    """Read a device code; ``None`` if it cannot be used. Google calls the place ``verification_url``."""
    place = fields.get("verification_uri") or fields.get("verification_url")
    try:
        device = DeviceCode.model_validate({**fields, "verification_uri": place})
    except ValidationError:
        return None
    is_whole = bool(device.user_code and device.device_code.get_secret_value())
    is_timely = 0 < device.expires_in <= _LONGEST_SECONDS and 0 < device.interval <= device.expires_in
    places = (device.verification_uri, device.verification_uri_complete or device.verification_uri)
    return device if is_whole and is_timely and all(map(_is_web, places)) else None


def _is_web(place: str) -> bool:
    """Say whether a link leads to a page, whatever else a provider may call a link."""
    return place.startswith(("https://", "http://"))
