// node client.mjs NODE_MODULES URL: the client of OpenAI asks agents, and prints what it saw as JSON
import { createRequire } from "node:module";

const [modules, baseURL] = process.argv.slice(2);
const load = createRequire(`${modules}/any.js`);
const { OpenAI } = load("openai");
const { zodResponseFormat, zodTextFormat } = load("openai/helpers/zod");
const { z } = load("zod");
const asking = (name) => new OpenAI({ apiKey: `token-of-${name}-00000`, baseURL, maxRetries: 0 });
const ann = asking("ann");
const model = "builder";
const messages = (content) => [
  { role: "system", content: "x" },
  { role: "user", content },
];

async function all(stream) {
  const items = [];
  for await (const item of await stream) items.push(item);
  return items;
}

async function refusal(asked) {
  try {
    await asked;
    return "no error";
  } catch (error) {
    const { status, code, type, param, message } = error;
    return { name: error.constructor.name, is: error instanceof OpenAI.APIError, status, code, type, param, message };
  }
}

const seen = {};
seen.models = (await all(ann.models.list())).map((one) => one.id);
seen.model = await ann.models.retrieve(model);

seen.completion = await ann.chat.completions.create({ model, messages: messages("build"), user: "chat-1" });
const options = { stream: true, stream_options: { include_usage: true } };
seen.chunks = await all(ann.chat.completions.create({ model, messages: messages("build"), ...options }));
const runner = ann.chat.completions.stream({ model, messages: messages("build") });
seen.streamed = await runner.finalContent();

seen.response = await ann.responses.create({ model, input: "build" });
const next = { model, input: messages("sure?"), previous_response_id: seen.response.id, stream: true };
seen.events = await all(ann.responses.create(next));
seen.final = await ann.responses.stream({ model, input: "build" }).finalResponse();

// the connection is cut in the middle of a text, and the agent goes on only after that
const begun = await ann.responses.create({ model, input: "wait", background: true });
seen.begun = begun.status;
seen.before = [];
for await (const event of await ann.responses.retrieve(begun.id, { stream: true })) {
  seen.before.push(event);
  if (event.type === "response.output_text.delta") break;
}
await ann.responses.create({ model, input: "go on" });
const starting_after = seen.before.at(-1).sequence_number;
seen.after = await all(ann.responses.retrieve(begun.id, { stream: true, starting_after }));
seen.retrieved = await ann.responses.retrieve(begun.id);

const stopped = await ann.responses.create({ model, input: "wait", background: true });
seen.stopped = (await ann.responses.cancel(stopped.id)).status;

const Place = z.object({ city: z.string(), districts: z.array(z.string()) });
const parsed = await ann.responses.parse({ model, input: "where?", text: { format: zodTextFormat(Place, "place") } });
const format = zodResponseFormat(Place, "place");
const completion = { model, messages: messages("where?"), response_format: format };
seen.parsed = [
  parsed.output_parsed,
  (await ann.chat.completions.parse(completion)).choices[0].message.parsed,
  (await ann.chat.completions.stream(completion).finalChatCompletion()).choices[0].message.parsed,
];

seen.refusals = {
  token: await refusal(asking("xxx").models.list()),
  scope: await refusal(ann.responses.create({ model: "clerk", input: "x" })),
  agent: await refusal(asking("bob").responses.create({ model: "nobody", input: "x" })),
  input: await refusal(ann.responses.create({ model, input: [] })),
  tools: await refusal(ann.responses.create({ model, input: "x", tools: [{ type: "web_search" }] })),
  format: await refusal(
    ann.chat.completions.create({
      ...completion,
      response_format: { type: "json_schema", json_schema: { name: "place", schema: { type: "thing" } } },
    }),
  ),
  response: await refusal(ann.responses.retrieve("resp_nothing")),
  foreign: await refusal(asking("bob").responses.retrieve(begun.id)),
  failed: await refusal(ann.chat.completions.create({ model, messages: messages("fail") })),
  cut: await refusal(all(ann.chat.completions.create({ model, messages: messages("fail"), stream: true }))),
};
console.log(JSON.stringify(seen));
