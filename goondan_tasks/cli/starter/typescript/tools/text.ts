import type { ToolHandler } from '@goondan/types';

export const handlers: Record<string, ToolHandler> = {
  uppercase: async (ctx, input: { text: string }) => {
    ctx.logger.info(`Converting ${input.text.length} characters`);
    return { result: input.text.toUpperCase() };
  },
};
