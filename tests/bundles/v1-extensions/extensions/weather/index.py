"""002 §9.2: a tool that an extension registers as one object."""

import asyncio
import json
import os
import urllib.error
import urllib.parse
import urllib.request


async def register(api):
    async def get(ctx, input):
        city = str(input["city"])
        units = str(input.get("units") or "metric")
        base = os.environ.get("WEATHER_URL", api.extension.spec.config["url"])
        url = f"{base}/v1/current?city={urllib.parse.quote(city)}&units={units}"
        return await asyncio.to_thread(fetched, url)

    api.tools.register(
        {
            "name": "weather.get",
            "description": "특정 도시의 현재 날씨 정보를 조회합니다",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "도시 이름 (예: Seoul, Tokyo)"},
                    "units": {"type": "string", "enum": ["metric", "imperial"], "description": "온도 단위"},
                },
                "required": ["city"],
            },
            "handler": get,
        }
    )


def fetched(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        error.close()
        raise RuntimeError(f"날씨 API 오류: {error.code}") from error
