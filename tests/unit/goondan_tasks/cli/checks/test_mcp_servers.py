"""What doctor says of MCP servers."""

from goondan_tasks.cli.checks.mcp_servers import mcp_server_checks
from goondan_tasks.roster import McpServerRecord, WorkerRecord


def worker(name: str, *servers: McpServerRecord) -> WorkerRecord:
    return WorkerRecord(
        name=name,
        pid=1,
        host="h",
        agents=("clerk",),
        concurrency=8,
        root_id="r",
        started_at="2026-02-01T10:00:00.000Z",
        mcp_servers=servers,
    )


def server(name: str = "time", *, reason: str | None = None, failures: int = 0) -> McpServerRecord:
    return McpServerRecord(
        agent="clerk", name=name, is_up=reason is None, tools=2, failures=failures, reason=reason
    )


def test_without_servers_nothing_is_said() -> None:
    assert mcp_server_checks([worker("one")]) == []


def test_a_server_that_is_up_everywhere_is_ok() -> None:
    [check] = mcp_server_checks([worker("one", server(failures=1)), worker("two", server(failures=2))])

    assert (check.name, check.level, check.message) == (
        "MCP server time of clerk",
        "ok",
        "2 tools; lost 3 times",
    )


def test_a_server_that_is_down_is_a_warning_with_the_reason() -> None:
    bad = server("git", reason="it ended with exit status 1; it is started again in 4 s")

    git, time = mcp_server_checks([worker("one", server(), bad)])

    assert (git.level, git.message) == (
        "warning",
        "down in one: it ended with exit status 1; it is started again in 4 s",
    )
    assert git.remedy
    assert (time.level, time.message) == ("ok", "2 tools; never lost")


def test_it_is_said_in_how_many_workers_a_server_is_down() -> None:
    [check] = mcp_server_checks([worker("one", server()), worker("two", server(reason="no answer"))])

    assert check.message == "down in 1 of 2 workers; in two: no answer"


def test_a_record_of_an_older_worker_says_nothing_of_servers() -> None:
    wire = {key: value for key, value in worker("one").to_wire().items() if key != "mcpServers"}

    assert mcp_server_checks([WorkerRecord.from_wire(wire)]) == []
