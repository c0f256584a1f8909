// Looks closely at what middlewares, state, events and restarts promise.
import { appendFileSync, existsSync } from 'node:fs';

const note = (line: string): void => appendFileSync(process.env.NOTES!, `${line}\n`);

export async function register(api: any, config: any): Promise<void> {
  await new Promise((resolve) => setTimeout(resolve, 1));
  note(`registered ${api.extension.name} of ${api.agentName} with ${config.flash}`);

  api.pipeline.register(
    'toolCall',
    async function closely(ctx: any) {
      switch (ctx.args.note) {
        case 'hang':
          note(`hangs in ${process.pid}`);
          await new Promise(() => {});
          break;
        case 'hang inside':
          await ctx.next();
          note(`hangs in ${process.pid}`);
          await new Promise(() => {});
          break;
        case 'spin':
          for (;;);
        case 'signal':
          ctx.signal.addEventListener('abort', () => note(`aborted: ${ctx.signal.reason.code}`));
          await new Promise(() => {});
          break;
        case 'throws':
          throw new TypeError('out of order');
        case 'coded':
          throw Object.assign(new Error('dark'), { name: 'DarkError', code: 'E_DARK', suggestion: 'Wait.' });
        case 'no file':
          await import('node:fs/promises').then(({ readFile }) => readFile('/no/such/file'));
          break;
        case 'twice':
          await ctx.next();
          return await ctx.next();
        case 'nothing':
          await ctx.next();
          return undefined;
        case 'alone':
          return { instead: true };
        case 'a result':
          return { toolCallId: ctx.toolCallId, toolName: ctx.toolName, status: 'error', error: { message: 'no' } };
        case 'sets':
          ctx.toolName = 'other';
          break;
        case 'cycle': {
          const cycle: any = {};
          cycle.cycle = cycle;
          return cycle;
        }
      }
      if (ctx.toolName === 'lamp__refuse') {
        try {
          return await ctx.next();
        } catch (error: any) {
          if (ctx.args.note === 'rethrow') {
            throw error;
          }
          if (ctx.args.note === 'reword') {
            error.message += ' Ask the harbour.';
            throw error;
          }
          return { name: error.name, code: error.code, message: error.message, suggestion: error.suggestion };
        }
      }
      if (ctx.toolName !== 'lamp__shine') {
        return await ctx.next();
      }
      ctx.args.colour = String(ctx.args.colour).trim();
      ctx.metadata.from = 'closely';
      const result = await ctx.next();
      const calls = (await api.state.get('calls', 0)) + 1;
      await api.state.set('calls', calls);
      return { ...result, output: { ...result.output, calls, told: ctx.metadata, keys: await api.state.keys('c') } };
    },
    { priority: 5 },
  );

  api.pipeline.register('toolCall', async (ctx: any) => {
    ctx.metadata = { ...ctx.metadata, inner: true };
    return await ctx.next();
  }, 10);

  api.pipeline.register('step', async (ctx: any) => {
    const catalog = ctx.toolCatalog.filter((item: any) => item.name !== 'lamp__brief');
    ctx.toolCatalog = catalog.map((item: any) =>
      item.name === 'lamp__shine' ? { ...item, description: `${item.description} ${config.flash} times.` } : item,
    );
    ctx.blocks.push({ type: 'tide', data: { step: ctx.stepIndex } });
    const result = await ctx.next();
    return { ...result, metadata: { seen: result.toolResults.map((one: any) => one.status) } };
  });

  api.pipeline.register('turn', async (ctx: any) => {
    const isDate = ctx.event.createdAt instanceof Date;
    const answer = await ctx.next();
    return { ...answer, turn: { event: ctx.event.type, isDate, has: ctx.conversationState ?? null } };
  });

  api.tools.register(
    { name: 'beacon__look', description: 'Looks.', parameters: { type: 'object', properties: {} } },
    async (ctx: any) => ({
      pid: process.pid,
      calls: await api.state.get('calls', 0),
      other: await api.state.get('calls', 'none', { instanceKey: 'elsewhere' }),
      cwd: process.cwd() === ctx.workdir,
    }),
    { policy: { idempotent: true, timeoutSeconds: 10 } },
  );

  if (existsSync(`${process.env.NOTES}.differs`)) {
    api.tools.register({ name: 'beacon__new' }, () => 'new');
  } else {
    api.tools.register({ name: 'beacon__old' }, () => 'old');
  }

  const off = api.events.on('tool.called', () => note('never'));
  off();
  api.events.on('tool.completed', (event: any) => note(`completed ${event.toolName} ${event.status}`));
  api.events.on('flash', (event: any) => note(`flash ${event.from}`));
  api.events.emit('flash', { from: 'register' });
  api.events.on('worker.stopping', async () => note('worker.stopping'));
  api.events.on('extension.unloading', async () => note('extension.unloading'));
}
