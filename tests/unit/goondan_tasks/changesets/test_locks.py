"""Who commits."""

import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from fakeredis import FakeRedis
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from goondan_tasks.authoring.changesets_api import ChangesetError, CommitResult
from goondan_tasks.changesets.changesets import CommitLock, file_lock, redis_lock
from goondan_tasks.changesets.check import BundleCheck, Checked
from goondan_tasks.contract.errors import BrokerUnreachableError
from tests.git_bundle import make_bundle, open_changeset

KEY = "goondan:commit-lock:notes"


@pytest.fixture(params=["file", "redis"])
def two(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[CommitLock, CommitLock]:
    """Make one lock twice, as two processes would."""
    if request.param == "file":
        lock: CommitLock = partial(file_lock, tmp_path / "lock", 0.2)
        return lock, lock
    redis = FakeRedis()
    return partial(redis_lock, redis, KEY, 0.2), partial(redis_lock, redis, KEY, 0.2)


def test_second_waits_for_first_and_not_for_ever(two: tuple[CommitLock, CommitLock]) -> None:
    first, second = two
    with first(), pytest.raises(ChangesetError, match="in progress"), second():
        pass
    with second():
        pass


def test_lock_is_given_back_when_its_holder_fails(two: tuple[CommitLock, CommitLock]) -> None:
    first, second = two
    with pytest.raises(KeyError), first():
        raise KeyError

    with second():
        pass


def test_lock_of_dead_process_is_free(tmp_path: Path) -> None:
    program = (
        "import os, sys, pathlib\nfrom goondan_tasks.changesets.changesets import file_lock\n"
        "held = file_lock(pathlib.Path(sys.argv[1]))\nheld.__enter__()\nos.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "lock")], check=False, timeout=60)

    with file_lock(tmp_path / "lock", 0.0):
        pass


def test_late_holder_does_not_release_expired_redis_lock() -> None:
    redis = FakeRedis()
    with redis_lock(redis, KEY, 0.2):
        assert 0 < redis.ttl(KEY) <= 60
        redis.set(KEY, "of another")

    assert redis.get(KEY) == b"of another"


def test_unreachable_redis_is_reported() -> None:
    class Away(FakeRedis):
        """Answers nothing."""

        def execute_command(self, *args: object, **options: object) -> object:
            raise RedisConnectionError("no route")

    away: Redis = Away()
    with pytest.raises(BrokerUnreachableError, match="no route"), redis_lock(away, KEY):
        pass


def test_others_commit_while_changeset_is_read_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = make_bundle(tmp_path / "repo")
    changesets = replace(bundle.changesets(), locks=(partial(file_lock, tmp_path / "lock", 0.2),))
    slow, quick = (open_changeset(changesets, tmp_path / name) for name in ("slow", "quick"))
    slow.write({"prompts/slow.md": "x\n"})
    quick.write({"prompts/quick.md": "x\n"})
    results: list[CommitResult] = []
    check = BundleCheck.check

    def slow_check(self: BundleCheck, tree: str, *, import_entries: bool = True) -> Checked:
        monkeypatch.setattr(BundleCheck, "check", check)
        results.append(quick.changesets.commit(quick.changeset_id))
        return check(self, tree, import_entries=import_entries)

    monkeypatch.setattr(BundleCheck, "check", slow_check)
    results.append(slow.changesets.commit(slow.changeset_id))

    assert [result.status for result in results] == ["ok", "ok"]
    assert {"prompts/slow.md", "prompts/quick.md"} <= bundle.tracked()
