"""Arguments that may come as one object, as the documents' TypeScript writes them, or one by one."""

from collections.abc import Mapping
from typing import Any

from pydantic.alias_generators import to_camel

from goondan_tasks.wording import hint


def fields_of(request: Any, first: str, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was asked for, by the names of ``named``: keyword arguments, ``None`` if left out.

    ``request`` is a mapping of the same fields, in snake_case or camelCase; or the value of ``first``.

    Raises:
        TypeError: it has another field, or one that a keyword argument has as well.
    """
    if request is None:
        return dict(named)
    if not isinstance(request, Mapping):
        request = {first: request}
    spelled = {to_camel(name): name for name in named} | {name: name for name in named}
    fields = dict(named)
    for key, value in request.items():
        name = spelled.get(key)
        if name is None:
            raise TypeError(f"there is no field {key!r:.100}. {hint(str(key), list(spelled))}".strip())
        if fields[name] is not None and value is not None:
            raise TypeError(f"{name} is given twice")
        fields[name] = value if value is not None else fields[name]
    return fields
