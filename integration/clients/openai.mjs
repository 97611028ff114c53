// Makes the calls that it reads from stdin with the openai package of npm, and
// writes one line of JSON for each: its result as the package returned it (a
// stream as the list of its chunks), or the error that the package threw.
//
// stdin: {"base": "http://host:port", "calls": [{"name", "method", "body"}]}

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(`${process.env.TANDEM_CLIENTS}/npm/`);
const { OpenAI } = require("openai");

const { base, calls } = JSON.parse(readFileSync(0, "utf8"));
const client = new OpenAI({ apiKey: "none", baseURL: `${base}/v1`, maxRetries: 0, timeout: 20_000 });

// load is the number of requests that the engines behind the router have.
async function load() {
  const answer = await (await fetch(`${base}/v1/loads`)).json();
  let requests = 0;
  for (const worker of Object.values(answer.workers)) {
    for (const rank of worker.loads) {
      requests += rank.num_running_reqs + rank.num_waiting_reqs + rank.disaggregation.prefill_inflight_queue_reqs;
    }
  }
  return requests;
}

async function collect(answer, body) {
  if (!body.stream) return answer;
  const chunks = [];
  for await (const chunk of answer) chunks.push(chunk);
  return chunks;
}

const methods = {
  chat: async (body) => collect(await client.chat.completions.create(body), body),
  completions: async (body) => collect(await client.completions.create(body), body),
  models: async () => (await client.models.list()).data,

  // abort leaves a stream after three chunks and waits for the engines to be free.
  abort: async (body) => {
    const stream = await client.chat.completions.create(body);
    const result = { chunks: 0 };
    let left;
    for await (const _ of stream) {
      if (++result.chunks < 3) continue;
      result.loadBefore = await load();
      stream.controller.abort();
      left = performance.now();
      break;
    }
    do {
      result.loadAfter = await load();
      result.milliseconds = performance.now() - left;
    } while (result.loadAfter > 0 && result.milliseconds < 5_000);
    return result;
  },
};

for (const { name, method, body } of calls) {
  let line;
  try {
    line = { name, result: await methods[method](body) };
  } catch (e) {
    line = { name, error: { class: e.constructor.name, status: e.status ?? 0, message: e.message } };
  }
  console.log(JSON.stringify(line));
}
