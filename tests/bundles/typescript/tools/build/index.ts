// 002 §6.3; its builds are somebody else's
import type { ToolHandler } from '@goondan/core';

const startBuildAsync = async (project: unknown) => `build-${project}`;

// Tool 핸들러
export const handlers: Record<string, ToolHandler> = {
  'build.start': async (ctx, input) => {
    const buildId = await startBuildAsync(input.project);

    // 비동기 완료를 위한 핸들 반환
    return {
      __async: true,
      handle: buildId,
      message: '빌드가 시작되었습니다. 완료되면 알려드리겠습니다.',
    };
  },
};
