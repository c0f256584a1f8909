"""Built-in tool ``bash``: runs a command line, or a script of the workdir (003 §5.2)."""

import json
from collections.abc import Sequence
from pathlib import Path

from goondan_tasks.tool_api import JsonObject, ToolContext, ToolHandler
from workers.instances.paths import locate

#: limit of stdout and of stderr; both together fit into a result
MAX_OUTPUT_BYTES = 100_000
CUT = "\n... (output truncated)"
LONGEST_TIMEOUT_MS = 1e10


def exec_command(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Run a command line with ``sh -c``; a command that fails or times out is a normal result."""
    cwd = locate(ctx.workdir, input.get("cwd", ".")).absolute
    outcome = _run(ctx, ["/bin/sh", "-c", input["command"]], cwd, input)
    return {"command": input["command"], "cwd": str(cwd), **outcome}


def script(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Run a script file of the workdir with a shell; a script that fails or times out is a normal result."""
    place = locate(ctx.workdir, input["path"])
    path = str(place.absolute)
    place.absolute.stat()  # a missing file is an error of the call, not the shell's exit status
    shell, args = input.get("shell", "/bin/bash"), input.get("args", [])
    outcome = _run(ctx, [shell, path, *args], place.root, input)
    return {"path": path, "shell": shell, "args": args, **outcome}


def _run(ctx: ToolContext, argv: Sequence[str], cwd: Path, input: JsonObject) -> JsonObject:
    timeout_ms = input.get("timeoutMs", 30_000)
    outcome = ctx.run_process(
        argv,
        cwd=cwd,
        env={name: _variable(value) for name, value in input.get("env", {}).items()},
        timeout_seconds=min(timeout_ms, LONGEST_TIMEOUT_MS) / 1000 if timeout_ms > 0 else None,
        max_output_bytes=MAX_OUTPUT_BYTES,
    )
    return {
        "durationMs": outcome.duration_ms,
        "stdout": _marked(outcome.stdout, truncated=outcome.truncated),
        "stderr": _marked(outcome.stderr, truncated=outcome.truncated),
        "exitCode": outcome.exit_code,
        "signal": outcome.signal,
        "timedOut": outcome.timed_out,
    }


def _variable(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _marked(output: str, *, truncated: bool) -> str:
    # either output may be the truncated one; up to three bytes of a split character are missing from it
    is_full = len(output.encode()) >= MAX_OUTPUT_BYTES - 3
    return output + CUT if truncated and is_full else output


handlers: dict[str, ToolHandler] = {"exec": exec_command, "script": script}
