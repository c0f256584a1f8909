"""Images that tools return: what a model is shown, and what is stored in the workdir."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.contract.calls import Run, new_call, with_meta
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.model_messages import StepCallResult, read_model_call, told_images, told_text
from workers.instances.outputs import DIRECTORY as OUTPUTS
from workers.thinking.images import (
    DIRECTORY,
    LEFT_OUT,
    MOST_IMAGE_BYTES,
    MOST_IMAGES,
    MOST_IMAGES_CHARACTERS,
    MOST_PIXELS,
    seen_message,
    with_newest_images,
)

BYTES = b"\x89PNG\r\n\x1a\n" + bytes(900)
PNG = base64.b64encode(BYTES).decode()
OUTPUT = {"content": [{"type": "text", "text": "a"}, {"type": "image", "data": PNG, "mimeType": "image/png"}]}
SEEN = [{"type": "text", "text": "a"}, {"type": "image", "data": PNG, "mimeType": "image/png"}]


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    made = tmp_path / "workspaces" / "w" / "instances" / "i" / "workspace"
    made.mkdir(parents=True)
    return made


def result(output: Any, output_file: str | None = None) -> StepCallResult:
    call = new_call("coder", "page__shot", {}, {"tool_call_id": "c1"})
    ended = Run("id-1", call, "w1", 1, 0, lambda: 0.0).ok(output, 0.0)
    asked = read_model_call({"id": "c1", "name": "page__shot", "args": {}}, max_args_bytes=1_000)
    if output_file is not None:
        ended = with_meta(ended, output_file=output_file)
    return StepCallResult(**dict(ended), message=asked.message(ended))


def shown(given: StepCallResult, workdir: Path, *, takes_images: bool = True) -> Any:
    """Return the blocks of the output in the message."""
    message = seen_message(given, "turn-1", workdir, takes_images=takes_images)
    [part] = message.data["content"]
    assert (part["toolCallId"], part["toolName"]) == ("c1", "page__shot")
    return part["output"]


def test_image_is_shown_to_model_that_takes_images(workdir: Path) -> None:
    assert shown(result(OUTPUT), workdir) == {"type": "content", "value": SEEN}
    assert list(workdir.iterdir()) == []


def test_image_is_stored_for_model_that_takes_none(workdir: Path) -> None:
    name = f"{DIRECTORY}/id-1-2.png"
    text = {"type": "text", "text": f"[image/png, 1 KiB] in the file {name}"}
    assert shown(result(OUTPUT), workdir, takes_images=False)["value"] == [SEEN[0], text]
    assert (workdir / name).read_bytes() == BYTES


def test_image_that_no_provider_takes_is_stored(workdir: Path) -> None:
    large = base64.b64encode(BYTES + bytes(MOST_IMAGE_BYTES)).decode()
    [block] = shown(result([{"type": "image", "data": large}]), workdir)["value"]
    assert block["text"].endswith(f"in the file {DIRECTORY}/id-1-1.png")


def test_image_with_overlong_side_is_stored(workdir: Path) -> None:
    wide = BYTES[:8] + b"\0\0\0\rIHDR" + (MOST_PIXELS + 1).to_bytes(4, "big") + bytes(900)
    [block] = shown(result([{"type": "image", "data": base64.b64encode(wide).decode()}]), workdir)["value"]
    assert block["text"].endswith(f"in the file {DIRECTORY}/id-1-1.png")


def test_structured_content_without_text_is_shown_beside_image(workdir: Path) -> None:
    output = {"content": [SEEN[1]], "structuredContent": {"width": 7}}
    told = {"type": "text", "text": '{"width":7}'}
    assert shown(result(output), workdir)["value"] == [SEEN[1], told]
    assert shown(result({**output, **OUTPUT}), workdir)["value"] == SEEN


def test_image_is_not_stored_through_link(workdir: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (workdir / DIRECTORY).symlink_to(tmp_path / "elsewhere")
    assert shown(result(OUTPUT), workdir, takes_images=False)["value"][1]["text"] == "[image/png, 1 KiB]"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_image_of_output_in_file_is_shown(workdir: Path) -> None:
    path = f"{OUTPUTS}/id-1-{'0' * 16}.json"
    (workdir / OUTPUTS).mkdir()
    (workdir / path).write_text(json.dumps(OUTPUT), "utf-8")
    stored = {"path": path, "size": 5, "preview": '{"content"'}
    assert shown(result(stored, path), workdir) == {"type": "content", "value": SEEN}


@pytest.mark.parametrize("output", ["text", {"n": 1}, {"content": [{"type": "text", "text": "a"}]}])
def test_output_without_images_is_unchanged(workdir: Path, output: Any) -> None:
    assert shown(result(output), workdir)["value"] == output


def test_output_with_missing_file_stays_unchanged(workdir: Path) -> None:
    path = f"{OUTPUTS}/id-1-{'0' * 16}.json"
    stored = {"path": path, "size": 5, "preview": "x"}
    assert shown(result(stored, path), workdir)["value"] == stored


def message(number: int, *images: str, kind: str = "content") -> JsonObject:
    """Make the message with an output: a text, and then images."""
    blocks = [{"type": "image", "data": one, "mimeType": "image/png"} for one in images]
    value: Any = [{"type": "text", "text": f"shot {number}"}, *blocks]
    output = {"type": kind, "value": value if kind == "content" else {"content": value}}
    part = {"type": "tool-result", "toolCallId": f"c{number}", "toolName": "page__shot", "output": output}
    return {"role": "tool", "content": [part]}


def told(messages: list[JsonObject]) -> list[str]:
    return [told_text(part["output"])[0] for one in messages for part in one["content"]]


def count(messages: list[JsonObject]) -> int:
    parts = [part for one in messages for part in one["content"]]
    return sum(len(told_images(part["output"]) or ["text"]) - 1 for part in parts)


@pytest.mark.parametrize("kind", ["content", "json"])
def test_only_newest_images_are_in_request(kind: str) -> None:
    given = [message(number, PNG, kind=kind) for number in range(MOST_IMAGES + 1)]
    sent = with_newest_images(given)
    assert count(sent) == 11
    assert sent[10:] == with_newest_images([*given, message(99, PNG)])[10:-1]
    assert [text for text in told(sent) if LEFT_OUT in text] == [
        f"shot {number}\n[image/png, 1 KiB] {LEFT_OUT}" for number in range(10)
    ]


def test_images_of_request_have_size_together() -> None:
    large = base64.b64encode(BYTES + bytes(3_000_000)).decode()
    sent = with_newest_images([message(number, large, PNG) for number in range(6)])
    outputs = [told_images(part["output"]) or () for one in sent for part in one["content"]]
    sizes = [len(image.data) for output in outputs for image in output if not isinstance(image, str)]
    assert sum(sizes) <= MOST_IMAGES_CHARACTERS
    assert count(sent) == 10


def test_messages_with_few_images_stay_as_they_are() -> None:
    given = [{"role": "user", "content": "hi"}, message(1, PNG), message(2)]
    assert with_newest_images(given) == given
