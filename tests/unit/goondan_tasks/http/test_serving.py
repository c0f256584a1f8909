"""Listening for HTTP."""

import socket

import pytest

from goondan_tasks.http.serving import listening, url_of


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_free_port_is_found_and_named(host: str) -> None:
    with listening(host, 0) as server:
        assert url_of(server).startswith("http://")
        with socket.create_connection(server.getsockname()[:2], timeout=30) as caller:
            assert caller.getpeername()[1] == server.getsockname()[1]


def test_an_address_with_colons_stands_in_brackets() -> None:
    with listening("::1", 0) as server:
        assert url_of(server) == f"http://[::1]:{server.getsockname()[1]}"


@pytest.mark.parametrize("host", ["127..0.0.1", ".", "a" * 64, "no host"])
def test_what_is_no_name_of_a_host_is_refused(host: str) -> None:
    with pytest.raises(OSError), listening(host, 0):
        pass


def test_a_port_that_is_taken_is_refused() -> None:
    with (
        listening("127.0.0.1", 0) as server,
        pytest.raises(OSError, match="in use"),
        listening("127.0.0.1", server.getsockname()[1]),
    ):
        pass
