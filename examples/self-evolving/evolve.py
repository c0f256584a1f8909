"""See the swarm change itself: python examples/self-evolving/evolve.py. It works on a copy and cleans up."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from goondan_tasks.testing import LocalStack

TEXT = "the quick brown fox\njumps over the lazy dog\n"
HERE = Path(__file__).parent
PERSON = ("-c", "user.name=You", "-c", "user.email=you@example.invalid")


def main() -> None:
    """Let the clerk write a tool for itself while a call is running, and roll back."""
    with tempfile.TemporaryDirectory(prefix="goondan-evolve-") as place:
        bundle = committed_copy(Path(place, "bundle"))
        with LocalStack(bundle, environment={"GOONDAN_CACHE_DIR": f"{place}/cache"}) as stack:
            tell(stack, bundle)


def tell(stack: LocalStack, bundle: Path) -> None:
    """Print the story."""
    client = stack.client
    show("A call that takes long begins, with the first edition of tools/text.py.")
    slow = client.submit("clerk", "text__lines", {"text": TEXT, "seconds": 8}, instance_key="slow")
    show("The clerk is to count words. It has no tool for that:")
    answer = client.request("clerk", {"count": "words", "text": TEXT}, instance_key="job", timeout=60)
    show(
        "it has opened a changeset, edited its tool and its prompt, committed, and counted:", answer.response
    )
    show("The long call ends with the code it began with:", slow.result(timeout=60).output)
    now = client.call("clerk", "text__lines", {"text": TEXT}, timeout=30).output
    show("New calls have the new edition:", now)
    show("`git log` of the bundle:", git(bundle, "log", "--format=%h %an: %s"))
    show("`goondan rollback` brings the first one back:", goondan(stack, "rollback", "HEAD~1"))
    gone = client.call("clerk", "text__words", {"text": TEXT}, timeout=30).error
    show("and the tool is gone:", gone.message if gone else "no, it is still there")


def committed_copy(folder: Path) -> Path:
    """Copy the bundle and commit it to a new git repository."""
    shutil.copytree(HERE, folder, ignore=shutil.ignore_patterns("__pycache__", "evolve.py", "README.md"))
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", "--all")
    git(folder, *PERSON, "commit", "--quiet", "--message", "The clerk counts lines")
    return folder


def git(folder: Path, *arguments: str) -> str:
    """Run git in the bundle and return what it prints."""
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def goondan(stack: LocalStack, *arguments: str) -> str:
    """Run a command on the bundle and the Redis of the stack."""
    options = ["--bundle", str(stack.bundle), "--redis-url", stack.redis_url]
    command = [sys.executable, "-m", "goondan_tasks", *arguments, *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def show(said: str, value: Any = "") -> None:
    """Print a line, and its details."""
    text = value if isinstance(value, str) else json.dumps(value, indent=2)
    print(said, *(f"    {line}" for line in text.splitlines()), sep="\n", flush=True)


if __name__ == "__main__":
    main()
