"""A server on loopback that speaks the APIs of model providers, and answers as a test's script says.

::

    with ModelServer() as server:
        server.script = lambda asked: Answer("hello") if asked.said[-1].role == "user" else Answer("done")
        … provider: openai-chat, baseUrl: server.url …
        assert server.count == 2

It speaks OpenAI's chat completions and responses, and Anthropic's messages, each as one document and as a
stream of events. It keeps every request (:class:`Asked`), and fails in every way (:mod:`.failures`).
"""

from tests.model_server.conversation import Answer, Call, Picture, Said, Usage
from tests.model_server.failures import (
    Failure,
    busy,
    cut,
    in_stream,
    malformed,
    quota,
    silent,
    status,
    too_long,
    unknown_model,
    wrong_key,
)
from tests.model_server.server import Asked, ModelServer, Script, in_turn

__all__ = [
    "Answer",
    "Asked",
    "Call",
    "Failure",
    "ModelServer",
    "Picture",
    "Said",
    "Script",
    "Usage",
    "busy",
    "cut",
    "in_stream",
    "in_turn",
    "malformed",
    "quota",
    "silent",
    "status",
    "too_long",
    "unknown_model",
    "wrong_key",
]
