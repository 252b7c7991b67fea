// Asks a gateway by the official client; prints what it got as one line of JSON.
// Arguments: the directory of node_modules, the address, and the model.
import { createRequire } from "node:module";

const [modules, baseURL, model] = process.argv.slice(2);
const { OpenAI } = createRequire(`${modules}/`)("openai");
const client = new OpenAI({ baseURL, apiKey: "any", maxRetries: 0, timeout: 120_000 });
const asked = { model, max_tokens: 6, messages: [{ role: "user", content: "Say hello" }] };
const got = { whole: null, usage: null, streamed: "", chunks: 0, models: [], error: null };

try {
  for await (const one of client.models.list()) got.models.push(one.id);
  const whole = await client.chat.completions.create(asked);
  got.whole = whole.choices[0].message.content;
  got.usage = whole.usage;
} catch (error) {
  got.error = { status: error.status ?? null, code: error.code ?? null, message: error.message };
}
try {
  const stream = await client.chat.completions.create({ ...asked, stream: true });
  for await (const chunk of stream) {
    got.chunks += 1;
    got.streamed += chunk.choices[0]?.delta?.content ?? "";
  }
} catch (error) {
  got.streamError = { status: error.status ?? null, code: error.code ?? null, message: error.message };
}
console.log(JSON.stringify(got));
