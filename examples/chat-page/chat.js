// A chat over AG-UI: chat-page/?agent=AGENT&server=http://127.0.0.1:8765#TOKEN
const given = new URLSearchParams(location.search);
const server = given.get("server") ?? "http://127.0.0.1:8765";
const agent = `${server}/ag-ui/${encodeURIComponent(given.get("agent"))}`;
const token = location.hash.slice(1);
const headers = { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) };
// what a reload needs: the thread, and what was asked in it
const chat = JSON.parse(sessionStorage[agent] ?? "null") ?? { threadId: crypto.randomUUID(), runs: [] };
const [log, form, input] = ["#log", "form", "input"].map((name) => document.querySelector(name));

function box(id, kind) {
  const found = document.getElementById(id);
  return found ?? log.appendChild(Object.assign(document.createElement("div"), { id, className: kind }));
}

function show(event, run) {
  if (event.type === "TEXT_MESSAGE_START") box(event.messageId, "assistant").textContent = "";
  if (event.type === "TEXT_MESSAGE_CONTENT") box(event.messageId, "assistant").append(event.delta);
  if (event.type === "CUSTOM" && event.name === "goondan.void") box(event.value.messageId).remove();
  if (event.type === "TOOL_CALL_START") box(event.toolCallId, "tool").textContent = `${event.toolCallName} `;
  if (event.type === "TOOL_CALL_ARGS") box(event.toolCallId, "tool").append(event.delta);
  if (event.type === "TOOL_CALL_RESULT") box(event.toolCallId, "tool").append(`\n→ ${event.content}`);
  if (event.type === "RUN_ERROR") box(`${run.runId}-error`, "error").textContent = event.message;
  for (const interrupt of event.outcome?.interrupts ?? []) ask(interrupt, run);
}

function ask(interrupt, run) {
  const choices = document.createElement("div");
  for (const [name, approved] of [["Approve", true], ["Deny", false]]) {
    const button = choices.appendChild(Object.assign(document.createElement("button"), { textContent: name }));
    button.onclick = () => {
      choices.remove();
      const resume = [{ interruptId: interrupt.id, status: "resolved", payload: { approved } }];
      follow(run, { runId: crypto.randomUUID(), messages: [], resume });
    };
  }
  box(interrupt.toolCallId, "tool").append(choices);
}

// Sends what is asked, again until the server has it, or follows what was; after a cut connection it goes on behind
// the last event that came.
async function follow(run, asked, after = "") {
  const body = asked && JSON.stringify({ threadId: chat.threadId, tools: [], context: [], ...asked });
  const address = `${agent}/threads/${chat.threadId}/runs/${run.runId}${after && `?after=${after}`}`;
  let isOver = false;
  try {
    const answer = await fetch(body ? agent : address, { method: body ? "POST" : "GET", headers, body });
    document.getElementById(`${run.runId}-away`)?.remove();
    if (!answer.ok) return show({ type: "RUN_ERROR", ...(await answer.json()).error }, run);
    if (!asked?.resume) asked = null;
    let rest = "";
    for await (const text of answer.body.pipeThrough(new TextDecoderStream())) {
      const blocks = (rest + text).split("\n\n");
      rest = blocks.pop();
      for (const line of blocks.flatMap((block) => block.split("\n"))) {
        if (line.startsWith("id: ")) after = line.slice(4);
        if (!line.startsWith("data: ")) continue;
        const event = JSON.parse(line.slice(6));
        isOver ||= event.type === "RUN_FINISHED" || event.type === "RUN_ERROR";
        show(event, run);
      }
    }
  } catch { // browsers do not say which of the two it is
    const text = `No connection. Is the server at ${server}, and does its GOONDAN_HTTP_ORIGINS name ${location.origin}?`;
    box(`${run.runId}-away`, "error").textContent = text;
  }
  if (!isOver) setTimeout(() => follow(run, asked, after), 1000);
}

function begin(run) {
  box(run.runId, "user").textContent = run.text;
  return run;
}

form.onsubmit = (submitted) => {
  submitted.preventDefault();
  const run = { runId: crypto.randomUUID(), text: input.value };
  chat.runs.push(run);
  sessionStorage[agent] = JSON.stringify(chat);
  input.value = "";
  follow(begin(run), { runId: run.runId, messages: [{ id: run.runId, role: "user", content: run.text }] });
};

if (!given.get("agent")) box("no-agent", "error").textContent = "Name an agent in the address: ?agent=AGENT";
for (const run of chat.runs) await follow(begin(run));
