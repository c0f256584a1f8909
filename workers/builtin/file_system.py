"""Built-in tool ``file-system``: reads and writes files, lists and makes directories, inside the workdir."""

import codecs
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from operator import itemgetter

from goondan_tasks.machine.atomic_file import write_whole
from goondan_tasks.machine.inner_path import InnerPath
from goondan_tasks.tool_api import JsonObject, ToolContext, ToolError, ToolHandler
from workers.instances.paths import locate, open_file

MAX_READ_BYTES = 10_000_000
MAX_ENTRIES = 10_000
#: a limit, since each directory is opened component by component from the workdir
MAX_DEPTH = 100
LIST_LESS = "List a directory further down, or without `recursive`."


def read(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Read the beginning of a file; a character split by the limit is left out."""
    place = locate(ctx.workdir, input["path"])
    limit = min(int(input.get("maxBytes", 100_000)), MAX_READ_BYTES)
    with (
        place.open_parent() as (directory, name),
        os.fdopen(open_file(directory, name, os.O_RDONLY), "rb") as file,
    ):
        size = os.fstat(file.fileno()).st_size
        data = file.read(limit + 1)
    truncated = len(data) > limit
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return {
        "path": str(place.absolute),
        "size": size,
        "truncated": truncated,
        "content": decoder.decode(data[:limit], final=not truncated),
    }


def write(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Write a file; concurrent readers see the old content or the new, never a mixture."""
    place = locate(ctx.workdir, input["path"])
    append = input.get("append", False)
    data = input["content"].encode()
    with place.open_parent(make=True) as (directory, name):
        size = _append(directory, name, data) if append else _replace(directory, name, data)
    return {"path": str(place.absolute), "size": size, "written": True, "append": append}


def _append(directory: int, name: str, data: bytes) -> int:
    with os.fdopen(open_file(directory, name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as file:
        file.write(data)
        file.flush()
        return os.fstat(file.fileno()).st_size


def _replace(directory: int, name: str, data: bytes) -> int:
    write_whole(name, data, directory=directory, mode=_mode_of(directory, name))
    return len(data)


def _mode_of(directory: int, name: str) -> int | None:
    with suppress(FileNotFoundError):
        descriptor = open_file(directory, name, os.O_WRONLY)  # fails if the old file is read-only
        try:
            return os.fstat(descriptor).st_mode & 0o777
        finally:
            os.close(descriptor)
    return None


def list_directory(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """List a directory without following links; the entries' paths are relative to the workdir."""
    place = locate(ctx.workdir, input.get("path", "."))
    recursive = input.get("recursive", False)
    wanted = {"dir": input.get("includeDirs", True), "file": input.get("includeFiles", True)}
    found = (entry for entry in _walk(place, recursive=recursive) if wanted[entry["type"]])
    entries = sorted(islice(found, MAX_ENTRIES + 1), key=itemgetter("path"))
    if len(entries) > MAX_ENTRIES:
        raise ToolError(f"There are more than {MAX_ENTRIES} entries.", suggestion=LIST_LESS)
    return {"path": str(place.absolute), "recursive": recursive, "count": len(entries), "entries": entries}


def _walk(place: InnerPath, *, recursive: bool) -> Iterator[JsonObject]:
    waiting = [place]
    while waiting:
        directory = waiting.pop()
        try:
            for inner, entry in _scan(directory):
                yield entry
                if recursive and entry["type"] == "dir":
                    if len(inner.parts) - len(place.parts) > MAX_DEPTH:
                        message = f"There are directories more than {MAX_DEPTH} levels down."
                        raise ToolError(message, suggestion=LIST_LESS)
                    waiting.append(inner)
        except FileNotFoundError:
            if directory is place:
                raise
            # a subdirectory: it was removed after its parent was listed


def _scan(directory: InnerPath) -> Iterator[tuple[InnerPath, JsonObject]]:
    with directory.open_directory() as descriptor, os.scandir(descriptor) as found:
        for item in found:
            inner = replace(directory, parts=(*directory.parts, item.name))
            entry = {"name": _printable(item.name), "path": _printable("/".join(inner.parts))}
            if item.is_dir(follow_symlinks=False):
                yield inner, {**entry, "type": "dir"}
            elif item.is_file(follow_symlinks=False):
                yield inner, {**entry, "type": "file", "size": item.stat(follow_symlinks=False).st_size}


def _printable(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "replace")  # names may be any bytes, JSON is UTF-8


def mkdir(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Make a directory."""
    place = locate(ctx.workdir, input["path"])
    recursive = input.get("recursive", True)
    if recursive:
        with place.open_directory(make=True):
            pass
    else:
        with place.open_parent() as (directory, name):
            os.mkdir(name, dir_fd=directory)
    return {"path": str(place.absolute), "created": True, "recursive": recursive}


handlers: dict[str, ToolHandler] = {"read": read, "write": write, "list": list_directory, "mkdir": mkdir}
