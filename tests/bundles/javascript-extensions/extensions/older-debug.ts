// 디버그 로깅 Extension
export async function register(api: ExtensionApi): Promise<void> {
  api.pipelines.wrap('toolCall.exec', async (ctx, next) => {
    const { toolCall } = ctx;

    console.log('[Tool] 호출:', {
      name: toolCall.name,
      arguments: toolCall.arguments,
      turnId: ctx.turn.id,
      stepIndex: ctx.step.index,
    });

    const startTime = Date.now();
    const result = await next(ctx);
    const elapsed = Date.now() - startTime;

    console.log('[Tool] 완료:', {
      name: toolCall.name,
      status: ctx.toolResult?.status,
      elapsed: `${elapsed}ms`,
    });

    return result;
  });
}
