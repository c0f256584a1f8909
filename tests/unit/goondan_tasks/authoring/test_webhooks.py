"""Signatures of webhooks: one table for Python and JavaScript. The signatures were made with openssl."""

import json
import subprocess
from typing import Any, cast

import pytest

from goondan_tasks.authoring.webhooks import HttpRequest, Scheme, verify
from goondan_tasks.contract.errors import ConnectorError, WebhookRefusedError
from goondan_tasks.machine.javascript import STARTED_IN
from tests.javascript_runtimes import NAMES, runtime

BODY = '{"type":"event"}'
SIGNED_AT = 1_700_000_000
SLACK = "d85e6b421a4a97e288897bbc32a45cbca286ba3edce4f86bfc0553a3112929f1"
STRIPE = "46f62aeb76b112a8b98f198cef3e22a24e4c76682f733606db430065d0986277"
HEX = "28780697fdf41440ffaf52008e16644bdc0a549244c81deb1cfd8abd9ea50a0a"
BASE64 = "KHgGl/30FED/r1IAjhZkS9wKVJJEyB3rHP2KvZ6lCgo="
GENUINE, REFUSED, MISUSED = "genuine", "E_WEBHOOK_REFUSED", "E_CONNECTOR"


def slack(signature: str = f"v0={SLACK}", time: str = str(SIGNED_AT)) -> dict[str, str]:
    return {"x-slack-signature": signature, "x-slack-request-timestamp": time}


def stripe(header: str) -> dict[str, str]:
    return {"stripe-signature": header}


#: the answer, the scheme, the headers, and what differs from the usual: secret, header, age (s), body
CASES: dict[str, tuple[str, str, dict[str, str], dict[str, Any]]] = {
    "slack": (GENUINE, "slack", slack(), {}),
    "slack, upper case": (GENUINE, "slack", slack(f"v0={SLACK.upper()}"), {}),
    "slack, five minutes old": (GENUINE, "slack", slack(), {"age": 300}),
    "slack, older": (REFUSED, "slack", slack(), {"age": 301}),
    "slack, in the future": (REFUSED, "slack", slack(), {"age": -301}),
    "slack, older than one minute": (REFUSED, "slack", slack(), {"age": 61, "max_age": 60}),
    "slack, another time": (REFUSED, "slack", slack(time=str(SIGNED_AT + 1)), {}),
    "slack, no time": (REFUSED, "slack", {"x-slack-signature": f"v0={SLACK}"}, {}),
    "slack, time in words": (REFUSED, "slack", slack(time="now"), {}),
    "slack, time with a sign": (REFUSED, "slack", slack(time=f"+{SIGNED_AT}"), {}),
    "slack, time in other digits": (REFUSED, "slack", slack(time="\uff11\uff17" + "\uff10" * 8), {}),
    "slack, time of many digits": (REFUSED, "slack", slack(time="9" * 5_000), {}),
    "slack, other version": (REFUSED, "slack", slack(f"v1={SLACK}"), {}),
    "slack, no signature": (REFUSED, "slack", {"x-slack-request-timestamp": str(SIGNED_AT)}, {}),
    "slack, empty signature": (REFUSED, "slack", slack("v0="), {}),
    "slack, no hex": (REFUSED, "slack", slack(f"v0={SLACK[:-2]}zz"), {}),
    "slack, surplus hex": (REFUSED, "slack", slack(f"v0={SLACK}00"), {}),
    "slack, half of it": (REFUSED, "slack", slack(f"v0={SLACK[:32]}"), {}),
    "slack, not ascii": (REFUSED, "slack", slack("v0=\u00e9\u00ff"), {}),
    "slack, other body": (REFUSED, "slack", slack(), {"body": BODY + " "}),
    "slack, other secret": (REFUSED, "slack", slack(), {"secret": "guessed"}),
    "github": (GENUINE, "github", {"x-hub-signature-256": f"sha256={HEX}"}, {"age": 10**9}),
    "github, the example of its manual": (
        GENUINE,
        "github",
        {"x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"},
        {"body": "Hello, World!", "secret": "It's a Secret to Everybody"},
    ),
    "github, sha1": (REFUSED, "github", {"x-hub-signature-256": f"sha1={HEX}"}, {}),
    "github, only the older header": (REFUSED, "github", {"x-hub-signature": f"sha256={HEX}"}, {}),
    "github, two headers": (REFUSED, "github", {"x-hub-signature-256": f"sha256=00, sha256={HEX}"}, {}),
    "github, in another header": (GENUINE, "github", {"x-own": f"sha256={HEX}"}, {"header": "X-Own"}),
    "stripe": (GENUINE, "stripe", stripe(f"t={SIGNED_AT},v1={STRIPE}"), {}),
    "stripe, with spaces and v0": (GENUINE, "stripe", stripe(f"t={SIGNED_AT}, v1={STRIPE}, v0=1"), {}),
    "stripe, the second fits": (GENUINE, "stripe", stripe(f"t={SIGNED_AT},v1={HEX},v1={STRIPE}"), {}),
    "stripe, only v0": (REFUSED, "stripe", stripe(f"t={SIGNED_AT},v0={STRIPE}"), {}),
    "stripe, no time": (REFUSED, "stripe", stripe(f"v1={STRIPE}"), {}),
    "stripe, two times": (REFUSED, "stripe", stripe(f"t=1,t={SIGNED_AT},v1={STRIPE}"), {}),
    "stripe, old": (REFUSED, "stripe", stripe(f"t={SIGNED_AT},v1={STRIPE}"), {"age": 301}),
    "stripe, nothing but commas": (REFUSED, "stripe", stripe("," * 1_000), {}),
    "hex": (GENUINE, "hmac-hex", {"x-own": HEX}, {"header": "x-own"}),
    "hex, with a prefix": (REFUSED, "hmac-hex", {"x-own": f"sha256={HEX}"}, {"header": "x-own"}),
    "base64": (GENUINE, "hmac-base64", {"x-own": BASE64}, {"header": "x-own"}),
    "base64, as hex": (REFUSED, "hmac-base64", {"x-own": HEX}, {"header": "x-own"}),
    "base64, with a space": (REFUSED, "hmac-base64", {"x-own": f" {BASE64}"}, {"header": "x-own"}),
    "hex, no header named": (MISUSED, "hmac-hex", {"x-own": HEX}, {}),
    "no such scheme": (MISUSED, "md5", {"x-own": HEX}, {"header": "x-own"}),
    "a scheme of every object": (MISUSED, "toString", {"x-own": HEX}, {"header": "x-own"}),
    "no secret": (MISUSED, "github", {"x-hub-signature-256": f"sha256={HEX}"}, {"secret": ""}),
}

_IN_JAVASCRIPT = """
import { verify } from %s;
const read = [];
for await (const chunk of process.stdin) read.push(chunk);
const answers = JSON.parse(Buffer.concat(read)).map(({ headers, body, scheme, options, now }) => {
  try {
    verify({ headers, body: Buffer.from(body) }, scheme, { ...options, clock: () => now * 1000 });
    return 'genuine';
  } catch (error) {
    return error.code ?? String(error);
  }
});
process.stdout.write(JSON.stringify(answers));
"""


@pytest.mark.parametrize("name", CASES)
def test_signature_is_verified(name: str) -> None:
    wanted, scheme, headers, other = CASES[name]
    request = HttpRequest("POST", "/x", headers=headers, body=other.get("body", BODY).encode())
    options = {key: other[key] for key in ("header",) if key in other}
    try:
        verify(
            request,
            cast(Scheme, scheme),
            other.get("secret", "s3cret"),
            max_age_seconds=other.get("max_age", 300),
            clock=lambda: SIGNED_AT + other.get("age", 0),
            **options,
        )
        answer = GENUINE
    except ConnectorError as error:
        answer = error.code

    assert answer == wanted


@pytest.mark.parametrize("language", NAMES)
def test_signatures_are_verified_alike_in_javascript(language: str) -> None:
    asked = [
        {
            "headers": headers,
            "body": other.get("body", BODY),
            "scheme": scheme,
            "now": SIGNED_AT + other.get("age", 0),
            "options": {
                "secret": other.get("secret", "s3cret"),
                "maxAgeSeconds": other.get("max_age", 300),
                **({"header": other["header"]} if "header" in other else {}),
            },
        }
        for _, scheme, headers, other in CASES.values()
    ]
    module = json.dumps(str(STARTED_IN / "verify.mjs"))
    command = [runtime(language).program, "--input-type=module", "-e", _IN_JAVASCRIPT % module]
    if language == "bun":
        command.remove("--input-type=module")
    ended = subprocess.run(command, input=json.dumps(asked).encode(), stdout=subprocess.PIPE, check=True)

    answers = dict(zip(CASES, json.loads(ended.stdout), strict=True))
    assert answers == {name: wanted for name, (wanted, *_) in CASES.items()}


def test_non_json_body_is_refused_with_400() -> None:
    with pytest.raises(WebhookRefusedError, match="The body is not JSON") as caught:
        HttpRequest("POST", "/x", body=b"[" * 100_000).json()

    assert caught.value.status == 400
