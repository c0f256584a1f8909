"""002 §11.1; relative paths begin at ctx.workdir, for a worker has no current directory for each call."""

import asyncio
from pathlib import Path


def read_now(ctx, input):
    target = str(input.get("path") or "")
    if not target:
        raise ValueError("path가 필요합니다.")
    resolved = Path(target) if Path(target).is_absolute() else ctx.workdir / target
    if not resolved.is_file():
        raise ValueError(f"{resolved}는 파일이 아닙니다.")
    content = resolved.read_text(input.get("encoding") or "utf8")
    most = input.get("maxBytes", 100_000)
    return {
        "path": str(resolved),
        "size": resolved.stat().st_size,
        "truncated": len(content) > most,
        "content": content[:most],
    }


def write_now(ctx, input):
    target = str(input.get("path") or "")
    if not target:
        raise ValueError("path가 필요합니다.")
    resolved = Path(target) if Path(target).is_absolute() else ctx.workdir / target
    resolved.parent.mkdir(parents=True, exist_ok=True)
    resolved.write_text(str(input.get("content") or ""), input.get("encoding") or "utf8")
    return {"path": str(resolved), "size": resolved.stat().st_size, "written": True}


async def read(ctx, input):
    return await asyncio.to_thread(read_now, ctx, input)


async def write(ctx, input):
    return await asyncio.to_thread(write_now, ctx, input)


handlers = {"file.read": read, "file.write": write}
