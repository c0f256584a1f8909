// Tells what a handler sees (004).
import type { ToolHandler } from '@goondan/types';

export const handlers: Record<string, ToolHandler> = {
  context: async (ctx) => ({
    agentName: ctx.agentName,
    instanceKey: ctx.instanceKey,
    turnId: ctx.turnId,
    toolCallId: ctx.toolCallId,
    asked: ctx.message.data.content,
    isDate: ctx.message.createdAt instanceof Date,
    removed: ['swarmBundle', 'oauth', 'instance', 'turn'].filter((name) => name in ctx),
    hasTraceId: ctx.traceId.length > 0,
    isBeforeDeadline: ctx.deadline !== undefined && ctx.deadline > new Date(),
    isAborted: ctx.signal.aborted,
    cwd: process.cwd() === ctx.workdir,
  }),

  agents: async (ctx) => {
    const sent = await ctx.runtime!.send('herald', { input: 'hello' });
    await ctx.runtime!.send('herald', { input: 'later' }, { notBefore: new Date(Date.now() + 3_600_000) });
    const asked = await ctx.runtime!.request('herald', { input: 'hi' }, { timeoutMs: 30_000 });
    return { accepted: sent.accepted, response: asked.response ?? null, catalog: await ctx.runtime!.catalog() };
  },

  elsewhere: (ctx) => {
    ctx.progress(1, 2, 'half');
    return ctx.pending('job-1', { begun: true }, { ttlSeconds: 60 });
  },
};
