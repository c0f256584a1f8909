"""Texts with places to fill: ``{{slot}}`` in a Schedule, ``{{answer}}`` in the reply of a Connection."""

import re
from collections.abc import Mapping
from typing import Any

_PLACE = re.compile(r"\{\{\s*([^{}\s]{1,200})\s*\}\}")


def filled(value: Any, texts: Mapping[str, str]) -> Any:
    """Return any JSON with each ``{{name}}`` in its texts replaced; a name that is not known stays."""
    if isinstance(value, str):
        return _PLACE.sub(lambda place: texts.get(place[1], place[0]), value)
    if isinstance(value, list | tuple):
        return [filled(item, texts) for item in value]
    if isinstance(value, dict):
        return {name: filled(item, texts) for name, item in value.items()}
    return value
