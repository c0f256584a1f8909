// tools/bundle/index.ts
import type { ToolHandler, ToolContext, JsonValue } from '@goondan/core';

export const handlers: Record<string, ToolHandler> = {
  'swarmBundle.openChangeset': async (
    ctx: ToolContext,
    input: { reason?: string }
  ): Promise<JsonValue> => {
    // SwarmBundleApi를 통해 changeset 열기
    const result = await ctx.swarmBundle.openChangeset({
      reason: input.reason,
    });

    return result;
  },

  'swarmBundle.commitChangeset': async (
    ctx: ToolContext,
    input: { changesetId: string; message?: string }
  ): Promise<JsonValue> => {
    // SwarmBundleApi를 통해 changeset 커밋
    const result = await ctx.swarmBundle.commitChangeset({
      changesetId: input.changesetId,
      message: input.message,
    });

    return result;
  },
};
