// 002 §7.3
import type { ToolHandler } from '@goondan/core';

export const handlers: Record<string, ToolHandler> = {
  'api.call': async (ctx, input) => {
    try {
      const response = await fetch(input.url);

      if (!response.ok) {
        // 명시적 오류 반환 (throw 대신)
        throw new Error(`API 요청 실패: ${response.status} ${response.statusText}`);
      }

      return await response.json();
    } catch (error) {
      // Runtime이 오류를 catch하고 ToolResult로 변환
      throw error;
    }
  },
};
