const say = (ctx) => {
  ctx.logger.info("said.by-context", { said: ctx.toolCallId, apiKey: "sk-never-shown" });
  console.warn("said by console:", ctx.toolCallId);
};

export const handlers = {
  plain: async (ctx) => {
    say(ctx);
    throw new RangeError("no wind");
  },
  waits: async (ctx) => {
    say(ctx);
    await new Promise((resolve) => setTimeout(resolve, 3000));
  },
};
