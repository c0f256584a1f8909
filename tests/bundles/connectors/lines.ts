export default async function (ctx: any) {
  for (let line = await ctx.readLine(); line !== null; line = await ctx.readLine()) {
    const message = { type: 'text', text: `${line.number} ${line.text}` };
    await ctx.emit({ id: `${line.program}:${line.number}`, name: 'line', message, instanceKey: 'lines' });
  }
}
