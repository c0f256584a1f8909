// tools/slack/index.ts
import type { ToolHandler, ToolContext, JsonValue } from '@goondan/core';

interface PostMessageInput {
  channel: string;
  text: string;
}

export const handlers: Record<string, ToolHandler> = {
  'slack.postMessage': async (
    ctx: ToolContext,
    input: PostMessageInput
  ): Promise<JsonValue> => {
    // 1. OAuth 토큰 획득
    const tokenResult = await ctx.oauth.getAccessToken({
      oauthAppRef: { kind: 'OAuthApp', name: 'slack-bot' },
      scopes: ['chat:write'],
    });

    // 2. 승인 필요 시 안내 반환
    if (tokenResult.status === 'authorization_required') {
      return {
        status: 'authorization_required',
        message: tokenResult.message,
        authorizationUrl: tokenResult.authorizationUrl,
      };
    }

    // 3. 오류 시 throw
    if (tokenResult.status === 'error') {
      throw new Error(tokenResult.error.message);
    }

    // 4. API 호출
    const response = await fetch('https://slack.com/api/chat.postMessage', {
      method: 'POST',
      headers: {
        Authorization: `Bearer ${tokenResult.accessToken}`,
        'Content-Type': 'application/json',
      },
      body: JSON.stringify({
        channel: input.channel,
        text: input.text,
      }),
    });

    const result = await response.json();

    if (!result.ok) {
      throw new Error(`Slack API 오류: ${result.error}`);
    }

    return {
      ok: true,
      channel: result.channel,
      ts: result.ts,
      message: result.message,
    };
  },
};
