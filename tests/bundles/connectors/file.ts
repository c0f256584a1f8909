// Emits the events of a file, as file.py does.
import { appendFileSync, readFileSync } from 'node:fs';

export default async function (ctx: any): Promise<void> {
  const note = (line: object) => appendFileSync(ctx.config.SEEN, JSON.stringify({ pid: process.pid, ...line }) + '\n');
  note({ began: ctx.connectionName, token: ctx.secrets.TOKEN, environment: Object.keys(process.env).sort() });
  console.log('the token is', ctx.secrets.TOKEN);
  let place: number = (await ctx.cursor.get()) ?? 0;
  while (!ctx.signal.aborted) {
    const lines = readFileSync(ctx.config.EVENTS, 'utf8').split('\n').filter((line) => line !== '');
    for (const line of lines.slice(place)) {
      try {
        const accepted = await ctx.emit(JSON.parse(line));
        note({ agent: accepted.agent, instance: accepted.instanceKey });
      } catch (error: any) {
        note({ error: `${error.name}: ${error.message}` });
      }
      await ctx.cursor.set(++place);
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
