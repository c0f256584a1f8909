// Looks closely at what the older api promises.
import { appendFileSync } from 'node:fs';

const note = (line) => appendFileSync(process.env.NOTES, `${line}\n`);

export async function register(api) {
  note(`registered ${api.extension.metadata.name} of ${api.agentName}: ${api.extension.spec.config.tune}`);
  for (const point of ['turn.pre', 'step.pre', 'step.config', 'step.blocks', 'step.post', 'toolCall.pre', 'toolCall.post', 'turn.post']) {
    api.pipelines.mutate(point, (ctx) => {
      ctx.metadata.points = [...(ctx.metadata.points ?? []), point];
    });
  }
  api.pipelines.mutate('step.blocks', (ctx) => ({ ...ctx, blocks: [...ctx.blocks, { type: 'tide', data: ctx.step.index }] }));
  api.pipelines.mutate('toolCall.pre', (ctx) => {
    if (ctx.toolCall.arguments.times === 0) {
      return 'wrong';
    }
    ctx.toolCall.arguments.times = (ctx.toolCall.arguments.times ?? 1) + 1;
    return undefined;
  });
  api.pipelines.wrap(
    'toolCall.exec',
    async (ctx, next) => {
      const result = await next({ ...ctx, metadata: { ...ctx.metadata, sent: true } });
      return { ...result, output: { ...result.output, tune: api.extension.spec.config.tune } };
    },
    { priority: 20, id: 'tuned' },
  );
  api.pipelines.mutate('toolCall.post', (ctx) => {
    if (ctx.toolResult.status === 'error') {
      ctx.toolResult.error.message += ': call the founder';
    } else if (ctx.toolResult.output && ctx.toolCall.name === 'bell.ring') {
      ctx.toolResult.output.points = ctx.metadata.points;
      ctx.toolResult.output.results = ctx.turn.toolResults instanceof Map;
    }
    return ctx;
  });
  api.pipelines.mutate('turn.post', (ctx) => ({ ...ctx, result: { ...ctx.result, points: ctx.metadata.points } }));
  api.events.on('tool.error', (event) => note(`tool.error ${event.toolName} ${event.error.message}`));
  api.events.once('tool.error', () => note('once'));
  const never = () => note('never');
  api.events.on('tool.error', never);
  api.events.off('tool.error', never);
  api.tools.register(
    { name: 'tower.look', description: 'Looks.' },
    async (ctx) => {
      await api.setState({ looked: ((await api.getState()).looked ?? 0) + 1 });
      await api.instance.shared.set('seen', true);
      return {
        agent: ctx.agent.metadata.name,
        tools: (await api.tools.list()).map(({ name }) => name),
        one: (await api.tools.get('bell.ring')).description,
        state: await api.getState(),
        shared: await api.instance.shared.get('seen'),
      };
    },
  );
}
