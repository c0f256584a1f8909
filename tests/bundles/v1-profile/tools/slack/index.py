"""002 §8.2."""

import asyncio
import json
import urllib.request

API = "https://slack.com/api"


def fetch(url, token, body):
    request = urllib.request.Request(url, method="POST", data=json.dumps(body).encode())
    request.add_header("Authorization", f"Bearer {token}")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request) as response:
        return json.load(response)


async def post_message(ctx, input):
    # 1. OAuth 토큰 획득
    token_result = await ctx.oauth.get_access_token(
        {"oauthAppRef": {"kind": "OAuthApp", "name": "slack-bot"}, "scopes": ["chat:write"]}
    )

    # 2. 승인 필요 시 안내 반환
    if token_result.status == "authorization_required":
        return {
            "status": "authorization_required",
            "message": token_result.message,
            "authorizationUrl": token_result.authorization_url,
        }

    # 3. 오류 시 throw
    if token_result.status == "error":
        raise RuntimeError(token_result.error.message)

    # 4. API 호출
    body = {"channel": input["channel"], "text": input["text"]}
    result = await asyncio.to_thread(fetch, f"{API}/chat.postMessage", token_result.access_token, body)
    if not result["ok"]:
        raise RuntimeError(f"Slack API 오류: {result['error']}")
    return {"ok": True, "channel": result["channel"], "ts": result["ts"], "message": result["message"]}


def list_channels(ctx, input):
    token_result = ctx.oauth.get_access_token(min_ttl_seconds=60)
    return {"status": token_result.status}


def ask(ctx, input):
    answer = ctx.oauth.get_access_token(input)
    return answer.to_wire()


handlers = {"slack.postMessage": post_message, "slack.listChannels": list_channels, "slack.ask": ask}
