"""Lists of nothing."""

from pathlib import Path

import pytest

from tests.unit.goondan_tasks.cli.fake_client import FakeClient
from tests.unit.goondan_tasks.cli.invoke import goondan


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("approvals", "list"), "No call waits for an approval."),
        (("dead-letters", "list"), "There are no dead letters."),
        (("audit",), "No act was recorded yet."),
        (("audit", "--by", "ann"), "No such act was recorded."),
        (("instances",), "There are no instances"),
        (("gc", "--older-than", "1d", "--dry-run"), "There is nothing to remove."),
        (("queues",), "start a worker"),
        (("agents",), "start a worker"),
        (("oauth", "sessions"), "There are no consent requests"),
        (("oauth", "grants"), "goondan oauth login"),
    ],
)
def test_empty_list_is_worded_for_people_not_programs(
    arguments: tuple[str, ...], said: str, client: FakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOONDAN_OAUTH_STORE", "file")
    monkeypatch.setenv("GOONDAN_STATE_ROOT", str(tmp_path))
    client.records, client.agent_records = [], {}

    shown = goondan(*arguments)

    assert (shown.exit_code, shown.stdout) == (0, "")
    assert said in shown.stderr
    assert goondan(*arguments, "--json").document == []
