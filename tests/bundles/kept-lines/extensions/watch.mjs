export function register(api) {
  api.pipeline.register("toolCall", async (ctx) => {
    api.logger.info(`watch.begins ${ctx.toolCallId}`);
    return ctx.next();
  });
}
