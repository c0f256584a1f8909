"""The manifests of examples/kubernetes fit Kubernetes' schemas, each other, the settings and the program."""

import copy
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from broker_config.queues import call_queue, events_queue
from broker_config.settings import Settings
from tests.architecture.sources import ROOT
from tests.command_line import fault_of

FOLDER = ROOT / "examples" / "kubernetes"
#: the oldest and the newest that the schemas are held against
VERSIONS = ("1.30", "1.37")
#: KEDA's kinds, which have no schema there
KEDA = "keda.sh/v1alpha1"

RESOURCES: dict[str, dict[str, Any]] = {
    f"{one['kind']}/{one['metadata']['name']}": one
    for file in sorted(FOLDER.glob("*.yaml"))
    for one in yaml.safe_load_all(file.read_text("utf-8"))
}
PODS = {
    name: one["spec"]["template"]["spec"]
    for name, one in RESOURCES.items()
    if "template" in one.get("spec", {})
}
CONTAINERS = {name: pod["containers"][0] for name, pod in PODS.items()}
#: those that run our program
OURS = {name: one for name, one in CONTAINERS.items() if one["name"] != "redis"}
#: those that run handlers
WORKERS = ("Deployment/worker-coder", "Deployment/orchestrator")
SETTINGS: dict[str, str] = RESOURCES["ConfigMap/goondan"]["data"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", [name for name, one in RESOURCES.items() if one["apiVersion"] != KEDA])
def test_manifest_fits_schema_of_kubernetes(name: str, version: str) -> None:
    kubernetes_validate.validate(RESOURCES[name], version, strict=True)


@pytest.mark.parametrize(
    ("field", "value"), [("terminationGracePeriodSecond", 45), ("terminationGracePeriodSeconds", "45")]
)
def test_check_finds_misspelt_or_wrongly_typed_field(field: str, value: object) -> None:
    broken = copy.deepcopy(RESOURCES["Deployment/worker-coder"])
    broken["spec"]["template"]["spec"][field] = value

    with pytest.raises(kubernetes_validate.ValidationError, match=str(value)):
        kubernetes_validate.validate(broken, VERSIONS[-1], strict=True)


def test_every_name_is_used_once() -> None:
    texts = [file.read_text("utf-8") for file in FOLDER.glob("*.yaml")]

    assert len(RESOURCES) == sum(len(list(yaml.safe_load_all(text))) for text in texts) > 0


def test_each_container_runs_existing_command() -> None:
    assert [fault for one in OURS.values() if (fault := fault_of(one["args"]))] == []


def test_variables_are_settings_or_belong_to_their_program() -> None:
    named = {variable["name"] for one in OURS.values() for variable in one["env"]} | set(SETTINGS)

    assert named - {f"GOONDAN_{name.upper()}" for name in Settings.model_fields} == {"FLOWER_BASIC_AUTH"}


def test_secrets_stand_in_secret_that_page_makes() -> None:
    page = (FOLDER / "README.md").read_text("utf-8")
    keys = set(re.findall(r"--from-literal=([a-z-]+)=", page)) | {"oauth-key"}
    asked = {
        variable["valueFrom"]["secretKeyRef"]["key"]
        for one in CONTAINERS.values()
        for variable in one["env"]
        if "valueFrom" in variable
    }

    assert "kubectl create secret generic goondan " in page
    assert asked == keys
    assert not [name for name, one in RESOURCES.items() if one["kind"] == "Secret"]


@pytest.mark.parametrize("name", WORKERS)
def test_running_calls_get_their_grace_period(name: str) -> None:
    assert PODS[name]["terminationGracePeriodSeconds"] > float(SETTINGS["GOONDAN_GRACE_SECONDS"]) + 10
    assert OURS[name]["envFrom"] == [{"configMapRef": {"name": "goondan"}}]


@pytest.mark.parametrize("name", WORKERS)
def test_workers_share_state_root_but_not_cache(name: str) -> None:
    mounts = {mount["name"]: mount["mountPath"] for mount in OURS[name]["volumeMounts"]}
    volumes = {volume.pop("name"): volume for volume in copy.deepcopy(PODS[name]["volumes"])}

    assert mounts["state"] == SETTINGS["GOONDAN_STATE_ROOT"]
    assert mounts["cache"] == SETTINGS["GOONDAN_CACHE_DIR"]
    assert volumes["cache"] == {"emptyDir": {}}
    claim = volumes["state"]["persistentVolumeClaim"]["claimName"]
    assert RESOURCES[f"PersistentVolumeClaim/{claim}"]["spec"]["accessModes"] == ["ReadWriteMany"]


def test_new_worker_passes_check_before_old_drains() -> None:
    worker = OURS["Deployment/worker-coder"]
    check = ["python", "-I", "-m", "goondan_tasks.worker_check"]

    assert [worker[probe]["exec"]["command"] for probe in ("startupProbe", "livenessProbe")] == [check] * 2
    assert RESOURCES["Deployment/worker-coder"]["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


@pytest.mark.parametrize("name", PODS)
def test_pod_has_no_rights_limited_memory_and_probe(name: str) -> None:
    pod, container = PODS[name], CONTAINERS[name]

    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "memory" in container["resources"]["limits"]
    assert "livenessProbe" in container


def test_probes_and_services_target_listening_ports() -> None:
    for name, container in CONTAINERS.items():
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
        assert set(_probed(container)) <= set(ports)
        words = [*container["args"], *(variable.get("value", "") for variable in container["env"])]
        if name in OURS and ports:
            assert {"0.0.0.0", *map(str, ports.values())} <= set(words)
    for resource in RESOURCES.values():
        if resource["kind"] == "Service":
            [chosen] = [one for one in RESOURCES.values() if _has_pods(one, resource["spec"]["selector"])]
            offered = {port["name"] for port in chosen["spec"]["template"]["spec"]["containers"][0]["ports"]}
            assert {port["targetPort"] for port in resource["spec"]["ports"]} <= offered


def test_redis_keeps_accepted_data() -> None:
    words = " ".join(CONTAINERS["StatefulSet/redis"]["args"])

    assert "\nappendonly yes\n" in words
    assert "\nmaxmemory-policy noeviction\n" in words
    assert RESOURCES["StatefulSet/redis"]["spec"]["volumeClaimTemplates"][0]["metadata"]["name"] == "data"


def test_password_of_redis_is_on_no_command_line(tmp_path: Path) -> None:
    container = CONTAINERS["StatefulSet/redis"]
    [text] = container["args"]
    seen = tmp_path / "seen"
    server = tmp_path / "redis-server"
    server.write_text(f'#!/bin/sh\n{{ echo "$@"; cat; }} > {seen}\n', "utf-8")
    server.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "REDIS_PASSWORD": "s3cret"}

    subprocess.run([*container["command"], text], env=environment, check=True, timeout=60)

    arguments, *lines = seen.read_text("utf-8").splitlines()
    assert arguments == "-"
    assert "requirepass s3cret" in lines


def test_network_policies_concern_pods_that_exist() -> None:
    labels = [
        one["spec"]["template"]["metadata"]["labels"]
        for one in RESOURCES.values()
        if "template" in one.get("spec", {})
    ]
    policies = [one["spec"]["podSelector"] for one in RESOURCES.values() if one["kind"] == "NetworkPolicy"]
    chosen = {
        app
        for selector in policies
        for app in (
            selector.get("matchLabels", {}).get("app"),
            *(name for one in selector.get("matchExpressions", ()) for name in one["values"]),
        )
        if app
    }

    assert chosen == {one["app"] for one in labels}


def test_keda_watches_queues_of_workers_it_scales() -> None:
    scaled = RESOURCES["ScaledObject/worker-coder"]["spec"]
    queues, figures = scaled["triggers"][:2], scaled["triggers"][2]["metadata"]["query"]
    command = OURS[f"Deployment/{scaled['scaleTargetRef']['name']}"]["args"]

    assert command[:3] == ["worker", "--agent", "coder"]
    assert [one["metadata"]["listName"] for one in queues] == [call_queue("coder"), events_queue("coder")]
    assert {one["metadata"]["listLength"] for one in queues} == {command[-1]}
    assert figures == 'sum(goondan_running{agent="coder"})'


def _probed(container: dict[str, Any]) -> Iterator[str]:
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        for way in ("httpGet", "tcpSocket"):
            if way in container.get(probe, {}):
                yield container[probe][way]["port"]


def _has_pods(resource: dict[str, Any], selector: dict[str, str]) -> bool:
    template: dict[str, Any] = resource.get("spec", {}).get("template", {})
    return bool(template) and selector.items() <= template["metadata"]["labels"].items()
