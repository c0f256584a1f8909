"""Modules of a user's own that have the names of ours: they are named, or hide nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import environment, goondan_program

pytestmark = pytest.mark.usefixtures("fresh_programs")

PATIENCE = 60
GOONDAN = (sys.executable, "-P", "-c", "from goondan_start import main; main()")
CELERY = (sys.executable, "-P", "-m", "celery", "-A", "goondan_tasks", "worker", "-Q", "agent.clerk")
ROOT = Path(__file__).parents[2]
WRONG = "raise SystemExit('the wrong one')"
BUNDLE = """\
apiVersion: goondan.ai/v1
kind: Tool
metadata: { name: say }
spec: { entry: ./say.py, exports: auto }
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: clerk }
spec: { tools: ["Tool/say"] }
"""
SAY = """\
import logging

import redis

from goondan_tasks.tool_api import tool

from . import words


@tool
def word() -> str:
    return words.WORD + redis.Redis.__name__ + logging.getLevelName(10)
"""


def hide(folder: Path, *packages: str) -> Path:
    """Write packages of these names into a folder, which end any program that imports them."""
    for name in packages:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(WRONG, encoding="utf-8")
    return folder


def run(command: tuple[str, ...], cwd: Path, *path: Path) -> "subprocess.CompletedProcess[str]":
    env = environment() | {"PYTHONPATH": ":".join(map(str, path))}
    return subprocess.run(
        command, env=env, cwd=cwd, text=True, capture_output=True, timeout=PATIENCE, check=False
    )


@pytest.mark.parametrize("package", ["broker_config", "goondan_tasks", "goondan_web", "workers"])
def test_goondan_names_package_that_hides_one_of_ours(tmp_path: Path, package: str) -> None:
    folder = hide(tmp_path, package)

    told = run((*GOONDAN, "--version"), ROOT, folder, ROOT)
    wire = run((*GOONDAN, "validate", "--json"), ROOT, folder, ROOT)

    message = f"{folder / package} hides the package '{package}' of Goondan Workers, which is in {ROOT}."
    assert (told.returncode, told.stdout) == (3, "")
    assert told.stderr.startswith(
        f"Error: {message}\nWhat to do: Rename it, or take {folder} off Python's path"
    )
    assert (wire.returncode, wire.stderr) == (3, "")
    assert json.loads(wire.stdout)["error"]["message"] == message


def test_module_in_place_of_package_is_named_too(tmp_path: Path) -> None:
    (tmp_path / "workers.py").write_text(WRONG, encoding="utf-8")

    assert (
        f"{tmp_path / 'workers.py'} hides the package"
        in run((*GOONDAN, "--help"), ROOT, tmp_path, ROOT).stderr
    )


@pytest.mark.parametrize(
    ("command", "package"),
    [((sys.executable, "-P", "-m", "goondan_tasks", "worker"), "broker_config"), (CELERY, "workers")],
    ids=["goondan", "celery"],
)
def test_worker_names_path_that_hides_our_package(
    tmp_path: Path, command: tuple[str, ...], package: str
) -> None:
    ended = run(command, ROOT, hide(tmp_path, package), ROOT)

    assert ended.returncode != 0
    assert f"{tmp_path / package} hides the package '{package}'" in ended.stderr


def test_celery_program_of_users_own_keeps_its_path(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "__init__.py").write_text("NAME = 'mine'\n", encoding="utf-8")
    text = (
        "from celery import Celery\nfrom goondan_tasks.client import Client\nfrom workers import NAME\n"
        "app = Celery(NAME, broker='memory://')\n"
    )
    (tmp_path / "shop.py").write_text(text, encoding="utf-8")

    done = run((sys.executable, "-P", "-m", "celery", "-A", "shop", "report"), tmp_path, ROOT)

    assert (done.returncode, "memory" in done.stdout) == (0, True), done.stderr


def test_producer_reports_hidden_needed_package_but_ignores_workers(tmp_path: Path) -> None:
    text = "from goondan_tasks.client import Client\nprint(Client.__name__)\n"
    for name, package in (("good", "workers"), ("bad", "broker_config")):
        (hide(tmp_path / name, package) / "ask.py").write_text(text, encoding="utf-8")

    good, bad = (run((sys.executable, "ask.py"), tmp_path / name, ROOT) for name in ("good", "bad"))

    assert (good.returncode, good.stdout) == (0, "Client\n")
    last = bad.stderr.splitlines()[-1]
    assert last.startswith(
        f"ImportError: {tmp_path / 'bad' / 'broker_config'} hides the package 'broker_config'"
    )
    assert f"take {tmp_path / 'bad'} off Python's path" in last


@pytest.mark.parametrize(
    "command",
    [(*GOONDAN, "worker"), (sys.executable, "-m", "goondan_tasks", "worker"), CELERY],
    ids=["goondan", "python -m", "celery"],
)
def test_bundle_files_hide_neither_our_nor_python_modules(tmp_path: Path, command: tuple[str, ...]) -> None:
    bundle = hide(tmp_path / "bundle", "workers", "broker_config")
    for name in ("logging", "redis", "celery", "kombu", "json", "typing", "yaml", "resource"):
        (bundle / f"{name}.py").write_text(WRONG, encoding="utf-8")
    (bundle / "goondan.yaml").write_text(BUNDLE, encoding="utf-8")
    (bundle / "say.py").write_text(SAY, encoding="utf-8")
    (bundle / "words.py").write_text("WORD = 'hello '\n", encoding="utf-8")

    with LocalStack(bundle, workers=0) as stack:
        env = environment(redis_url=stack.redis_url, bundle=bundle, state_root=tmp_path / "state")
        log = (tmp_path / "log").open("wb")
        with log, subprocess.Popen(command, env=env, cwd=bundle, stdout=log, stderr=log) as worker:
            try:
                result = stack.client.call("clerk", "say__word", {}, timeout=PATIENCE)
            finally:
                worker.terminate()
        done = goondan_program("validate", env={**env, "PYTHONSAFEPATH": "1"}, cwd=bundle)

    assert result.output == "hello RedisDEBUG", (tmp_path / "log").read_text(encoding="utf-8")
    assert done.exit_code == 0, done.stderr
