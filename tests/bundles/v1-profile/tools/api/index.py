"""002 §7.3."""

import json
import urllib.error
import urllib.request


def call(ctx, input):
    try:
        with urllib.request.urlopen(input["url"]) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        error.close()
        raise RuntimeError(f"API 요청 실패: {error.code} {error.reason}") from error


handlers = {"api.call": call}
