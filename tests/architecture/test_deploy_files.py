"""The container files, the Procfile and the make targets fit each other, the example and the command line."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from broker_config.settings import Settings
from tests.architecture.sources import ROOT
from tests.command_line import fault_of

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
WORKERS = {name: service for name, service in SERVICES.items() if "worker" in service["command"]}
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
CONSTRAINTS = (ROOT / "constraints.txt").read_text("utf-8")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]
#: a package of the constraints that has a hash
PIN = re.compile(r"^([a-z0-9-]+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}", re.MULTILINE)


def example_agents() -> set[str]:
    """Return the agents of the example bundle."""
    documents = [
        document
        for file in (ROOT / "examples/coding-swarm").glob("*.yaml")
        for document in yaml.safe_load_all(file.read_text("utf-8"))
    ]
    return {document["metadata"]["name"] for document in documents if document["kind"] == "Agent"}


def seconds(duration: str) -> int:
    """Read a duration such as ``45s``."""
    assert duration.endswith("s")
    return int(duration[:-1])


def environment(service: dict[str, Any]) -> dict[str, str]:
    """Return a service's environment."""
    found: dict[str, str] = service["environment"]
    return found


def test_every_agent_of_example_has_its_worker_service() -> None:
    served = {name: service["command"] for name, service in WORKERS.items()}

    assert served == {agent: ["worker", "--agent", agent] for agent in example_agents()}


def test_worker_services_can_be_scaled() -> None:
    fixed = [
        name for name, service in WORKERS.items() if {"container_name", "ports", "hostname"} & set(service)
    ]

    assert fixed == []


def test_workers_share_state_root_and_bundle() -> None:
    for service in WORKERS.values():
        mounts = dict(mount.split(":", 1) for mount in service["volumes"])

        assert mounts["state"] == environment(service)["GOONDAN_STATE_ROOT"]
        assert mounts["./examples/coding-swarm"] == environment(service)["GOONDAN_BUNDLE"] + ":ro"


def test_workers_of_machine_share_checkouts_of_changing_bundle() -> None:
    for service in WORKERS.values():
        mounts = dict(mount.split(":", 1) for mount in service["volumes"])

        assert mounts["cache"] == environment(service)["GOONDAN_CACHE_DIR"]
        assert environment(service)["GOONDAN_BUNDLE_REMOTE"] == "${GOONDAN_BUNDLE_REMOTE:-}"


def test_image_has_git_and_user_owned_volumes() -> None:
    assert re.search(r"apt-get install .*\bgit openssh-client\b", DOCKERFILE)
    [volumes] = re.findall(r"^VOLUME (.+)$", DOCKERFILE, re.MULTILINE)
    [owned] = re.findall(r"install -d -o goondan -g goondan (.+)$", DOCKERFILE, re.MULTILINE)

    assert volumes == owned
    assert f"GOONDAN_CACHE_DIR={volumes.split()[1]}" in DOCKERFILE


def test_running_calls_get_their_grace_period() -> None:
    for service in WORKERS.values():
        grace = seconds(service["stop_grace_period"])

        assert grace > float(environment(service)["GOONDAN_GRACE_SECONDS"])


def test_redis_keeps_accepted_data() -> None:
    command = " ".join(SERVICES["redis"]["command"])
    [version] = re.findall(r"^redis:(\d+)", SERVICES["redis"]["image"])

    assert int(version) >= 7
    assert "--appendonly yes" in command
    assert "--maxmemory-policy noeviction" in command
    assert SERVICES["redis"]["volumes"] == ["redis:/data"]


def test_no_port_is_open_to_other_machines() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]

    assert ports == ["127.0.0.1:8765:8765", "127.0.0.1:5555:5555"]


def test_every_service_says_whether_it_is_well() -> None:
    assert [name for name, service in SERVICES.items() if "healthcheck" not in service] == []


def test_every_volume_is_declared() -> None:
    used = {mount.split(":")[0] for service in SERVICES.values() for mount in service["volumes"]}

    assert {name for name in used if not name.startswith(".")} == set(COMPOSE["volumes"])


def test_every_variable_of_container_files_is_setting() -> None:
    named = set(re.findall(r"GOONDAN_[A-Z_]+", DOCKERFILE))
    named |= {name for service in WORKERS.values() for name in environment(service)}

    assert named <= {f"GOONDAN_{name.upper()}" for name in Settings.model_fields}


def test_image_runs_as_ordinary_user() -> None:
    users = re.findall(r"^USER (.+)$", DOCKERFILE, re.MULTILINE)

    assert users == ["goondan"]
    assert DOCKERFILE.index("USER goondan") < DOCKERFILE.index("ENTRYPOINT")


def test_image_holds_every_package_and_no_secrets() -> None:
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    packages = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]

    assert ignored[0] == "*"
    assert {f"!{package}" for package in [*packages, "build-constraints.txt", "constraints.txt"]} <= set(
        ignored
    )


@pytest.mark.parametrize(
    "target",
    [
        "demo",
        "test",
        "pythons",
        "lint",
        "types",
        "contracts",
        "docs",
        "faults",
        "bench",
        "lock",
        "clean",
        "help",
    ],
)
def test_make_has_target_and_describes_it(target: str) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")

    assert re.search(rf"^{target}:.* ## \w", makefile, re.MULTILINE)
    assert target in re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)[0].split()


def test_page_names_every_extra_that_users_may_want() -> None:
    page = (ROOT / "docs/how-to/deploy.md").read_text("utf-8")
    named = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)

    assert set(named) == set(PROJECT["optional-dependencies"]) - {"bench", "dev"}


def test_image_holds_documented_extras_pinned_with_hashes() -> None:
    extras = PROJECT["optional-dependencies"]
    [everything] = extras["all"]
    names = everything.partition("[")[2].rstrip("]").split(",")
    wanted = [*PROJECT["dependencies"], *(text for name in [*names, "otel"] for text in extras[name])]
    pins = dict(PIN.findall(CONSTRAINTS))

    assert set(extras) - {*names, "all", "bench", "dev", "otel"} == set()
    assert [str(one) for one in map(Requirement, wanted) if not _is_pinned(one, pins)] == []


def test_pin_check_finds_missing_and_outdated_pins() -> None:
    assert _is_pinned(Requirement("celery[redis]>=5.7"), {"celery": "5.7.0"})
    assert not _is_pinned(Requirement("celery>=5.8"), {"celery": "5.7.0"})
    assert not _is_pinned(Requirement("Flower"), {"celery": "5.7.0"})


def _is_pinned(requirement: Requirement, pins: dict[str, str]) -> bool:
    pinned = pins.get(canonicalize_name(requirement.name))
    return pinned is not None and requirement.specifier.contains(pinned)


def test_image_is_built_with_pinned_backend() -> None:
    pins = dict(PIN.findall((ROOT / "build-constraints.txt").read_text("utf-8")))

    assert [
        one for one in map(Requirement, PYPROJECT["build-system"]["requires"]) if not _is_pinned(one, pins)
    ] == []
    assert "--no-build-isolation" in DOCKERFILE


def test_our_services_have_no_rights_and_read_only_root() -> None:
    ours = [service for name, service in SERVICES.items() if name != "redis"]

    assert all(service["read_only"] and service["cap_drop"] == ["ALL"] for service in ours)
    assert all(service["tmpfs"][0] == "/tmp" for service in ours)


def test_pins_are_for_python_of_image() -> None:
    versions = set(re.findall(r"^FROM python:(\S+)-slim", DOCKERFILE, re.MULTILINE))

    assert len(versions) == 1
    assert f"--python-version {versions.pop()} " in (ROOT / "Makefile").read_text("utf-8")


def test_images_of_page_run_commands_that_exist() -> None:
    text = (ROOT / "docs/how-to/images.md").read_text("utf-8")
    commands = re.findall(r"^RUN goondan (.+)$", text, re.MULTILINE)

    assert commands
    assert [fault for command in commands if (fault := fault_of(command.split()))] == []


def test_change_of_sources_fetches_no_package_again() -> None:
    steps = [
        DOCKERFILE.index(step)
        for step in ("--requirement constraints.txt", "COPY . .", "--no-build-isolation .")
    ]

    assert steps == sorted(steps)
    assert "--require-hashes" in DOCKERFILE
    assert DOCKERFILE.index("/packages /usr/local") < DOCKERFILE.index("/project /usr/local")


def test_every_service_has_memory_limit() -> None:
    limits = {name: service.get("mem_limit") for name, service in SERVICES.items()}

    assert limits == {**dict.fromkeys([*WORKERS, "connectors"], "1g"), "redis": "1g", "flower": "512m"}


def test_commands_of_container_files_exist() -> None:
    commands = [service["command"] for name, service in SERVICES.items() if name != "redis"]
    commands.append(json.loads(re.findall(r"^CMD (.+)$", DOCKERFILE, re.MULTILINE)[0]))

    assert re.findall(r"^ENTRYPOINT (.+)$", DOCKERFILE, re.MULTILINE) == ['["goondan"]']
    assert [fault for words in commands if (fault := fault_of(words))] == []


def test_ci_runs_tests_then_another_python_daily() -> None:
    script = ROOT / ".ci/run"

    assert script.stat().st_mode & 0o111
    commands = [line for line in script.read_text("utf-8").splitlines() if "make" in line and line[0] != "#"]
    assert commands == [
        "make .venv/bin/python",
        "make pythons VERSION=today PREPARE=yes > /dev/null 2>&1 &",
        "make test",
        "exec make pythons VERSION=today",
    ]
    assert "set -euo pipefail" in script.read_text("utf-8")


def test_other_pythons_are_chosen_in_daily_turns(tmp_path: Path) -> None:
    versions = supported_versions()
    others = [one for one in versions if one != "{}.{}".format(*sys.version_info)]
    (tmp_path / ".ci").mkdir()
    for name in ("Makefile", "pyproject.toml", ".ci/interpreters"):
        shutil.copy(ROOT / name, tmp_path / name)
    _program(tmp_path / ".venv/bin/python", f'exec {sys.executable} "$@"')
    for version in versions:
        _program(tmp_path / f"bin/python{version}", "exit 0")
        _program(tmp_path / f".venv/{version}/bin/python", f"echo {version} ran the tests")
    _program(tmp_path / "bin/date", "echo $(($DAY * 86400))")
    for ready in (".venv", *(f".venv/{version}" for version in versions)):
        (tmp_path / ready / ".ready").touch()
    environment = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": str(tmp_path)}

    said = [
        subprocess.run(
            ["make", "pythons", "VERSION=today"],
            cwd=tmp_path,
            env={**environment, "DAY": str(day)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        for day in range(len(others))
    ]

    assert [re.findall(r"passed: (3\.\d+) ran", text) for text in said] == [[version] for version in others]
    assert all("chosen by the date" in text for text in said)


@pytest.mark.parametrize("kept", ["pyenv/versions/{}.4/bin", "mise/installs/python/{}.4/bin"])
@pytest.mark.parametrize("is_named", [True, False], ids=["by a variable", "by its shims"])
def test_interpreters_are_found_behind_shims_that_refuse(tmp_path: Path, kept: str, is_named: bool) -> None:
    versions = supported_versions()
    root = tmp_path / kept.partition("/")[0]
    for version in versions:
        _program(root / f"shims/python{version}", "exit 127")
        _program(tmp_path / kept.format(version) / "python", "exit 0")
    environment = {"HOME": str(tmp_path / "home"), "PATH": f"{root}/shims:/usr/bin:/bin"}
    if is_named:
        environment |= {"PYENV_ROOT": str(root), "PATH": f"{tmp_path}:/usr/bin:/bin"}

    done = subprocess.run(
        [ROOT / ".ci/interpreters"], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )

    usual = {one: shutil.which(f"python{one}", path="/usr/bin:/bin") for one in versions if is_named}
    found = {one: usual.get(one) or f"{tmp_path}/{kept.format(one)}/python" for one in versions}
    assert done.stdout.splitlines() == [f"{version}={path}" for version, path in found.items()]


def supported_versions() -> list[str]:
    return re.findall(r":: Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))


def _program(path: Path, commands: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{commands}\n", "utf-8")
    path.chmod(0o755)


def test_procfile_has_worker_for_every_agent() -> None:
    lines = [line for line in Path(ROOT / "Procfile").read_text("utf-8").splitlines() if line[0] != "#"]
    processes = dict(line.split(": ", 1) for line in lines)
    workers = {agent: f"goondan worker --agent {agent}" for agent in example_agents()}

    script = "python examples/coding-swarm/scripted_model.py"
    assert processes == {**workers, "model": script, "flower": "goondan flower"}


def test_container_checks_import_nothing_writable_by_tools(tmp_path: Path) -> None:
    manifests = [
        document
        for file in (ROOT / "examples/kubernetes").glob("*.yaml")
        for document in yaml.safe_load_all(file.read_text("utf-8"))
    ]
    programs = [*python_commands(COMPOSE), *python_commands(manifests)]
    for name in ("goondan_tasks", "hiredis", "socket", "urllib"):
        (tmp_path / f"{name}.py").write_text("import os; os.write(2, b'planted'); os._exit(9)", "utf-8")

    for program in programs:
        done = subprocess.run(
            [sys.executable, *program[1:]],
            cwd=tmp_path,
            env={"GOONDAN_REDIS_URL": "redis://127.0.0.1:1/0"},
            capture_output=True,
            check=False,
        )
        assert b"planted" not in done.stderr, program
    assert len(programs) >= 4


def python_commands(part: Any) -> list[list[str]]:
    """Return the commands below a part of a document that start Python."""
    if isinstance(part, dict):
        return [command for value in part.values() for command in python_commands(value)]
    if not isinstance(part, list):
        return []
    words = [str(word) for word in part if word != "CMD"]
    if words[:1] == ["python"]:
        return [words]
    return [command for value in part for command in python_commands(value)]


def test_image_imports_nothing_from_current_or_home_directory() -> None:
    final = DOCKERFILE.rpartition("FROM ")[2]

    assert re.findall(r"^WORKDIR (.+)$", final, re.MULTILINE) == ["/"]
    assert "PYTHONSAFEPATH=1" in final
    assert "PYTHONNOUSERSITE=1" in final
