import type { ToolCallError } from "./types.ts";

/** What the client itself reports: no answer, and an answer that is not one of Goondan. */
export const NO_ANSWER = "E_NO_ANSWER";
export const OTHER_ANSWER = "E_OTHER_ANSWER";

/** What else is known of an error. */
export interface About extends ErrorOptions {
  /** The HTTP status of the answer. */
  status?: number;
  /** After how many seconds the server wants to be asked again. */
  retryAfter?: number;
}

/** Why a request was refused or a run has failed. `code` is stable, and `helpUrl` leads to its page. */
export class GoondanError extends Error {
  override readonly name: string;
  readonly code: string;
  /** What to do about it. */
  readonly suggestion: string | undefined;
  readonly helpUrl: string | undefined;
  /** The HTTP status; `undefined` if there was no answer, and for the error of a run. */
  readonly status: number | undefined;
  readonly retryAfter: number | undefined;

  constructor(error: Omit<ToolCallError, "name"> & { name?: string }, about: About = {}) {
    super(error.message, about);
    this.name = error.name ?? "GoondanError";
    this.code = error.code;
    this.suggestion = error.suggestion ?? undefined;
    this.helpUrl = error.helpUrl ?? undefined;
    this.status = about.status;
    this.retryAfter = about.retryAfter;
  }
}

/** Return the error that an answer has, whether Goondan has given it or a proxy before it. */
export function errorOf(response: Response, text: string): GoondanError {
  const seconds = Number(response.headers.get("retry-after") ?? undefined);
  const about = { status: response.status, ...(seconds >= 0 && { retryAfter: seconds }) };
  try {
    const { error } = JSON.parse(text) as { error: ToolCallError };
    if (typeof error.code === "string" && typeof error.message === "string") {
      return new GoondanError(error, about);
    }
  } catch {
    // not JSON, or not of this form
  }
  return otherAnswer(response, about);
}

/** Return the error of an answer that is not one of Goondan. */
export function otherAnswer(response: Response, about: About = { status: response.status }): GoondanError {
  const message = `${response.url} answered ${response.status}, and not as goondan serve does.`;
  const suggestion = "Check the address: it is that of a server with the door api.";
  return new GoondanError({ code: OTHER_ANSWER, message, suggestion }, about);
}
