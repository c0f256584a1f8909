"""What the conformance suite of MCP expects of each tool."""

import asyncio
import base64
import io
import wave

RED_PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
)
IMAGE = {"type": "image", "data": RED_PIXEL, "mimeType": "image/png"}
PAUSE_SECONDS = 0.05


def silence():
    """Return a sound of no length."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(1)
        sound.setframerate(8_000)
    return base64.b64encode(file.getvalue()).decode()


def simple_text(ctx, input):
    return "This is a simple text response for testing."


def image_content(ctx, input):
    return IMAGE


def audio_content(ctx, input):
    return {"type": "audio", "data": silence(), "mimeType": "audio/wav"}


def resource(name, mime_type, text):
    return {"type": "resource", "resource": {"uri": f"test://{name}", "mimeType": mime_type, "text": text}}


def embedded_resource(ctx, input):
    return [resource("embedded-resource", "text/plain", "This is an embedded resource content.")]


def multiple_content_types(ctx, input):
    text = {"type": "text", "text": "Multiple content types test:"}
    data = resource("mixed-content-resource", "application/json", '{"test":"data","value":123}')
    return {"content": [text, IMAGE, data]}


def error_handling(ctx, input):
    raise ValueError("This tool intentionally returns an error for testing")


async def tool_with_progress(ctx, input):
    for done in (0, 50, 100):
        ctx.progress(done, 100)
        await asyncio.sleep(PAUSE_SECONDS)
    return "Done."


async def reconnection(ctx, input):
    await asyncio.sleep(PAUSE_SECONDS)
    return "Here it is."


def large_image(ctx, input):
    return {"data": base64.b64encode(b"\0" * input["bytes"]).decode(), "mimeType": "image/x-raw", "type": "image"}


def custom_header(ctx, input):
    return input["region"]


handlers = {
    handler.__name__: handler
    for handler in (
        simple_text,
        image_content,
        audio_content,
        embedded_resource,
        multiple_content_types,
        error_handling,
        tool_with_progress,
        reconnection,
        large_image,
        custom_header,
    )
}
