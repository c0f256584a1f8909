"""Checkouts of revisions."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from goondan_tasks.authoring.entry import handlers_in, import_entry
from goondan_tasks.bundle import load_bundle
from goondan_tasks.contract.errors import BundleRevisionUnavailableError
from goondan_tasks.machine.trees import remove_tree
from goondan_tasks.revisions.checkouts import BundleRef, Checkouts, RevisionSource, clean_checkouts
from tests.git_bundle import FILES, GitBundle, git, make_bundle
from tests.processes import process_pool
from tests.unit.goondan_tasks.bundle.writing import write

DAY = 86_400.0


def checkouts_of(bundle: GitBundle, cache: Path, clock: Callable[[], float] = lambda: 0.0) -> Checkouts:
    return Checkouts(cache, RevisionSource.of(bundle.folder), clock)


def ref_of(commit: str) -> BundleRef:
    return BundleRef("git", commit)


@pytest.mark.parametrize("prefix", ["", "deep/notes/"])
def test_old_revision_is_checked_out_as_it_was(tmp_path: Path, prefix: str) -> None:
    bundle = make_bundle(tmp_path / "repo", prefix=prefix)
    old = bundle.head
    bundle.commit({"prompts/coder.md": "new"})

    with checkouts_of(bundle, tmp_path / "cache").open(ref_of(old)) as checkout:
        assert (checkout.path / "prompts/coder.md").read_text("utf-8") == FILES["prompts/coder.md"]
        assert list(load_bundle(checkout.path).agents) == ["coder"]


def test_two_tool_revisions_run_in_one_process(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "repo", files={**FILES, "words.py": "WORD = 'old'\n"})
    text = "from .words import WORD\nhandlers = {'run': lambda ctx, input: WORD}\n"
    old = bundle.commit({"echo.py": text, "words.py": "WORD = 'old'\n"})
    new = bundle.commit({"echo.py": text, "words.py": "WORD = 'new'\n"})
    cache = checkouts_of(bundle, tmp_path / "cache")

    with cache.open(ref_of(old)) as first, cache.open(ref_of(new)) as second:
        runs = [handlers_in(import_entry(checkout.path / "echo.py"))["run"] for checkout in (first, second)]

    assert [run(None, {}) for run in runs] == ["old", "new"]  # type: ignore[arg-type]


def test_attributes_of_bundle_change_no_file(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "repo")
    bundle.git("config", "filter.shout.smudge", "tr a-z A-Z")
    commit = bundle.commit({".gitattributes": "*.md filter=shout eol=crlf export-ignore export-subst\n"})

    with checkouts_of(bundle, tmp_path / "cache").open(ref_of(commit)) as checkout:
        assert (checkout.path / "prompts/coder.md").read_bytes() == b"one\ntwo\nthree\n"


def test_modes_and_links_are_kept(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "repo")
    (bundle.folder / "run.sh").write_text("#!/bin/sh\n", encoding="utf-8")
    (bundle.folder / "run.sh").chmod(0o755)
    (bundle.folder / "link.md").symlink_to("prompts/coder.md")
    commit = bundle.commit({})

    with checkouts_of(bundle, tmp_path / "cache").open(ref_of(commit)) as checkout:
        assert (checkout.path / "run.sh").stat().st_mode & 0o111
        assert (checkout.path / "link.md").readlink() == Path("prompts/coder.md")


def test_unchanged_bundle_outside_git_is_checked_out(tmp_path: Path) -> None:
    folder = write(tmp_path / "bundle", FILES)
    source = RevisionSource.of(folder)
    ref = source.current()
    cache = Checkouts(tmp_path / "cache", source)

    with cache.open(ref) as checkout:
        assert (checkout.path / "goondan.yaml").is_file()
    (folder / "prompts/coder.md").write_text("other", encoding="utf-8")
    with cache.open(ref) as checkout:  # it is here already
        assert (checkout.path / "prompts/coder.md").read_text("utf-8") == FILES["prompts/coder.md"]
    with pytest.raises(BundleRevisionUnavailableError, match="not those of"):
        Checkouts(tmp_path / "other", source).open(ref)


def test_single_file_bundle_is_found_in_checkout(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "repo")
    source = RevisionSource.of(bundle.folder / "goondan.yaml")

    with Checkouts(tmp_path / "cache", source).open(source.current()) as checkout:
        assert checkout.path.name == "goondan.yaml"
        assert load_bundle(checkout.path).agent_names() == ("coder",)


def test_commit_that_is_nowhere_is_unavailable(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "repo")

    with pytest.raises(BundleRevisionUnavailableError, match="not on this machine"):
        checkouts_of(bundle, tmp_path / "cache").open(ref_of("a" * 40))


def test_commit_without_bundle_is_unavailable(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "repo")
    bundle.git("checkout", "--quiet", "--orphan", "other")
    bundle.git("rm", "-r", "--quiet", "--cached", ".")
    bundle.git("commit", "--quiet", "--allow-empty", "-m", "Nothing")

    with pytest.raises(BundleRevisionUnavailableError, match="bundle is not in"):
        checkouts_of(bundle, tmp_path / "cache").open(ref_of(bundle.head))


def test_missing_commit_is_fetched_from_remote(tmp_path: Path) -> None:
    origin = make_bundle(tmp_path / "origin")
    git(tmp_path, "clone", "--quiet", str(origin.root), "here")
    new = origin.commit({"prompts/coder.md": "new"})
    source = RevisionSource.of(tmp_path / "here", "origin")

    with Checkouts(tmp_path / "cache", source).open(ref_of(new)) as checkout:
        assert (checkout.path / "prompts/coder.md").read_text("utf-8") == "new"


def test_unreachable_or_incomplete_remote_makes_commit_unavailable(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "repo")
    for remote in (str(bundle.root), str(tmp_path / "nowhere")):
        cache = Checkouts(tmp_path / "cache", RevisionSource.of(bundle.folder, remote))
        with pytest.raises(BundleRevisionUnavailableError):
            cache.open(ref_of("b" * 40))

    assert list((tmp_path / "cache/revisions").iterdir()) == []


def test_dead_processes_half_made_checkout_is_removed(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "repo")
    left = tmp_path / "cache/revisions/.aside-dead"
    left.mkdir(parents=True)
    cache = checkouts_of(bundle, tmp_path / "cache", lambda: left.stat().st_mtime + DAY)

    with cache.open(ref_of(bundle.head)) as checkout:
        assert (checkout.path / "goondan.yaml").is_file()
        assert clean_checkouts(cache.cache, DAY / 2, clock=cache.clock) == [".aside-dead"]


def test_only_old_and_unused_checkouts_are_cleaned(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "repo")
    old, used = bundle.head, bundle.commit({"prompts/coder.md": "2"})
    new, now = bundle.commit({"prompts/coder.md": "3"}), [DAY]
    cache = checkouts_of(bundle, tmp_path / "cache", lambda: now[0])
    cache.open(ref_of(old)).close()

    with cache.open(ref_of(used)):
        now[0] += 7 * DAY
        cache.open(ref_of(new)).close()
        cleaned = clean_checkouts(cache.cache, 2 * DAY, clock=cache.clock)

    assert cleaned == [f"git-{old}-root"]
    with cache.open(ref_of(old)) as again:
        assert (again.path / "goondan.yaml").is_file()


def test_checkout_that_cannot_be_removed_keeps_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = make_bundle(tmp_path / "repo")
    commits = sorted([bundle.head, bundle.commit({"prompts/coder.md": "2"})])
    cache = checkouts_of(bundle, tmp_path / "cache")
    for commit in commits:
        cache.open(ref_of(commit)).close()
    removal = "goondan_tasks.revisions.checkouts.remove_tree"

    def first_fails(place: Path) -> None:
        monkeypatch.setattr(removal, remove_tree)
        raise PermissionError(f"{place} is not yours")

    monkeypatch.setattr(removal, first_fails)
    with pytest.raises(PermissionError, match="not yours"):
        clean_checkouts(cache.cache, DAY, clock=lambda: 2 * DAY)

    assert list(cache.directory.glob("git-*")) == []


def test_checkout_that_cannot_be_touched_is_not_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = make_bundle(tmp_path / "repo")
    cache = checkouts_of(bundle, tmp_path / "cache")
    cache.open(ref_of(bundle.head)).close()

    def refuse(*_: object) -> None:
        raise PermissionError("not yours")

    with monkeypatch.context() as patched:
        patched.setattr(os, "utime", refuse)
        with pytest.raises(BundleRevisionUnavailableError, match="not yours"):
            cache.open(ref_of(bundle.head))

    assert clean_checkouts(cache.cache, DAY, clock=lambda: 2 * DAY) == [f"git-{bundle.head}-root"]


@pytest.mark.parametrize("protocol", ["2", "0"])
def test_fetch_leaves_no_ref_even_from_branch_only_server(tmp_path: Path, protocol: str) -> None:
    origin = make_bundle(tmp_path / "origin")
    git(tmp_path, "clone", "--quiet", str(origin.root), "here")
    # with version 0, a server refuses commits that are not the tip of a branch
    git(tmp_path / "here", "config", "protocol.version", protocol)
    old, _ = origin.commit({"prompts/coder.md": "2"}), origin.commit({"prompts/coder.md": "3"})
    cache = Checkouts(tmp_path / "cache", RevisionSource.of(tmp_path / "here", "origin"))
    before = git(tmp_path / "here", "for-each-ref")

    with cache.open(ref_of(old)) as checkout:
        assert (checkout.path / "prompts/coder.md").read_text("utf-8") == "2"
    assert git(tmp_path / "here", "for-each-ref") == before


def test_checkout_cleaned_while_opened_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = make_bundle(tmp_path / "repo")
    cache = checkouts_of(bundle, tmp_path / "cache")
    cache.open(ref_of(bundle.head)).close()
    lock, calls = fcntl.flock, []

    def flock_after_a_cleaner(descriptor: int, operation: int) -> None:
        calls.append(operation)
        if len(calls) == 1:
            [place] = (tmp_path / "cache/revisions").iterdir()
            place.rename(tmp_path / "gone")
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_after_a_cleaner)

    with cache.open(ref_of(bundle.head)) as checkout:
        assert (checkout.path / "goondan.yaml").is_file()


def test_many_processes_share_one_checkout(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "repo")
    with process_pool(4, __name__) as pool:
        seen = pool.map(_names, [(bundle.folder, tmp_path / "cache", bundle.head)] * 8)

    assert seen == [["echo.py", "goondan.yaml", "prompts"]] * 8
    assert len(list((tmp_path / "cache/revisions").iterdir())) == 1


def _names(given: tuple[Path, Path, str]) -> list[str]:
    folder, cache, commit = given
    with Checkouts(cache, RevisionSource.of(folder)).open(ref_of(commit)) as checkout:
        return sorted(path.name for path in checkout.path.iterdir())


def test_unwritable_cache_is_reported(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "repo")
    (tmp_path / "cache").write_text("a file", encoding="utf-8")

    with pytest.raises(BundleRevisionUnavailableError, match="cannot be checked out"):
        checkouts_of(bundle, tmp_path / "cache").open(ref_of(bundle.head))
