"""The network addresses that a tool may reach: public ones, and those that the operator allows.

A name is resolved once, here, and callers connect to the addresses that were checked. So a name whose answer
changes meanwhile (DNS rebinding) gains nothing. Rule: DESIGN §6, "paths".
"""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from broker_config.settings import Settings, SettingsError
from goondan_tasks.contract.errors import AddressForbiddenError, ToolError

__all__ = ["Address", "AllowList", "is_public", "permitted_addresses", "resolve"]

Address = IPv4Address | IPv6Address

# The registries of special-purpose addresses (RFC 6890, iana.org), and multicast. These are our own tables,
# since those of `ipaddress` change with the patch level of Python.
_SPECIAL_IPV4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_SPECIAL_IPV6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
_NAT64 = IPv6Network("64:ff9b::/96")

_HOST = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")


@dataclass(frozen=True, slots=True)
class AllowList:
    """The hosts and networks that tools may reach although they are not public."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def load(cls) -> "AllowList":
        """Read ``GOONDAN_HTTP_ALLOW``; this happens at each use, so that tools need no reference to it.

        Raises:
            SettingsError: an entry is neither a host nor a network.
        """
        return cls.parse(Settings.load().http_allow)

    @classmethod
    def parse(cls, text: str) -> "AllowList":
        """Read a comma-separated list, such as ``api.internal, 10.1.0.0/16, ::1``.

        Raises:
            SettingsError: an entry is neither a host nor a network.
        """
        hosts, networks = set(), []
        for entry in filter(None, map(str.strip, text.split(","))):
            name = _plain(entry)
            try:
                networks.append(ip_network(entry))
            except ValueError as error:
                if not _HOST.fullmatch(name):
                    raise SettingsError(
                        f"GOONDAN_HTTP_ALLOW: {entry!r} is neither a host name nor a network: {error}"
                    ) from error
                hosts.add(name)
        return cls(frozenset(hosts), tuple(networks))

    def allows(self, host: str, address: Address) -> bool:
        """Return whether the operator allows the host or its address."""
        return _plain(host) in self.hosts or any(address in network for network in self.networks)


def is_public(address: Address) -> bool:
    """Return whether the address is public.

    An IPv6 address that carries an IPv4 address to a translator (mapped, 6to4, NAT64) is public if that is.
    """
    inner = _carried(address)
    if isinstance(inner, IPv4Address):
        return not any(inner in network for network in _SPECIAL_IPV4)
    return inner in _GLOBAL_UNICAST and not any(inner in network for network in _SPECIAL_IPV6)


async def resolve(host: str) -> list[Address]:
    """Ask the system for the addresses of a host, in the order in which to try them.

    Raises:
        ToolError: the host cannot be resolved.
    """
    try:
        answers = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ToolError(f"The host {host!r} cannot be resolved: {error}") from error
    return [ip_address(str(answer[4][0])) for answer in answers]


async def permitted_addresses(
    host: str, allow: AllowList, *, resolve: Callable[[str], Awaitable[list[Address]]] = resolve
) -> list[Address]:
    """Return the addresses of a host if a tool may reach all of them.

    Raises:
        AddressForbiddenError: one of them is neither public nor allowed.
        ToolError: the host cannot be resolved.
    """
    addresses = await resolve(host)
    for address in addresses:
        if not (is_public(address) or allow.allows(host, _carried(address))):
            shown = host if host == str(address) else f"{host} ({address})"
            raise AddressForbiddenError(f"The address is not public: {shown}")
    return addresses


def _carried(address: Address) -> Address:
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _plain(host: str) -> str:
    return host.lower().rstrip(".")
