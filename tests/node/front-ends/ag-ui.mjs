// node ag-ui.mjs MODULES URL: the official client runs an agent, and approves the call that interrupts the run
import { createRequire } from "node:module";

const { HttpAgent } = createRequire(`${process.argv[2]}/`)("@ag-ui/client");
const agent = new HttpAgent({ url: process.argv[3], threadId: "official" });
const types = [];
const noting = { onEvent: ({ event }) => void types.push(event.type) };
agent.addMessage({ id: "m-1", role: "user", content: "wipe it" });
await agent.runAgent({ runId: "run-1" }, noting);
const [interrupt] = agent.pendingInterrupts;
const entry = { interruptId: interrupt.id, status: "resolved", payload: { approved: true } };
await agent.runAgent({ runId: "run-2", resume: [entry] }, noting);
console.log(JSON.stringify({ interrupt, types, messages: agent.messages }));
