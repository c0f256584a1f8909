"""Loading an entry file."""

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from goondan_tasks.authoring.entry import (
    IMPORT_HINT,
    PREFIX,
    EntryError,
    handle_in,
    handlers_in,
    import_entry,
    import_failure,
    register_in,
)
from tests.unit.goondan_tasks.bundle.writing import HANDLERS


def entry(folder: Path, text: str, name: str = "handlers.py") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.requirement("bundle.tool.handlers-exported")
def test_handlers_are_found_by_names_of_their_exports(tmp_path: Path) -> None:
    handlers = handlers_in(import_entry(entry(tmp_path, HANDLERS)))

    assert list(handlers) == ["run"]
    assert handlers["run"].__name__ == "run"


def test_entry_imports_its_siblings(tmp_path: Path) -> None:
    entry(tmp_path, "WORD = 'from a sibling'\n", "words.py")
    entry(tmp_path / "deep", "WORD = 'from deeper'\n", "more.py")
    text = (
        "from . import words\nfrom .deep.more import WORD\n"
        "handlers = {'say': lambda ctx, input: [words.WORD, WORD]}\n"
    )

    say = handlers_in(import_entry(entry(tmp_path, text)))["say"]

    assert say(None, {}) == ["from a sibling", "from deeper"]  # type: ignore[arg-type]


def test_siblings_of_one_name_are_kept_apart(tmp_path: Path) -> None:
    text = "from .words import WORD\nhandlers = {WORD: print}\n"
    for name in ("one", "two"):
        entry(tmp_path / name, f"WORD = {name!r}\n", "words.py")

    names = [list(handlers_in(import_entry(entry(tmp_path / name, text)))) for name in ("one", "two")]

    assert names == [["one"], ["two"]]


def test_unchanged_file_is_imported_once(tmp_path: Path) -> None:
    file = entry(
        tmp_path, "import itertools\ncount = itertools.count()\nhandlers = {'n': lambda c, i: next(count)}\n"
    )

    first, second = handlers_in(import_entry(file))["n"], handlers_in(import_entry(file))["n"]

    assert first is second


def test_file_changed_within_one_second_is_imported_again(tmp_path: Path) -> None:
    for name in ("aa", "bb"):
        assert list(handlers_in(import_entry(entry(tmp_path, f"handlers = {{'{name}': print}}\n")))) == [name]


@pytest.mark.skipif(sys.version_info < (3, 14), reason="before Python 3.14 such a file cannot be imported")
def test_annotations_may_use_type_checking_only_imports(tmp_path: Path) -> None:
    module = import_entry(
        entry(
            tmp_path, "def handle(ctx: AgentContext, event: AgentEvent): ...\ndef register(api: Api): ...\n"
        )
    )

    assert handle_in(module) is module.handle
    assert register_in(module)(None, {}) is None


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("", 1, "does not define 'handlers'"),
        ("handler = {}\n", 1, "does not define 'handlers'"),
        ("handlers = None\n", 1, "does not define 'handlers'"),
        ("handlers = []\n", 1, "must be a dict, not list"),
        ("handlers = {'run': 5}\n", 1, "handlers['run'] must be a function"),
        ("handlers = {5: print}\n", 1, "handlers[5] must be a function"),
        ("a = 1\n\ndef run(:\n", 3, "invalid syntax"),
        ("if 1:\nx = 1\n", 2, "expected an indented block"),
        ("x = 'a\n", 1, "unterminated string"),
        ("\x00", 1, ""),
        ("x = " + "(" * 500 + ")" * 500, 1, "nested"),
    ],
)
@pytest.mark.requirement("bundle.tool.handlers-exported")
def test_file_without_usable_handlers_says_why_and_where(
    tmp_path: Path, text: str, line: int, part: str
) -> None:
    file = entry(tmp_path, text)

    with pytest.raises(EntryError) as refusal:
        handlers_in(import_entry(file))

    assert (refusal.value.path, refusal.value.line) == (file.resolve(), line)
    assert part in refusal.value.reason
    assert str(refusal.value).startswith(f"{file.resolve()}:{line}: ")


def test_file_not_in_utf_8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "handlers.py"
    file.write_bytes(b"x = '\xff'\n")

    with pytest.raises(EntryError):
        handlers_in(import_entry(file))


def test_missing_file_is_entry_error(tmp_path: Path) -> None:
    with pytest.raises(EntryError, match="cannot be read"):
        handlers_in(import_entry(tmp_path / "missing.py"))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("raise KeyError('a')\n", KeyError),
        ("import sys\nsys.exit(3)\n", SystemExit),
        ("import no_such_module_at_all\n", ModuleNotFoundError),
        ("from . import broken\n", SyntaxError),
    ],
)
def test_exception_raised_by_entry_file_comes_through(
    tmp_path: Path, text: str, error: type[BaseException]
) -> None:
    entry(tmp_path, "def (:\n", "broken.py")
    file = entry(tmp_path, text)
    before = set(sys.modules)

    with pytest.raises(error):
        handlers_in(import_entry(file))

    assert {name for name in set(sys.modules) - before if name.startswith(PREFIX)} == set()


def test_new_process_imports_entry_and_siblings_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "a%2Eb@c. \udcff"
    entry(folder, "class Word(str): ...\n", "words.py")
    module = import_entry(entry(folder, "from .words import Word\ndef say(): ...\n", "index.v2.py"))

    child = unpickled(pickle.dumps([module.say, module.Word("a")]))

    assert (child.returncode, child.stderr) == (0, "")
    assert child.stdout == f"{os.fsencode(folder)!r} ['say', 'Word']\n"


def test_changed_or_missing_entry_fails_import_by_name(tmp_path: Path) -> None:
    file = entry(tmp_path, "def say(): ...\n")
    pickled = pickle.dumps(import_entry(file).say)
    errors = []
    for change in (lambda: file.write_text("def say(): pass\n", encoding="utf-8"), file.unlink):
        change()
        errors.append(unpickled(pickled).stderr.splitlines()[-1])

    reasons = ("has changed since it was imported", "cannot be read: No such file or directory")
    assert errors == [f"ImportError: {file}, whose function is needed here, {reason}" for reason in reasons]


def unpickled(pickled: bytes) -> subprocess.CompletedProcess[str]:
    """Unpickle objects in a process of its own, which prints where the first is from, and what all are."""
    program = (
        "import os, pickle, sys\n"
        "found = pickle.loads(sys.stdin.buffer.read())\n"
        "folder = os.path.dirname(sys.modules[found[0].__module__].__file__)\n"
        "print(os.fsencode(folder), [getattr(one, '__name__', type(one).__name__) for one in found])\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, input=pickled, capture_output=True, check=False, timeout=60)
    output = (os.fsdecode(data) for data in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(command, done.returncode, *output)


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        (
            "import no_such_module.part\n",
            "Install no_such_module (needed by {file}:1), and name it in spec.requirements.",
        ),
        (
            "from . import far\n",
            "Install no_such_module (needed by {folder}/far.py:2), and name it in spec.requirements.",
        ),
        ("import near\n", "Write `from . import near`: it is a file of the bundle, and not a package."),
        ("import yaml.no_such_part\n", IMPORT_HINT),
        ("raise ModuleNotFoundError('no name')\n", IMPORT_HINT),
    ],
)
def test_failed_import_names_needed_install_and_line(tmp_path: Path, text: str, suggestion: str) -> None:
    entry(tmp_path, "\nimport no_such_module\n", "far.py")
    entry(tmp_path, "WORD = 'near'\n", "near.py")
    file = entry(tmp_path, text)

    with pytest.raises(ModuleNotFoundError) as raised:
        import_entry(file)

    assert import_failure(file, raised.value).suggestion == suggestion.format(file=file, folder=tmp_path)


def test_file_that_failed_is_tried_again(tmp_path: Path) -> None:
    file = entry(tmp_path, "from .words import WORD\nhandlers = {WORD: print}\n")
    with pytest.raises(ModuleNotFoundError):
        handlers_in(import_entry(file))
    entry(tmp_path, "WORD = 'now'\n", "words.py")
    entry(tmp_path, file.read_text() + "# touched, as Python remembers folders\n")

    assert list(handlers_in(import_entry(file))) == ["now"]


def test_concurrent_imports_wait_and_run_file_once(tmp_path: Path) -> None:
    gate, file = tmp_path / "gate", tmp_path / "slow.py"
    os.mkfifo(gate)
    text = f"with open({str(gate)!r}) as gate:\n    gate.read()\nhandlers = {{'wait': print}}\n"
    file.write_text(text, encoding="utf-8")
    with ThreadPoolExecutor(8) as threads:
        imports = [threads.submit(import_entry, file) for _ in range(8)]
        # the gate opens when one has begun to read; a second would read for ever
        with gate.open("w"):
            pass
        modules = [one.result(10) for one in imports]

    assert modules == [modules[0]] * 8
    assert list(handlers_in(modules[0])) == ["wait"]
