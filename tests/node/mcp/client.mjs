// Uses an MCP server through the official TypeScript client, and prints what it saw as JSON.
//   node client.mjs NODE_MODULES stdio COMMAND [ARGUMENT...]
//   node client.mjs NODE_MODULES http URL
import { createRequire } from "node:module";

const [modules, door, target, ...rest] = process.argv.slice(2);
const sdk = createRequire(`${modules}/any.js`);
const { Client } = sdk("@modelcontextprotocol/sdk/client/index.js");
const { StdioClientTransport } = sdk("@modelcontextprotocol/sdk/client/stdio.js");
const { StreamableHTTPClientTransport } = sdk("@modelcontextprotocol/sdk/client/streamableHttp.js");
const { ResultSchema } = sdk("@modelcontextprotocol/sdk/types.js");

const transport =
  door === "http"
    ? new StreamableHTTPClientTransport(new URL(target))
    : new StdioClientTransport({ command: target, args: rest, env: process.env });
const client = new Client({ name: "typescript", version: "1" }, { capabilities: {} });

async function refusal(asked) {
  try {
    await asked;
    return "no error";
  } catch (error) {
    return error.message;
  }
}

async function refusedRequest(method, params) {
  return refusal(client.request({ method, params }, ResultSchema));
}

const seen = {};
await client.connect(transport);
seen.capabilities = client.getServerCapabilities();
seen.tools = (await client.listTools()).tools;
seen.text = await client.callTool({ name: "test__simple_text", arguments: {} });
seen.image = await client.callTool({ name: "test__image_content", arguments: {} });
seen.audio = await client.callTool({ name: "test__audio_content", arguments: {} });
seen.mixed = await client.callTool({ name: "test__multiple_content_types", arguments: {} });
const large = await client.callTool({ name: "test__large_image", arguments: { bytes: 600000 } });
seen.large = large.content.map((block) => [block.type, block.data?.length]);
seen.data = await client.callTool({ name: "json__schema_2020_12_tool", arguments: { email: "a@b.c" } });
seen.invalid = await client.callTool({ name: "json__schema_2020_12_tool", arguments: {} });
seen.failed = await client.callTool({ name: "test__error_handling", arguments: {} });
seen.progress = [];
await client.callTool({ name: "test__tool_with_progress", arguments: {} }, undefined, {
  onprogress: (progress) => seen.progress.push(progress.progress),
});
seen.pong = await client.ping();
seen.level = await refusal(client.setLoggingLevel("info"));
const ref = { type: "ref/prompt", name: "p" };
seen.completion = await refusedRequest("completion/complete", { ref, argument: { name: "a", value: "b" } });
await client.close();
console.log(JSON.stringify(seen));
