"""Images that tools return: what a model is shown, and what is stored in the workdir."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.calls import Run, new_call, with_meta
from goondan_tasks.model_messages import StepCallResult, read_model_call
from workers.instances.outputs import DIRECTORY as OUTPUTS
from workers.thinking.images import DIRECTORY, MOST_IMAGE_BYTES, seen_message

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


def test_image_is_shown_to_a_model_that_takes_images(workdir: Path) -> None:
    assert shown(result(OUTPUT), workdir) == {"type": "content", "value": SEEN}
    assert list(workdir.iterdir()) == []


def test_image_is_stored_for_a_model_that_takes_none(workdir: Path) -> None:
    name = f"{DIRECTORY}/id-1-2.png"
    text = {"type": "text", "text": f"[image/png, 1 KiB] in the file {name}"}
    assert shown(result(OUTPUT), workdir, takes_images=False)["value"] == [SEEN[0], text]
    assert (workdir / name).read_bytes() == BYTES


def test_image_that_no_provider_takes_is_stored(workdir: Path) -> None:
    large = base64.b64encode(BYTES + bytes(MOST_IMAGE_BYTES)).decode()
    [block] = shown(result([{"type": "image", "data": large}]), workdir)["value"]
    assert block["text"].endswith(f"in the file {DIRECTORY}/id-1-1.png")


def test_image_is_not_stored_through_a_link(workdir: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (workdir / DIRECTORY).symlink_to(tmp_path / "elsewhere")
    assert shown(result(OUTPUT), workdir, takes_images=False)["value"][1]["text"] == "[image/png, 1 KiB]"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_image_of_an_output_in_a_file_is_shown(workdir: Path) -> None:
    path = f"{OUTPUTS}/id-1-{'0' * 16}.json"
    (workdir / OUTPUTS).mkdir()
    (workdir / path).write_text(json.dumps(OUTPUT), "utf-8")
    stored = {"path": path, "size": 5, "preview": '{"content"'}
    assert shown(result(stored, path), workdir) == {"type": "content", "value": SEEN}


@pytest.mark.parametrize("output", ["text", {"n": 1}, {"content": [{"type": "text", "text": "a"}]}])
def test_output_without_images_stays_as_it_is(workdir: Path, output: Any) -> None:
    assert shown(result(output), workdir)["value"] == output


def test_output_whose_file_is_gone_stays_as_it_is(workdir: Path) -> None:
    path = f"{OUTPUTS}/id-1-{'0' * 16}.json"
    stored = {"path": path, "size": 5, "preview": "x"}
    assert shown(result(stored, path), workdir)["value"] == stored
