"""Arguments and outputs as JSON for people: shown, changed in a form, compared; without secrets."""

import json
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from typing import Any

from broker_config import serializer
from goondan_tasks.contract.errors import ToolInputValidationError
from goondan_tasks.contract.messages import JsonObject, ToolCall
from goondan_tasks.contract.redaction import MASK, beginning_of, hidden_by_place, hidden_in_log
from goondan_tasks.ledger.completions import is_same_json
from goondan_web.doors.console.rendering import SHOWN_CHARACTERS


def shown_json(value: Any) -> dict[str, Any]:
    """Return a JSON value as text for people, without secrets: its beginning, and its size in bytes."""
    beginning, is_whole = beginning_of(value, SHOWN_CHARACTERS)
    hidden = hidden_in_log(beginning)
    text = hidden_by_place(
        hidden if isinstance(hidden, str) else json.dumps(hidden, ensure_ascii=False, indent=2)
    )
    size = len(serializer.encode(value))
    is_cut = not is_whole or len(text) > SHOWN_CHARACTERS
    return {"text": text[:SHOWN_CHARACTERS], "size": size, "isCut": is_cut}


def editable(args: Any) -> str | None:
    """Return arguments as JSON for a form, with secrets masked; ``None`` if a form cannot show them."""
    shown = _masked(args)
    text = shown_lines(shown)
    is_clear = hidden_by_place(text) == text and _has_all_names(shown, args)
    return text if len(text) <= SHOWN_CHARACTERS and is_clear else None


def restored(edited: Any, args: Any) -> Any:
    """Return the arguments that a form means: what stands there masked as it was shown stays as it is.

    Raises:
        ToolInputValidationError: a mask is in another place, or may stand for several secrets; or a form
            cannot show the arguments.
    """
    shown = _masked(args)
    if not _has_all_names(shown, args):
        raise ToolInputValidationError(
            "A form cannot change these arguments: with secrets masked, some of their names are the same.",
            suggestion="Give all arguments to `goondan approvals approve ID --args @FILE`.",
        )
    return _restored(edited, shown, args)


def _restored(edited: Any, shown: Any, args: Any) -> Any:
    if is_same_json(edited, shown):
        return args
    if isinstance(edited, dict) and isinstance(shown, dict):
        known = {name: (key, shown[name]) for name, key in zip(shown, args, strict=True)}
        return dict(_restored_members(edited, known, args))
    if isinstance(edited, list) and isinstance(shown, list):
        return _restored_items(edited, shown, args)
    has_mask_of_its_own = MASK in _lines(shown) and is_same_json(shown, args)
    return edited if has_mask_of_its_own else _without_mask(edited)


def _restored_members(
    edited: JsonObject, known: dict[str, tuple[str, Any]], args: JsonObject
) -> Iterator[tuple[str, Any]]:
    for name, value in edited.items():
        if name in known:
            key, shown = known[name]
            yield key, _restored(value, shown, args[key])
        else:
            yield from _without_mask({name: value}).items()


def _restored_items(edited: list[Any], shown: list[Any], args: list[Any]) -> list[Any]:
    """Return the items of a list, of which some may have been added, removed or moved.

    A masked item is known by what it shows, and else by its place, if all others with masks are known: a
    secret must not get into another item.
    """
    asked, masked = (
        {at: _lines(item) for at, item in enumerate(items) if MASK in _lines(item)}
        for items in (edited, shown)
    )
    found: dict[int, int] = {}
    for text in set(asked.values()):
        here, there = ([at for at, one in texts.items() if one == text] for texts in (asked, masked))
        if len(here) == len(there):
            found.update(zip(here, there, strict=True))
    if asked.keys() - found.keys() == masked.keys() - set(found.values()):
        found |= {at: at for at in asked.keys() - found.keys()}
    return [
        _restored(item, shown[found[at]], args[found[at]]) if at in found else _without_mask(item)
        for at, item in enumerate(edited)
    ]


def _without_mask(value: Any) -> Any:
    if MASK in _lines(value):
        raise ToolInputValidationError(
            f"The arguments contain {MASK} where no secret stood, or where several may be meant: what was "
            "changed would be lost.",
            suggestion=f"Leave each {MASK} where it was, or write the whole value in its place.",
        )
    return value


def _has_all_names(shown: Any, args: Any) -> bool:
    """Return whether no names of members are alike with secrets masked."""
    if isinstance(shown, dict) and isinstance(args, dict):
        pairs = zip(shown.values(), args.values(), strict=False)
        return len(shown) == len(args) and all(_has_all_names(*one) for one in pairs)
    if isinstance(shown, list) and isinstance(args, list):
        return all(_has_all_names(*one) for one in zip(shown, args, strict=True))
    return True


def _masked(args: Any) -> Any:
    return _without_places(hidden_in_log(args))


def _without_places(value: Any) -> Any:
    """Return a value with a mask for each value that :func:`shown_json` would hide in part."""
    if isinstance(value, dict):
        return {key: _without_place({key: item}, item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_place(item, item) for item in value]
    return value


def _without_place(placed: Any, value: Any) -> Any:
    if isinstance(value, dict | list):
        return _without_places(value)
    text = _lines(placed)
    return value if hidden_by_place(text) == text else MASK


def shown_lines(value: Any) -> str:
    """Return JSON for a form: what a page would escape in its own way is escaped as JSON has it."""
    return "".join(
        char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in _lines(value)
    )


def _lines(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def diff_of(call: ToolCall) -> JsonObject | None:
    """Return how a person has changed the arguments of a call, line by line; without secrets."""
    if call.edited is None:
        return None
    texts = [shown_json(one) for one in (call.edited.asked, call.args)]
    lines: Sequence[str] = ()
    if not any(one["isCut"] for one in texts):
        asked, ran = (one["text"].splitlines() for one in texts)
        lines = list(unified_diff(asked, ran, lineterm="", n=SHOWN_CHARACTERS))[3:]
    words = {"+": "added", "-": "removed"}
    rows = [{"kind": words.get(line[:1], "same"), "text": line} for line in lines]
    return {"by": call.edited.by, "at": call.edited.at, "asked": texts[0], "lines": rows}
