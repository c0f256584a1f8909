"""What a device authorization endpoint answers (RFC 8628 §3.2)."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from goondan_tasks.oauth.records import DeviceCode


def device_code_of(fields: Mapping[str, Any]) -> DeviceCode | None:
    """Read a device code; ``None`` if it is incomplete. Google calls the place ``verification_url``."""
    place = fields.get("verification_uri") or fields.get("verification_url")
    try:
        device = DeviceCode.model_validate({**fields, "verification_uri": place})
    except ValidationError:
        return None
    complete = bool(device.user_code and device.device_code.get_secret_value() and device.expires_in > 0)
    return device if complete and device.interval > 0 else None
