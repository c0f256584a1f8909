"""The rules of a Tool's exports."""

from pathlib import Path

import pytest

from goondan_tasks.bundle import Finding
from tests.unit.goondan_tasks.bundle.writing import TOOL, found_in, told, write

HEAD = TOOL.partition("  exports:")[0]
JAVASCRIPT = HEAD.replace(".py", ".mjs")


def tool(tmp_path: Path, exports: str, more: str = "") -> list[Finding]:
    """Return the findings of a Tool whose exports begin in line 7."""
    assert len(HEAD.splitlines()) == 5
    return found_in(write(tmp_path, {"goondan.yaml": f"{HEAD}  exports:\n{exports}{more}"}))


@pytest.mark.requirement("bundle.tool.exports-required")
@pytest.mark.parametrize("exports", ["[]", "~", "{}", "run"])
def test_tool_without_exports_is_refused(tmp_path: Path, exports: str) -> None:
    folder = write(tmp_path, {"goondan.yaml": f"{HEAD}  exports: {exports}\n"})

    assert told(found_in(folder)) == [(6, "E_CONFIG_SCHEMA_INVALID", "spec.exports")]


@pytest.mark.requirement("bundle.export.name")
def test_export_without_name_is_refused(tmp_path: Path) -> None:
    findings = tool(tmp_path, "    - { parameters: { type: object } }\n")

    assert told(findings) == [(7, "E_CONFIG_SCHEMA_INVALID", "spec.exports[0].name")]


@pytest.mark.requirement("bundle.tool.export-names-unique")
def test_two_exports_of_one_name_are_refused(tmp_path: Path) -> None:
    export = "    - { name: run, parameters: { type: object } }\n"

    findings = tool(tmp_path, export + "\n" + export)

    assert told(findings) == [(9, "E_CONFIG_DUPLICATE_NAME", "spec.exports[1].name")]
    assert "line 7" in findings[0].message


@pytest.mark.requirement("bundle.tool.export-name-charset", "tool.name.no-separator-inside")
@pytest.mark.parametrize("name", ["a__b", "a_", "_a", "a.b", "a b", "a/b", "''", "실행", "a" * 3 + "__"])
def test_export_name_no_model_can_call_is_refused(tmp_path: Path, name: str) -> None:
    findings = tool(tmp_path, f"    - {{ name: {name}, parameters: {{ type: object }} }}\n")

    assert told(findings) == [(7, "E_CONFIG_INVALID_NAME", "spec.exports[0].name")]


@pytest.mark.requirement("bundle.tool.export-name-charset")
def test_upper_case_in_export_is_warning(tmp_path: Path) -> None:
    (finding,) = tool(tmp_path, "    - { name: listChannels, parameters: { type: object } }\n")

    assert (finding.level, finding.code) == ("warning", "E_CONFIG_INVALID_NAME")


@pytest.mark.requirement("bundle.export.parameters")
def test_missing_parameters_are_warning(tmp_path: Path) -> None:
    (finding,) = tool(tmp_path, "    - { name: run }\n")

    assert (finding.level, finding.line) == ("warning", 7)
    assert "any object is accepted" in finding.message


@pytest.mark.requirement("bundle.tool.parameters-valid")
@pytest.mark.parametrize(
    ("parameters", "path"),
    [
        ("{ type: objekt }", ".type"),
        ("{ type: string }", ".type"),
        ("{ type: object, required: name }", ".required"),
        ("{ type: object, properties: { a: { type: integr } } }", ".properties.a.type"),
        ("{ type: object, properties: { a: { pattern: '(' } } }", ".properties.a.pattern"),
        ("{ type: object, $ref: 'https://example.org/s.json' }", ""),
        ("[]", ""),
        ("text", ""),
    ],
)
def test_parameters_must_be_json_schema_of_object(tmp_path: Path, parameters: str, path: str) -> None:
    findings = tool(tmp_path, f"    - name: run\n      parameters: {parameters}\n")

    assert told(findings) == [(8, "E_CONFIG_SCHEMA_INVALID", f"spec.exports[0].parameters{path}")]


def test_line_of_schema_fault_is_deep_in_schema(tmp_path: Path) -> None:
    parameters = "        type: object\n        properties:\n          n:\n            type: int\n"

    (finding,) = tool(tmp_path, f"    - name: run\n      parameters:\n{parameters}")

    assert finding.line == 12


def test_parameters_without_type_are_warning(tmp_path: Path) -> None:
    (finding,) = tool(tmp_path, "    - name: run\n      parameters: { properties: {} }\n")

    assert (finding.level, finding.suggestion) == ("warning", "Add 'type: object'.")


EXPORT = "    - name: run\n      parameters: { type: object, properties: { path: { type: string } } }\n"


@pytest.mark.parametrize(
    "policy",
    [
        "timeoutSeconds: 0.5",
        "timeoutSeconds: 30",
        "idempotent: true",
        "maxAttempts: 5",
        "isolation: process",
        "maxConcurrency: 2",
        "rateLimit: 10/s",
        "rateLimit: 100/m",
        "serial: true",
        "requiresApproval: true",
        "idempotencyKey: [path]",
        "env: [SHOP_TOKEN, GOONDAN_SECRET_SHOP]",
        "env: { A: plain, B: { valueFrom: { env: B } } }",
        "env: { C: { valueFrom: { secretRef: { ref: Secret/c, key: k } } } }",
    ],
)
def test_run_policies_stand_on_export_or_on_tool(tmp_path: Path, policy: str) -> None:
    assert tool(tmp_path, EXPORT, f"      {policy}\n") == []
    assert tool(tmp_path, EXPORT, f"  {policy}\n") == []


@pytest.mark.parametrize(
    ("policy", "path"),
    [
        ("timeoutSeconds: 0", "timeoutSeconds"),
        ("timeoutSeconds: 1.0e+300", "timeoutSeconds"),
        ("timeoutSeconds: true", "timeoutSeconds"),
        ("timeoutSeconds: '5'", "timeoutSeconds"),
        ("idempotent: yes", "idempotent"),
        ("maxAttempts: 1.5", "maxAttempts"),
        ("isolation: thread", "isolation"),
        ("maxConcurrency: -1", "maxConcurrency"),
        ("rateLimit: 0/s", "rateLimit"),
        ("rateLimit: 10", "rateLimit"),
        ("rateLimit: 10/d", "rateLimit"),
        ("serial: 1", "serial"),
        ("idempotencyKey: []", "idempotencyKey"),
        ("idempotencyKey: path", "idempotencyKey"),
        ("idempotencyKey: [pth]", "idempotencyKey[0]"),
        ("sandbox: strikt", "sandbox"),
        ("env: SHOP_TOKEN", "env"),
        ("env: [7]", "env"),
        ("env: [GOONDAN_REDIS_URL]", "env.GOONDAN_REDIS_URL"),
        ("env: { URL: { valueFrom: { env: GOONDAN_REDIS_URL } } }", "env.URL"),
        ("env: { PORT: 80 }", "env.PORT"),
        ("env: { 'A=B': c }", "env"),
        ("retry: { max: 0 }", "retry.max"),
        ("retry: {}", "retry.max"),
        ("errorMessageLimit: 5", "errorMessageLimit"),
    ],
)
def test_wrong_run_policy_is_finding(tmp_path: Path, policy: str, path: str) -> None:
    findings = tool(
        tmp_path, EXPORT + "      idempotent: true\n" * policy.startswith("retry"), f"      {policy}\n"
    )

    assert told(findings) == [
        (9 + policy.startswith("retry"), "E_CONFIG_SCHEMA_INVALID", f"spec.exports[0].{path}")
    ]


@pytest.mark.parametrize("sandbox", ["true", "strict"])
def test_sandbox_for_in_worker_handlers_programs_is_warning(tmp_path: Path, sandbox: str) -> None:
    (finding,) = tool(tmp_path, EXPORT, f"  sandbox: {sandbox}\n")

    assert (finding.level, finding.path) == ("warning", "spec.sandbox")
    assert "the handler runs in the worker" in finding.message
    assert tool(tmp_path, EXPORT, f"  sandbox: {sandbox}\n  isolation: process\n") == []
    assert tool(tmp_path, EXPORT, "  sandbox: false\n") == []


def test_sandbox_around_handler_in_javascript_is_no_warning(tmp_path: Path) -> None:
    declared = f"{JAVASCRIPT}  exports:\n{EXPORT}  sandbox: true\n"
    handlers = "export const handlers = { run: () => null };"

    assert found_in(write(tmp_path, {"goondan.yaml": declared, "echo.mjs": handlers})) == []


@pytest.mark.parametrize("limit", ["0", "-1", "1.5", "true", "'1200'"])
def test_limit_of_error_messages_is_positive_number(tmp_path: Path, limit: str) -> None:
    findings = tool(tmp_path, EXPORT, f"  errorMessageLimit: {limit}\n")

    assert told(findings) == [(9, "E_CONFIG_SCHEMA_INVALID", "spec.errorMessageLimit")]


def test_only_idempotent_export_may_have_retry(tmp_path: Path) -> None:
    retry = "      retry: { max: 2, backoffSeconds: 0.5, codes: [E_TOOL_TIMEOUT] }\n"

    assert told(tool(tmp_path, EXPORT, retry)) == [(9, "E_CONFIG_SCHEMA_INVALID", "spec.exports[0].retry")]
    assert tool(tmp_path, EXPORT, retry + "  idempotent: true\n") == []


def test_tool_that_retries_needs_idempotent_exports(tmp_path: Path) -> None:
    findings = tool(tmp_path, EXPORT, "  retry: { max: 2 }\n")

    assert told(findings) == [(9, "E_CONFIG_SCHEMA_INVALID", "spec.retry")]
    assert tool(tmp_path, EXPORT, "      idempotent: true\n  retry: { max: 2 }\n") == []


def test_memory_limit_without_process_is_warning(tmp_path: Path) -> None:
    (finding,) = tool(tmp_path, EXPORT, "      memoryMb: 100\n")

    assert (finding.level, finding.path) == ("warning", "spec.exports[0].memoryMb")
    assert tool(tmp_path, EXPORT, "      memoryMb: 100\n  isolation: process\n") == []


def test_name_of_systems_own_tool_is_refused(tmp_path: Path) -> None:
    files = {"goondan.yaml": TOOL.replace("name: echo", "name: goondan")}

    assert told(found_in(write(tmp_path, files))) == [(3, "E_CONFIG_INVALID_NAME", "metadata.name")]
