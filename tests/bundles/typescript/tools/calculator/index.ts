// tools/calculator/index.ts
import type { ToolHandler, ToolContext, JsonValue } from '@goondan/core';

interface CalcInput {
  a: number;
  b: number;
}

export const handlers: Record<string, ToolHandler> = {
  'calc.add': async (ctx: ToolContext, input: CalcInput): Promise<JsonValue> => {
    const { a, b } = input;

    // 입력 검증
    if (typeof a !== 'number' || typeof b !== 'number') {
      throw new Error('a와 b는 숫자여야 합니다.');
    }

    return {
      result: a + b,
      expression: `${a} + ${b} = ${a + b}`,
    };
  },

  'calc.multiply': async (ctx: ToolContext, input: CalcInput): Promise<JsonValue> => {
    const { a, b } = input;
    return {
      result: a * b,
      expression: `${a} × ${b} = ${a * b}`,
    };
  },
};
