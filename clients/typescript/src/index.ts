export { Client, hasEnded, outputOf } from "./client.ts";
export type {
  Approvals,
  BeginOptions,
  Calls,
  Followed,
  FollowOptions,
  Instances,
  ListOptions,
  Turns,
} from "./client.ts";
export { GoondanError } from "./errors.ts";
export type { Asked, ClientOptions, Method, Options } from "./http.ts";
export type * from "./types.ts";
