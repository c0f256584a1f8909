// A real OpenID provider that rotates refresh tokens, behind a proxy that lets its token endpoint answer late.
//
//   node server.mjs NODE_MODULES CLIENT_ID CLIENT_SECRET REDIRECT_URI
//
// Prints its URL. POST /ways {headerSeconds, bodySeconds, isHeld}: how refreshes are answered from now on; what is
// held comes when the ways change. GET /seen: {counts: {refresh_token, refused}}.
import http from "node:http";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const [modules, client_id, client_secret, redirect_uri] = process.argv.slice(2);
const { Provider } = await import(pathToFileURL(join(modules, "oidc-provider/lib/index.js")));

const counts = { refresh_token: 0, refused: 0 };
let ways = {};

const front = http.createServer((request, response) => handle(request, response).catch((error) => response.destroy(error)));
const inner = http.createServer();
await new Promise((done) => front.listen(0, "127.0.0.1", done));
await new Promise((done) => inner.listen(0, "127.0.0.1", done));
const url = `http://127.0.0.1:${front.address().port}`;

const provider = new Provider(url, {
  clients: [
    {
      client_id,
      client_secret,
      redirect_uris: [redirect_uri],
      grant_types: ["authorization_code", "refresh_token"],
      token_endpoint_auth_method: "client_secret_post",
    },
  ],
  rotateRefreshToken: true,
  issueRefreshToken: async () => true,
  scopes: ["openid", "offline_access"],
  pkce: { required: () => true },
  findAccount: async (_context, sub) => ({ accountId: sub, claims: async () => ({ sub }) }),
  cookies: { keys: ["a key of the tests"] },
  ttl: { AccessToken: 3600, Grant: 86400, IdToken: 3600, Interaction: 600, RefreshToken: 86400, Session: 3600 },
});
inner.on("request", provider.callback());
console.log(url);

async function handle(request, response) {
  const body = await whole(request);
  if (request.url === "/ways") {
    ways = JSON.parse(body);
    return response.end();
  }
  if (request.url === "/seen") return response.end(JSON.stringify({ counts }));
  const answer = await forward(request, body);
  if (!body.includes("grant_type=refresh_token")) {
    response.writeHead(answer.status, answer.headers);
    return response.end(answer.body);
  }
  counts.refresh_token += 1;
  if (answer.status !== 200) counts.refused += 1;
  const now = ways; // the provider has rotated by now, whatever becomes of its answer
  while (now.isHeld && ways === now) await sleep(20);
  return drip(request.socket, answer, now);
}

async function whole(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return Buffer.concat(chunks);
}

function forward({ method, url: path, headers }, body) {
  return new Promise((done, fail) => {
    const options = { port: inner.address().port, host: "127.0.0.1", method, path, headers };
    http
      .request(options, async (answer) => {
        done({ status: answer.statusCode, headers: answer.headers, body: await whole(answer) });
      })
      .on("error", fail)
      .end(body);
  });
}

// Node writes headers in one piece, so a slow answer is written by hand.
async function drip(socket, { status, body }, { headerSeconds = 0, bodySeconds = 0 }) {
  const head = `HTTP/1.1 ${status} x\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\nConnection: close\r\n\r\n`;
  for (const [text, seconds] of [[Buffer.from(head), headerSeconds], [body, bodySeconds]]) {
    const pieces = seconds ? Math.ceil(seconds * 4) : 1;
    const size = Math.ceil(text.length / pieces);
    for (let start = 0; start < text.length; start += size) {
      socket.write(text.subarray(start, start + size));
      if (seconds) await sleep((seconds * 1000 * size) / text.length);
    }
  }
  socket.end();
}
