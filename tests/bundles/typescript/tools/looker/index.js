// Tells what a handler of the older version sees (002 §4.3, §4.4).

const seen = (ctx) => ({
  instance: ctx.instance,
  swarm: ctx.swarm.metadata.name,
  agent: ctx.agent.metadata.name,
  turn: { ...ctx.turn, toolResults: Object.fromEntries(ctx.turn.toolResults) },
  step: ctx.step,
  catalog: Object.fromEntries(
    ctx.toolCatalog.map(({ name, tool, export: declared, source }) => [
      name,
      { tool: tool?.metadata.name ?? tool, export: declared?.name ?? declared, source },
    ]),
  ),
  workdir: ctx.workdir,
});

export const handlers = {
  'look.around': async (ctx, input) => {
    ctx.logger.info('looking', { at: input.at }, 5);
    await ctx.events.emit('looked', { at: input.at });
    return seen(ctx);
  },

  'look.ahead': (ctx) => ctx.swarmBundle.getActiveRef(),
};
