"""The addresses that ``http-fetch`` connects to, and those that it refuses."""

import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from goondan_tasks.contract.errors import AddressForbiddenError, ToolError
from tests.unit.workers.builtin.conftest import CallTool
from tests.unit.workers.builtin.local_server import LocalServer
from workers.builtin import http_fetch

pytestmark = pytest.mark.usefixtures("loopback_allowed")


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[list[str]]]:
    """Names and the answers to each question for them; the last answer stays."""
    answers: dict[str, list[list[str]]] = {}
    ask_the_system = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name not in answers:
            return ask_the_system(host, *args, **kwargs)
        rest = answers[name]
        addresses = rest.pop(0) if len(rest) > 1 else rest[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return answers


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.2/",
        "//169.254.169.254/latest/meta-data",
        "http://[::ffff:10.0.0.1]/",
        "http://0/",
    ],
)
def test_redirect_to_forbidden_address_is_refused(call: CallTool, server: LocalServer, location: str) -> None:
    server.answer("/", status=302, headers={"Location": location})

    with pytest.raises(AddressForbiddenError):
        call("http-fetch__get", url=server.url)


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://127.0.0.1/", "http://127.0.0.1:99999/"])
def test_redirect_to_non_http_address_is_refused(call: CallTool, server: LocalServer, location: str) -> None:
    server.answer("/", status=302, headers={"Location": location})

    with pytest.raises(ToolError, match=r"protocol|Invalid URL"):
        call("http-fetch__get", url=server.url)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.2", "[::1]", "127.2", "2130706434", "[::ffff:127.0.0.2]", "10.0.0.1", "0.0.0.0"],
)
def test_address_neither_public_nor_allowed_is_refused(
    call: CallTool, server: LocalServer, host: str
) -> None:
    with pytest.raises(AddressForbiddenError) as caught:
        call("http-fetch__get", url=f"http://{host}:{server.port}/")

    assert caught.value.code == "E_ADDRESS_FORBIDDEN"
    assert server.seen == []


def test_proxy_of_environment_is_not_used(
    call: CallTool, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")

    assert call("http-fetch__get", url=server.url)["body"] == "hello"


def test_connection_goes_to_very_address_that_was_checked(
    call: CallTool, names: dict[str, list[list[str]]]
) -> None:
    names["rebind.test"] = [["127.0.0.1"], ["127.0.0.2"]]
    with LocalServer("127.0.0.1") as allowed, LocalServer("127.0.0.2", allowed.port) as forbidden:
        url = f"http://rebind.test:{allowed.port}/"

        assert call("http-fetch__get", url=url)["body"] == "hello"
        assert allowed.seen[0].headers["host"] == f"rebind.test:{allowed.port}"
        with pytest.raises(AddressForbiddenError, match=r"rebind\.test \(127\.0\.0\.2\)"):
            call("http-fetch__get", url=url)
        assert forbidden.seen == []


def test_name_resolving_differently_after_redirect_is_rechecked(
    call: CallTool, server: LocalServer, names: dict[str, list[list[str]]]
) -> None:
    names["rebind.test"] = [["127.0.0.1"], ["127.0.0.2"]]
    server.answer("/", status=302, headers={"Location": "/again"})

    with pytest.raises(AddressForbiddenError):
        call("http-fetch__get", url=f"http://rebind.test:{server.port}/")

    assert [request.path for request in server.seen] == ["/"]


def test_next_address_is_tried_after_unresponsive_address(
    call: CallTool, names: dict[str, list[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOONDAN_HTTP_ALLOW", "two.test")
    names["two.test"] = [["127.0.0.3", "127.0.0.2"]]
    with LocalServer("127.0.0.2") as server:
        result = call("http-fetch__post", url=f"http://two.test:{server.port}/", bodyString="text")

        assert result["url"] == f"http://two.test:{server.port}/"
        assert server.seen[0].body == b"text"


def certificate(name: str, directory: Path) -> ssl.SSLContext:
    """Make a certificate for a name; return what serves it, and write it for who trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = directory / "server.pem"
    pem.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context


def test_certificate_is_checked_for_host_not_for_address(
    call: CallTool, names: dict[str, list[list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = certificate("right.test", tmp_path)
    trusting = ssl.create_default_context(cafile=str(tmp_path / "server.pem"))
    monkeypatch.setattr(http_fetch, "_tls", lambda: trusting)
    names["right.test"] = names["wrong.test"] = [["127.0.0.1"]]
    with LocalServer("127.0.0.1", tls=serving) as server:
        assert call("http-fetch__get", url=f"https://right.test:{server.port}/")["body"] == "hello"
        with pytest.raises(ToolError, match="CERTIFICATE_VERIFY_FAILED"):
            call("http-fetch__get", url=f"https://wrong.test:{server.port}/")


def test_unknown_certificate_is_refused(
    call: CallTool, names: dict[str, list[list[str]]], tmp_path: Path
) -> None:
    serving = certificate("right.test", tmp_path)
    names["right.test"] = [["127.0.0.1"]]
    with (
        LocalServer("127.0.0.1", tls=serving) as server,
        pytest.raises(ToolError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        call("http-fetch__get", url=f"https://right.test:{server.port}/")
