"""Errors as results describe them."""

import errno
import json
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_config import serializer
from goondan_tasks.authoring.changesets_api import ChangesetError
from goondan_tasks.contract import failure
from goondan_tasks.contract.calls import Run, identity_of, new_call
from goondan_tasks.contract.errors import ToolError, ToolExpiredError, ToolInputValidationError
from goondan_tasks.contract.failure import (
    LONGEST_HINT,
    LONGEST_MESSAGE,
    LONGEST_NAME,
    MOST_INSIDE,
    MOST_PLACES,
    DescribedError,
    describe,
    has_page,
    traceback_text,
    truncate,
    with_error_in_output_by_name,
)
from goondan_tasks.contract.messages import ToolCallError, wall_clock
from goondan_tasks.contract.redaction import KNOWN_SECRETS
from goondan_tasks.revisions.git import GitError
from goondan_web.answers import RequestError

HELP = "https://help.example/"


class ApiError(Exception):
    """A tool author's own exception."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = "E_API"
        self.suggestion = "Wait a minute."
        self.help_url = "https://api.example/limits"


class Hostile(Exception):  # noqa: N818 - the name does not matter
    """An exception that fights back."""

    def __str__(self) -> str:
        raise RuntimeError("no text for you")

    @property
    def code(self) -> str:
        raise RuntimeError("no code for you")


def test_missing_package_is_named_with_importing_line() -> None:
    with pytest.raises(ModuleNotFoundError) as raised:
        exec(compile("\nimport no_such_module", "/srv/shop/tool.py", "exec"))  # noqa: S102

    described = describe(raised.value, help_url=HELP)

    assert (described.code, described.message) == ("E_TOOL", "No module named 'no_such_module'")
    assert described.suggestion == (
        "Install no_such_module (needed by /srv/shop/tool.py:2), and name it in spec.requirements."
    )


@pytest.mark.requirement("error.code", "error.name", "error.message", "error.suggestion", "error.help-url")
def test_fields_of_exception_are_copied() -> None:
    described = describe(ApiError("too fast"), help_url=HELP)
    assert described.to_wire() == {
        "code": "E_API",
        "name": "ApiError",
        "message": "too fast",
        "suggestion": "Wait a minute.",
        "helpUrl": "https://api.example/limits",
    }


@pytest.mark.requirement("error.code", "error.help-url")
def test_exception_without_code_becomes_e_tool_with_help() -> None:
    described = describe(ValueError("bad"), help_url=HELP)
    assert (described.code, described.name, described.message) == ("E_TOOL", "ValueError", "bad")
    assert described.suggestion
    assert described.help_url == "https://help.example/E_TOOL"


def test_os_error_has_its_errno_name_as_code() -> None:
    described = describe(OSError(errno.ENOENT, "No such file"), help_url=HELP)
    assert described.code == "ENOENT"


@pytest.mark.requirement("error.suggestion", "error.help-url")
def test_our_error_keeps_its_suggestion_and_page() -> None:
    described = describe(ToolInputValidationError("'a' is required"), help_url=HELP)
    assert described.suggestion == ToolInputValidationError.suggestion
    assert described.help_url == "https://help.example/E_TOOL_INVALID_ARGS"


def test_tools_own_code_has_no_help_page() -> None:
    for code in ("ENOENT", "E_API"):
        assert describe(ToolError("no", code=code), help_url=HELP).help_url is None


def test_changeset_codes_have_pages_only_in_our_errors() -> None:
    ours = (ChangesetError("no", code="POLICY_VIOLATION"), GitError("no"))

    assert [describe(error, help_url=HELP).help_url for error in ours] == [
        "https://help.example/POLICY_VIOLATION",
        "https://help.example/GIT_ERROR",
    ]
    assert describe(ToolError("no", code="GIT_ERROR"), help_url=HELP).help_url is None


def test_every_error_page_belongs_to_known_code() -> None:
    pages = [page.stem for page in (Path(__file__).parents[4] / "docs/errors").glob("E_*.md")]
    of_requests = {RequestError.code, *(error.code for error in RequestError.__subclasses__())}
    assert of_requests <= set(pages)
    assert [code for code in pages if not has_page(code) and code not in of_requests] == []


def test_attributes_that_are_not_text_are_left_alone() -> None:
    error = ValueError("x")
    error.code = 42  # type: ignore[attr-defined]
    assert describe(error, help_url=HELP).code == "E_TOOL"


def test_exception_that_fights_back_is_described_all_same() -> None:
    described = describe(Hostile(), help_url=HELP)
    assert (described.code, described.name) == ("E_TOOL", "Hostile")


def test_text_that_cannot_be_sent_is_made_printable() -> None:
    assert describe(ValueError("\ud800"), help_url=HELP).message == "\\ud800"


def test_exception_without_message_shows_its_class() -> None:
    assert describe(KeyboardInterrupt(), help_url=HELP).message == "KeyboardInterrupt"


def test_syntax_error_shows_file_and_line() -> None:
    with pytest.raises(SyntaxError) as raised:
        compile("x = = 1", "tool.py", "exec")
    message = describe(raised.value, help_url=HELP).message
    assert "tool.py" in message
    assert "line 1" in message


@pytest.mark.requirement("error.message-limit-default")
def test_message_is_cut_to_thousand_characters_by_default() -> None:
    assert len(describe(ValueError("x" * 5000), help_url=HELP).message) == 1000


@pytest.mark.requirement("error.message-limit", "error.truncation")
@given(st.text(), st.integers(min_value=1, max_value=60))
def test_cut_message_is_never_longer_than_its_limit(message: str, limit: int) -> None:
    cut = truncate(message, limit)
    assert len(cut) == min(len(message), limit)
    assert cut == message or limit <= 15 or cut.endswith("... (truncated)")


class Chatty(Exception):  # noqa: N818 - the name does not matter
    """An exception that says far too much of itself."""

    code = "E" * 1_000_000
    suggestion = "s" * 1_000_000
    help_url = "https://" + "h" * 1_000_000


def test_all_texts_of_exception_are_bounded() -> None:
    described = describe(Chatty("m" * 1_000_000), help_url=HELP, message_limit=10**9)
    assert len(described.message) == LONGEST_MESSAGE
    assert len(described.code) == LONGEST_NAME
    assert described.suggestion is not None
    assert len(described.suggestion) == LONGEST_HINT
    assert described.suggestion.endswith("... (truncated)")
    assert described.help_url is None
    endless = type("N" * 1_000_000, (Exception,), {})
    assert len(describe(endless(), help_url=HELP).name) == LONGEST_NAME


class Text(str):
    """A text that fights back."""

    def encode(self, *_: object, **__: object) -> bytes:
        raise RuntimeError("no bytes for you")

    def __len__(self) -> int:
        raise RuntimeError("no length for you")


def test_hostile_text_is_read_all_same() -> None:
    error = ToolInputValidationError("message")
    error.message, error.code = Text("all the same"), Text("E_MINE")
    described = describe(error, help_url=HELP)
    assert (described.message, described.code) == ("all the same", "E_MINE")


def test_error_described_elsewhere_stays_unchanged() -> None:
    description = describe(ApiError("slow down"), help_url="https://elsewhere.example/")
    error = DescribedError(description)
    assert describe(error, help_url=HELP, message_limit=3) == description
    assert (error.code, error.message, error.suggestion) == ("E_API", "slow down", "Wait a minute.")
    assert error.help_url == "https://api.example/limits"


def test_error_described_elsewhere_shows_no_local_secret() -> None:
    KNOWN_SECRETS.add("canary-of-a-described-error")
    error = DescribedError(describe(ApiError("no canary-of-a-described-error"), help_url=HELP))
    assert describe(error, help_url=HELP).message == "no ***"


@pytest.mark.requirement("v1.error-in-output")
@pytest.mark.parametrize(
    ("name", "is_told"), [("slack.post", True), ("slack__post", False), ("bash", False), ("a.b__c", False)]
)
def test_only_dotted_name_marks_older_tool(name: str, is_told: bool) -> None:
    call = new_call("coder", name, {}, {})
    run = Run(identity_of(call), call, "w1", 1, wall_clock(), wall_clock)
    failed = run.failed(describe(ToolExpiredError(), help_url="https://help/"), None)
    assert (with_error_in_output_by_name(failed).output is not None) == is_told


def test_exception_group_shows_members_codes_and_messages() -> None:
    inner = ExceptionGroup("later", [ApiError("no quota"), OSError(errno.ENOSPC, "the disk is full")])
    described = describe(ExceptionGroup("two went wrong", [ValueError("odd"), inner]), help_url=HELP)

    assert (described.code, described.name) == ("E_TOOL", "ExceptionGroup")
    assert described.message == (
        "two went wrong (2 sub-exceptions): ValueError: odd; E_API: no quota; "
        "ENOSPC: [Errno 28] the disk is full"
    )


def test_exception_group_takes_code_its_members_share() -> None:
    described = describe(ExceptionGroup("both", [ApiError("a"), ApiError("b")]), help_url=HELP)

    assert described.code == "E_API"


def test_group_of_very_many_exceptions_names_only_first() -> None:
    group = ExceptionGroup("many", [ExceptionGroup("more", [ValueError(str(n)) for n in range(100)])] * 100)

    message = describe(group, help_url=HELP, message_limit=LONGEST_MESSAGE).message

    assert message.count("ValueError") == MOST_INSIDE


class CodedError(Exception):
    """An exception of a module, with a code of its class."""

    code = "E_CLASS"


class ShadowedError(Exception):
    """An exception whose class hides what it has."""

    @property
    def __dict__(self) -> dict[str, object]:  # type: ignore[override]
        raise RuntimeError("no fields for you")


def noted() -> Exception:
    error = ValueError("no")
    error.add_note("and a note")
    return error


def caused() -> Exception:
    error = ValueError("no")
    error.__cause__ = KeyError("x")
    return error


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        ValueError(" a: b \n c"),
        ValueError(""),
        ValueError(1),
        ValueError("one", "two"),
        KeyError("x"),
        OSError(2, "gone"),
        CodedError("of a module"),
        SyntaxError("no", ("file.py", 1, 2, "a b", 1, 3)),
        ExceptionGroup("group", [ValueError("inside")]),
        Hostile(),
        noted(),
        caused(),
    ],
)
def test_traceback_reads_as_pythons_own(error: Exception) -> None:
    for _ in range(2):  # the lines of a place are made once
        with pytest.raises(type(error)) as raised:
            raise error
        assert traceback_text(raised.value) == "".join(traceback.format_exception(raised.value))
        error.__traceback__ = None


def test_places_of_exceptions_are_remembered_within_bounds() -> None:
    for number in range(2 * MOST_PLACES):
        try:
            exec("\n" * number + "raise ValueError('no')")  # noqa: S102
        except ValueError as error:
            assert f"line {number + 1}" in traceback_text(error)
    assert len(failure._FRAMES) <= MOST_PLACES


@pytest.mark.parametrize(("error", "code"), [(CodedError("no"), "E_CLASS"), (ShadowedError("no"), "E_TOOL")])
def test_exception_class_attributes_are_read_without_asking_exception(error: Exception, code: str) -> None:
    described = describe(error, help_url=HELP)

    assert (described.code, described.message) == (code, "no")


@pytest.mark.parametrize("message", ["no \u20ac \x00", "half \ud800"])
def test_error_result_is_written_like_its_record(message: str) -> None:
    run = Run("call", new_call("coder", "bash__exec", {}, {}), "w1", 1, 0.0, wall_clock)
    result = run.failed(ToolCallError(code="E_TOOL", name="ToolError", message=message), 0.0)

    assert json.loads(result.to_json()) == json.loads(serializer.encode(result.to_wire(), repairs=True))
