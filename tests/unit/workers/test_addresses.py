import asyncio
from ipaddress import ip_address

import pytest

from broker_config.settings import SettingsError
from goondan_tasks.contract.errors import AddressForbiddenError, ToolError
from workers.addresses import Address, AllowList, is_public, permitted_addresses

NOT_PUBLIC = [
    "0.0.0.0",
    "10.1.2.3",
    "100.64.0.1",
    "127.0.0.1",
    "127.255.255.254",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::8.8.8.8",
    "::ffff:0:8.8.8.8",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::10.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b:1::8.8.8.8",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:a00:1::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd12::1",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
]
PUBLIC = [
    "1.1.1.1",
    "172.15.255.255",
    "172.32.0.1",
    "100.63.255.255",
    "223.255.255.255",
    "2606:4700::1111",
    "::ffff:1.1.1.1",
    "64:ff9b::1.1.1.1",
    "2002:101:101::1",
]


@pytest.mark.parametrize("text", NOT_PUBLIC)
def test_address_is_not_public(text: str) -> None:
    assert not is_public(ip_address(text))


@pytest.mark.parametrize("text", PUBLIC)
def test_address_is_public(text: str) -> None:
    assert is_public(ip_address(text))


def permitted(host: str, allow: AllowList, *answers: str) -> list[str]:
    async def resolve(asked: str) -> list[Address]:
        assert asked == host
        return [ip_address(answer) for answer in answers]

    return list(map(str, asyncio.run(permitted_addresses(host, allow, resolve=resolve))))


def test_public_addresses_are_permitted_in_their_order() -> None:
    assert permitted("example.com", AllowList(), "2606:4700::1111", "1.1.1.1") == [
        "2606:4700::1111",
        "1.1.1.1",
    ]


def test_host_with_any_forbidden_address_is_forbidden() -> None:
    with pytest.raises(AddressForbiddenError, match=r"evil\.example \(10\.0\.0\.1\)") as caught:
        permitted("evil.example", AllowList(), "1.1.1.1", "10.0.0.1")

    assert caught.value.code == "E_ADDRESS_FORBIDDEN"
    assert "GOONDAN_HTTP_ALLOW" in (caught.value.suggestion or "")


@pytest.mark.parametrize(
    ("allow", "host", "address"),
    [
        ("api.internal", "api.internal", "10.0.0.1"),
        ("API.internal.", "api.INTERNAL", "10.0.0.1"),
        ("api.internal", "api.internal.", "10.0.0.1"),
        ("10.0.0.0/8", "whatever", "10.200.0.1"),
        ("10.0.0.0/8", "whatever", "::ffff:10.200.0.1"),
        ("10.0.0.0/8", "whatever", "64:ff9b::10.200.0.1"),
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        (" ::1 ,, fd00::/8,", "whatever", "fd12::1"),
        ("0.0.0.0/0,::/0", "whatever", "fe80::1%eth0"),
    ],
)
def test_operator_allows_hosts_and_networks(allow: str, host: str, address: str) -> None:
    assert permitted(host, AllowList.parse(allow), address) == [str(ip_address(address))]


@pytest.mark.parametrize(
    ("allow", "host", "address"),
    [
        ("api.internal", "other.internal", "10.0.0.1"),
        ("internal", "api.internal", "10.0.0.1"),
        ("10.0.0.0/8", "whatever", "192.168.0.1"),
        ("127.0.0.1", "localhost", "127.0.0.2"),
        ("127.0.0.1", "localhost", "::1"),
    ],
)
def test_host_not_allowed_by_operator_stays_forbidden(allow: str, host: str, address: str) -> None:
    with pytest.raises(AddressForbiddenError):
        permitted(host, AllowList.parse(allow), address)


@pytest.mark.parametrize(
    "text",
    ["10.0.0.1/8", "10.0.0.0/33", "http://host", "host:80", "[::1]", "*", "*.corp", "-a", "한글.kr", "a b"],
)
def test_entry_neither_host_nor_network_is_reported(text: str) -> None:
    with pytest.raises(SettingsError, match="GOONDAN_HTTP_ALLOW") as caught:
        AllowList.parse(f"localhost, {text}")

    assert repr(text) in str(caught.value)


def test_allow_list_comes_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOONDAN_HTTP_ALLOW", "localhost")
    assert AllowList.load() == AllowList(hosts=frozenset({"localhost"}))

    monkeypatch.delenv("GOONDAN_HTTP_ALLOW")
    assert AllowList.load() == AllowList()


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f.1", "0177.0.0.1", "localhost"])
def test_other_spellings_of_loopback_are_seen_through(host: str) -> None:
    with pytest.raises(AddressForbiddenError):
        asyncio.run(permitted_addresses(host, AllowList()))


@pytest.mark.parametrize("host", ["a..b", "x" * 70 + ".test"])
def test_host_name_unfit_for_dns_is_reported(host: str) -> None:
    with pytest.raises(ToolError, match="cannot be resolved"):
        asyncio.run(permitted_addresses(host, AllowList()))
