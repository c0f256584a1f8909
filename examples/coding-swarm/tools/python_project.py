"""The coder's tools: a new module with its test, and a test run in numbers."""

import asyncio
import keyword
import re
import sys

from goondan_tasks.tool_api import JsonObject, ToolContext, ToolError


def scaffold(ctx: ToolContext, arguments: JsonObject) -> JsonObject:
    """Write ``<module>.py`` and ``test_<module>.py``; a file that exists is never overwritten."""
    module, functions = arguments["module"], arguments["functions"]
    names = [module, *(name for f in functions for name in (f["name"], *f.get("arguments", [])))]
    if reserved := [name for name in names if keyword.iskeyword(name)]:
        raise ToolError(f"Reserved words of Python cannot be names: {', '.join(reserved)}.")
    files = {
        f"{module}.py": _module_source(arguments["summary"], functions),
        f"test_{module}.py": _test_source(module, functions),
    }
    if existing := [name for name in files if (ctx.workdir / name).exists()]:
        raise ToolError(
            f"Files exist already: {', '.join(existing)}.",
            suggestion="Choose another module name, or change the files with file-system__write.",
        )
    for name, source in files.items():
        with (ctx.workdir / name).open("x", encoding="utf-8") as file:
            file.write(source)
    return {"files": list(files)}


async def run_tests(ctx: ToolContext, arguments: JsonObject) -> JsonObject:
    """Run unittest in the workdir; failing tests are an answer, not an error."""
    pattern = arguments.get("pattern", "test_*.py")
    argv = [sys.executable, "-B", "-m", "unittest", "discover", "--pattern", pattern]
    outcome = await asyncio.to_thread(ctx.run_process, argv, timeout_seconds=45)
    report = outcome.stderr
    ctx.emit(report[-16_000:])  # whoever follows the Turn sees more than the model needs
    ran = re.search(r"^Ran (\d+) tests?", report, re.MULTILINE)
    return {
        "passed": outcome.exit_code == 0,
        "ran": int(ran[1]) if ran else 0,
        "failures": _count("failures", report),
        "errors": _count("errors", report),
        "report": report[-2000:],
    }


def _count(what: str, report: str) -> int:
    found = re.search(rf"^FAILED \(.*\b{what}=(\d+)", report, re.MULTILINE)
    return int(found[1]) if found else 0


def _module_source(summary: str, functions: list[JsonObject]) -> str:
    bodies = (
        f"def {function['name']}({', '.join(function.get('arguments', []))}):\n"
        f"    {_docstring(function['summary'])}\n"
        f"    raise NotImplementedError\n"
        for function in functions
    )
    return "\n\n".join([f"{_docstring(summary)}\n", *bodies])


def _test_source(module: str, functions: list[JsonObject]) -> str:
    tests = (
        f"    def test_{function['name']}(self):\n"
        f'        self.fail("write a test for {module}.{function["name"]}")\n'
        for function in functions
    )
    name = "".join(word.capitalize() for word in module.split("_"))
    head = f'"""Tests of {module}."""\n\nimport unittest\n\nimport {module}\n\n\n'
    return head + f"class {name}Test(unittest.TestCase):\n" + "\n".join(tests)


def _docstring(text: str) -> str:
    # repr() would do, but people read this: quotes and backslashes are escaped, line breaks become spaces
    plain = " ".join(text.split()).replace("\\", "\\\\").replace('"', '\\"')
    return f'"""{plain}"""'


handlers = {"scaffold": scaffold, "run-tests": run_tests}
