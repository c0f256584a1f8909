export async function register(api: ExtensionApi): Promise<void> {
  // step.tools 파이프라인에서 동적 Tool 추가
  api.pipelines.mutate('step.tools', async (ctx) => {
    const catalog = [...ctx.toolCatalog];

    // Extension이 등록한 동적 Tool 추가
    for (const dynamicTool of ctx.instance.dynamicTools) {
      catalog.push({
        name: dynamicTool.name,
        description: dynamicTool.description,
        parameters: dynamicTool.parameters,
        source: { type: 'extension', name: api.extension.metadata.name },
      });
    }

    return { ...ctx, toolCatalog: catalog };
  });
}
