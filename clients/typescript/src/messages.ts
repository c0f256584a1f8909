// Server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html

export interface Message {
  id: string;
  event: string;
  data: string;
}

/** A CR at the end of what has come may be the first half of CR LF. */
const LINE_END = /\r\n|\n|\r(?!$)/;

/** Yield the messages of a body, and `null` for each comment. `heard` waits for a chunk. */
export async function* messages(
  body: ReadableStream<Uint8Array>,
  heard: <Part>(chunk: Promise<Part>) => Promise<Part>,
): AsyncGenerator<Message | null, void, undefined> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let fields = new Map<string, string>();
  for (;;) {
    const { done, value } = await heard(reader.read());
    if (done) return; // what has no end is no message
    const lines = (rest + decoder.decode(value, { stream: true })).split(LINE_END);
    rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line.startsWith(":")) {
        yield null;
      } else if (line !== "") {
        const [, name = "", text = ""] = /^([^:]*):? ?(.*)$/s.exec(line) ?? [];
        const before = name === "data" ? fields.get(name) : undefined;
        fields.set(name, before === undefined ? text : `${before}\n${text}`);
      } else {
        const { id = "", event = "message", data } = Object.fromEntries(fields);
        fields = new Map();
        if (data !== undefined) yield { id, event, data };
      }
    }
  }
}
