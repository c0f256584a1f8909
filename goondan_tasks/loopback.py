"""Which hosts are this machine, seen from itself."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Say whether ``host`` is this machine alone: ``localhost``, 127.0.0.0/8 or ::1."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
