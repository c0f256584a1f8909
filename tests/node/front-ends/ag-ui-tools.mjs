// node ag-ui-tools.mjs MODULES URL: the official client carries out a tool of its page that the agent calls
import { createRequire } from "node:module";

const { HttpAgent } = createRequire(`${process.argv[2]}/`)("@ag-ui/client");
const agent = new HttpAgent({ url: process.argv[3], threadId: "page-tools" });
const tools = [{ name: "desk__begin", description: "Begin what lasts.", parameters: { type: "object" } }];
agent.addMessage({ id: "m-1", role: "user", content: "begin it" });
await agent.runAgent({ runId: "run-1", tools });
const answered = new Set(agent.messages.map((message) => message.toolCallId));
const open = agent.messages.flatMap((message) => message.toolCalls ?? []).filter((call) => !answered.has(call.id));
for (const call of open)
  agent.addMessage({ id: `r-${call.id}`, role: "tool", toolCallId: call.id, content: '{"begun": true}' });
await agent.runAgent({ runId: "run-2", tools });
console.log(JSON.stringify({ called: open.map((call) => call.function.name), messages: agent.messages }));
