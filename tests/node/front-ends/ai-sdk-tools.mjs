// node ai-sdk-tools.mjs MODULES URL: the AI SDK carries out a tool of its page that the agent calls
import { createRequire } from "node:module";

import { State } from "./ai-sdk-state.mjs";

const { AbstractChat, DefaultChatTransport } = createRequire(`${process.argv[2]}/`)("ai");

class Chat extends AbstractChat {}

const state = new State();
const chat = new Chat({ id: "page-tools", state, transport: new DefaultChatTransport({ api: process.argv[3] }) });
await chat.sendMessage({ text: "begin it" });
const open = state.messages.at(-1).parts.filter((part) => part.state === "input-available");
for (const { toolCallId, toolName } of open)
  await chat.addToolOutput({ tool: toolName, toolCallId, output: { begun: true } });
await chat.sendMessage();
const called = open.map((part) => part.toolName);
console.log(JSON.stringify({ called, status: state.status, error: state.error?.message, messages: state.messages }));
