"""The document's own example (003 §10.2): a tool that an extension brings."""

import asyncio
import json
import os
import urllib.error
import urllib.parse
import urllib.request


def register(api, config):
    async def get(ctx, input):
        city = str(input["city"])
        base = os.environ.get("WEATHER_URL", config["url"])
        url = f"{base}/v1/current?city={urllib.parse.quote(city)}"
        return await asyncio.to_thread(fetched, url)

    api.tools.register(
        {
            "name": "weather__get",
            "description": "Look up the present weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "The city, such as Seoul"}},
                "required": ["city"],
            },
        },
        get,
    )


def fetched(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"weather API: {error.code}") from error
