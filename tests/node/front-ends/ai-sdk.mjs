// node ai-sdk.mjs MODULES URL: the AI SDK sends a message, approves a call, and asks for an open stream
import { createRequire } from "node:module";

import { State } from "./ai-sdk-state.mjs";

const { AbstractChat, DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } =
  createRequire(`${process.argv[2]}/`)("ai");

class Chat extends AbstractChat {}

const state = new State();
const chat = new Chat({
  id: "official",
  state,
  transport: new DefaultChatTransport({ api: process.argv[3] }),
  sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
  onFinish: () => finished(),
});
let finished = () => {};
await chat.sendMessage({ text: "wipe it" });
const held = state.messages.at(-1).parts.find((part) => part.state === "approval-requested");
const over = new Promise((resolve) => (finished = resolve));
await chat.addToolApprovalResponse({ id: held.approval.id, approved: true });
await over;
await chat.resumeStream();
console.log(JSON.stringify({ held, status: state.status, error: state.error?.message, messages: state.messages }));
