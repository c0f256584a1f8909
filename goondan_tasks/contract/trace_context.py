"""W3C's ``tracestate`` and ``baggage``, which go with a call beside its ids; see docs/how-to/trace.md.

Both come from others, so what is too long or malformed is left out: a trace without them is whole.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

#: the limits of the W3C recommendations: characters, and members of each
LONGEST = {"tracestate": 512, "baggage": 8_192}
MOST_MEMBERS = {"tracestate": 32, "baggage": 64}
#: key=value, without the rules for what a value means; neither has a comma
_MEMBERS = {
    "tracestate": re.compile(r"[a-z0-9][a-z0-9_*/@-]{0,255}=[ -+\--<>-~]{0,256}"),
    "baggage": re.compile(r"[!#-'*+\-.0-9A-Z^_`a-z|~]+[ \t]*=[\t !#-+\--\[\]-~]*"),
}


def sound_context(given: Any) -> dict[str, str] | None:
    """Return what is valid of ``tracestate`` and ``baggage``; ``None`` if nothing is."""
    if not isinstance(given, Mapping):
        return None
    found = {name: text for name in LONGEST if (text := given.get(name)) and _is_sound(name, text)}
    return found or None


def _is_sound(name: str, text: Any) -> bool:
    if not isinstance(text, str) or len(text) > LONGEST[name]:
        return False
    members = [member.strip(" \t") for member in text.split(",")]
    return len(members) <= MOST_MEMBERS[name] and all(map(_MEMBERS[name].fullmatch, members))


#: of a record
TraceContext = Annotated[dict[str, str] | None, BeforeValidator(sound_context)]
