// tools/file/index.ts
import * as fs from 'fs/promises';
import * as path from 'path';
import type { ToolHandler, ToolContext, JsonValue } from '@goondan/core';

interface FileReadInput {
  path: string;
  encoding?: BufferEncoding;
  maxBytes?: number;
}

interface FileWriteInput {
  path: string;
  content: string;
  encoding?: BufferEncoding;
}

export const handlers: Record<string, ToolHandler> = {
  'file.read': async (ctx: ToolContext, input: FileReadInput): Promise<JsonValue> => {
    const targetPath = String(input.path || '');

    if (!targetPath) {
      throw new Error('path가 필요합니다.');
    }

    // 상대 경로를 절대 경로로 변환
    const resolved = path.isAbsolute(targetPath)
      ? targetPath
      : path.join(process.cwd(), targetPath);

    // 파일 존재 확인
    const stat = await fs.stat(resolved);
    if (!stat.isFile()) {
      throw new Error(`${resolved}는 파일이 아닙니다.`);
    }

    // 파일 읽기
    const encoding = input.encoding || 'utf8';
    const maxBytes = input.maxBytes ?? 100_000;
    const content = await fs.readFile(resolved, encoding);

    // 크기 제한
    const truncated = content.length > maxBytes;
    const finalContent = truncated ? content.slice(0, maxBytes) : content;

    return {
      path: resolved,
      size: stat.size,
      truncated,
      content: finalContent,
    };
  },

  'file.write': async (ctx: ToolContext, input: FileWriteInput): Promise<JsonValue> => {
    const targetPath = String(input.path || '');
    const content = String(input.content || '');

    if (!targetPath) {
      throw new Error('path가 필요합니다.');
    }

    const resolved = path.isAbsolute(targetPath)
      ? targetPath
      : path.join(process.cwd(), targetPath);

    const encoding = input.encoding || 'utf8';

    // 디렉터리 생성
    await fs.mkdir(path.dirname(resolved), { recursive: true });

    // 파일 쓰기
    await fs.writeFile(resolved, content, encoding);

    const stat = await fs.stat(resolved);

    return {
      path: resolved,
      size: stat.size,
      written: true,
    };
  },
};
