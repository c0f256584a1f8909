"""Whether sandboxes work here, who says so, and how a program is put into one."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from goondan_tasks.bundle import load_bundle
from goondan_tasks.cli.doctor import sandbox_check
from goondan_tasks.contract.errors import ConfigError
from goondan_tasks.machine import sandbox
from goondan_tasks.machine.sandbox import Sandbox
from tests.unit.goondan_tasks.bundle.writing import found_in, told
from workers.testing import run_tool

BUNDLE = """\
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: boxed }
spec:
  tools:
    - selector: { kind: Tool, name: bash }
      overrides: { spec: { sandbox: strict } }
"""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "goondan.yaml").write_text(BUNDLE, "utf-8")
    return folder


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the only directory in which programs are looked for; what was found before is forgotten."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    sandbox.fault.cache_clear()
    yield folder
    sandbox.fault.cache_clear()


def write_bwrap(programs: Path, script: str) -> None:
    (programs / "bwrap").write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    (programs / "bwrap").chmod(0o755)


def test_missing_bubblewrap_is_reported_with_installation_hint(programs: Path, bundle: Path) -> None:
    [finding] = [found for found in found_in(bundle, import_entries=True) if found.level == "error"]

    assert told([finding]) == [(5, "E_CONFIG_SCHEMA_INVALID", "spec.tools")]
    assert "'bash__exec' needs a sandbox" in finding.message
    assert "bubblewrap (bwrap) is not installed" in finding.message
    assert "apt-get install bubblewrap" in finding.suggestion


def test_broken_bubblewrap_is_reported_with_its_error(programs: Path, bundle: Path) -> None:
    write_bwrap(programs, "echo 'bwrap: No permissions to create new namespace' >&2; exit 1")

    check = sandbox_check(load_bundle(bundle))

    assert check.level == "problem"
    assert check.message.endswith("does not work: bwrap: No permissions to create new namespace")
    assert check.remedy is not None
    assert "user namespaces" in check.remedy
    assert sandbox_check(None).level == "ok"


def test_working_bubblewrap_passes_doctor_and_validate(programs: Path, bundle: Path) -> None:
    write_bwrap(programs, "exit 0")

    assert sandbox_check(load_bundle(bundle)).message == "bubblewrap works"
    assert [found for found in found_in(bundle, import_entries=True) if found.level == "error"] == []


def test_producer_loads_bundle_with_unavailable_sandboxes(programs: Path, bundle: Path) -> None:
    assert load_bundle(bundle).bound_tools("boxed")["bash__exec"].export.sandbox == "strict"


def test_call_without_sandbox_to_run_in_is_refused(programs: Path, bundle: Path) -> None:
    result = run_tool(bundle, "boxed", "bash__exec", {"command": "echo ran"})

    assert result.error is not None
    assert result.error.code == "E_CONFIG_SCHEMA_INVALID"
    assert "There is no sandbox on this machine" in result.error.message


def test_command_without_bubblewrap_is_config_error(programs: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not installed"):
        Sandbox(tmp_path).command(["true"], tmp_path, None)


@pytest.mark.parametrize("is_strict", [True, False])
def test_only_strict_command_leaves_network(programs: Path, tmp_path: Path, is_strict: bool) -> None:
    write_bwrap(programs, "exit 0")

    command = Sandbox(tmp_path, is_strict=is_strict).command(["true", "--unshare-net"], tmp_path, "/home/u")

    assert command[-3:] == ["--", "true", "--unshare-net"]
    assert ("--unshare-net" in command[:-3]) == is_strict
    assert {"--die-with-parent", "--unshare-pid", "--unshare-user"} < set(command)


def test_deeper_directories_are_mounted_later(programs: Path, tmp_path: Path) -> None:
    write_bwrap(programs, "exit 0")
    bundle, state, workdir = tmp_path / "b", tmp_path / "b" / "state", tmp_path / "b" / "state" / "w" / "i"
    workdir.mkdir(parents=True)

    command = Sandbox(workdir, bundle, state).command(["true"], workdir, str(tmp_path))

    mounts = [(command[at - 1], place) for at, place in enumerate(command) if place.startswith(str(tmp_path))]
    assert [one for one in mounts if one[0].startswith("--")] == [
        ("--tmpfs", str(tmp_path)),
        ("--ro-bind", str(bundle)),
        ("--tmpfs", str(state)),
        ("--bind", str(workdir)),
        ("--chdir", str(workdir)),
    ]


def mounts_below(place: Path, command: list[str]) -> list[tuple[str, Path]]:
    """Return the options of a command that name a path below ``place``, in order."""
    pairs = itertools.pairwise(command)
    return [(word, Path(path)) for word, path in pairs if word[:2] == "--" and path.startswith(str(place))]


def test_state_root_within_linked_bundle_is_hidden(programs: Path, tmp_path: Path) -> None:
    write_bwrap(programs, "exit 0")
    real, link = tmp_path / "real", tmp_path / "link"
    (real / "state" / "work").mkdir(parents=True)
    link.symlink_to(real)
    state = link / "state"

    command = Sandbox(state / "work", link, state).command(["true"], state / "work", None)

    mounts = mounts_below(tmp_path, command)
    assert mounts.index(("--ro-bind", real)) < mounts.index(("--tmpfs", real / "state"))
    assert mounts[-2] == ("--bind", state / "work")


def test_bundle_that_is_home_directory_is_visible(programs: Path, tmp_path: Path) -> None:
    write_bwrap(programs, "exit 0")
    work, bundle = tmp_path / "work", tmp_path / "home"
    bundle.mkdir()

    command = Sandbox(work, bundle).command(["true"], work, str(bundle))

    assert mounts_below(bundle, command) == [("--tmpfs", bundle), ("--ro-bind", bundle)]


def test_each_link_on_way_to_python_is_mounted(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bwrap(programs, "exit 0")
    first, second, python = tmp_path / "venv-python", tmp_path / "links" / "python3", tmp_path / "python3.14"
    second.parent.mkdir()
    python.touch()
    first.symlink_to("links/python3")
    second.symlink_to("../python3.14")
    monkeypatch.setattr("sys.executable", str(first))

    command = Sandbox(tmp_path / "work").command(["true"], tmp_path, None)

    mounted = [command[at + 1] for at, word in enumerate(command) if word == "--ro-bind"]
    assert {str(second), str(python)} <= set(mounted)
