// What a program sees whose connections are cut: `cuts.mts NAME URL INSTANCE`, as scenarios.mts.
import { Client, outputOf } from "../../../clients/typescript/src/index.ts";

const [name, url = "", instanceKey = ""] = process.argv.slice(2);
const { turns, calls } = new Client({ url });

function see(seen: unknown): void {
  console.log(JSON.stringify(seen));
}

if (name === "follow") {
  const turn = await turns.start("builder", { input: "Build it.", instanceKey });
  const waiting = turns.wait(turn.id);
  for await (const event of turns.events(turn.id)) see(event.type === "text" ? event.text : event.type);
  see(outputOf(await waiting));
} else {
  const numbers = Array.from({ length: Number(name) }, (_, number) => number);
  const submit = async (n: number) => {
    const call = await calls.run("builder", { tool: "guarded__look", args: { n }, instanceKey });
    see([n, call.id, outputOf(call)]);
  };
  await Promise.all(numbers.map(submit));
}
