// npm `agents`: AgentClient and WebSocketChatTransport.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { readUIMessageStream } from "ai";
import { AgentClient } from "agents/client";
import { WebSocketChatTransport } from "agents/chat/transport";
import { api, stored, text, until, url } from "./shared.mjs";

const host = url.replace(/^http:\/\//, "");
const open = [];
const alive = setInterval(() => undefined, 1000); // a socket alone does not keep Node from ending
after(() => {
  clearInterval(alive);
  open.forEach((client) => client.close());
});

// A browser cannot set headers, so a conversation's address holds a short-lived token.
async function connect(name, { query, ...options } = {}) {
  const { token } = await api("/api/tokens", { agent: "assistant", name });
  const client = new AgentClient({ agent: "assistant", name, host, protocol: "ws", query: { token, ...query }, ...options });
  client.frames = [];
  client.addEventListener("message", (event) => client.frames.push(JSON.parse(event.data)));
  open.push(client);
  return client;
}

// What the React hook does with the frames of a resume.
function chatOver(client, options) {
  const transport = new WebSocketChatTransport({ agent: client, ...options });
  client.addEventListener("message", (event) => {
    const frame = JSON.parse(event.data);
    if (frame.type === "cf_agent_stream_resuming") transport.handleStreamResuming(frame);
    if (frame.type === "cf_agent_stream_resume_none") transport.handleStreamResumeNone(frame);
  });
  return transport;
}

async function say(transport, chatId, id, words) {
  const messages = [{ id, role: "user", parts: [{ type: "text", text: words }] }];
  return transport.sendMessages({ chatId, messages, trigger: "submit-message", messageId: undefined, abortSignal: undefined });
}

async function last(stream) {
  let message;
  for await (message of readUIMessageStream({ stream, terminateOnError: true }));
  return message;
}

const frames = (client, type) => client.frames.filter((frame) => frame.type === type);

test("a client is told who it talks to, and gets an answer", async () => {
  const client = await connect("ws-text");
  await client.ready;
  assert.deepEqual([client.agent, client.name], ["assistant", "ws-text"]);
  const message = await last(await say(chatOver(client), "ws-text", "m1", "#tool how late is it?"));
  assert.equal(text(message), "Let me see. It is late.");
  assert.equal(message.parts.find((part) => part.type === "tool-current_time").state, "output-available");
  const kept = await stored("ws-text");
  assert.deepEqual(kept.map((m) => m.id), ["m1", message.id]);
});

test("consent is given in a frame, the turn goes on in the same message, and every client hears of it", async () => {
  const client = await connect("ws-approval");
  const other = await connect("ws-approval");
  await Promise.all([client.ready, other.ready]);
  const transport = chatOver(client);
  const asked = await last(await say(transport, "ws-approval", "m1", "#approve solve it"));
  const { toolCallId, state } = asked.parts.find((part) => part.type === "tool-solve_issue");
  assert.equal(state, "approval-requested");
  client.send(JSON.stringify({ type: "cf_agent_tool_approval", toolCallId, approved: true, autoContinue: true }));
  await until(() => frames(client, "cf_agent_message_updated").length > 0, "the call is answered");
  const heard = (who) => frames(who, "cf_agent_chat_messages").at(-1)?.messages.slice(0, 2).map(text).join("|"); // what the run came to may follow
  for (const who of [client, other]) await until(() => heard(who) === "#approve solve it|May I? Very well.", "the whole is sent");
});

test("what a tool of the client gave continues the answer in a stream", async () => {
  const client = await connect("ws-tool");
  await client.ready;
  const clock = { name: "read_clock", description: "the clock", parameters: { type: "object", properties: {} } };
  const transport = chatOver(client, { prepareBody: () => ({ clientTools: [clock] }) });
  const asked = await last(await say(transport, "ws-tool", "m1", "#wall what does the clock say?"));
  const { toolCallId } = asked.parts.find((part) => part.type === "tool-read_clock");
  const result = { type: "cf_agent_tool_result", toolCallId, toolName: "read_clock", output: "12:00", state: "output-available", autoContinue: true };
  client.send(JSON.stringify(result));
  transport.expectToolContinuation();
  const stream = await transport.reconnectToStream({ chatId: "ws-tool" });
  let said = "";
  for await (const chunk of stream) if (chunk.type === "text-delta") said += chunk.delta;
  assert.match(said, /^It is noon/);
  assert.equal(text((await stored("ws-tool"))[1]), said);
});

test("a client that comes in the middle resumes, though it acknowledges twice, and the text is there once", async () => {
  const client = await connect("ws-resume");
  await client.ready;
  const stream = await say(chatOver(client), "ws-resume", "m1", "#slow tell me");
  const whole = last(stream);
  await until(() => frames(client, "cf_agent_use_chat_response").length > 5, "a beginning");
  const other = await connect("ws-resume");
  other.addEventListener("message", (event) => {
    const frame = JSON.parse(event.data);
    if (frame.type === "cf_agent_stream_resuming") other.send(JSON.stringify({ type: "cf_agent_stream_resume_ack", id: frame.id }));
  });
  const resumed = await chatOver(other).reconnectToStream({ chatId: "ws-resume" });
  assert.ok(resumed);
  const seen = await last(resumed);
  assert.equal(text(seen), text(await whole));
  assert.equal(text((await stored("ws-resume"))[1]), text(seen));
});

test("an answer is stopped", async () => {
  const client = await connect("ws-stop");
  await client.ready;
  const transport = chatOver(client);
  const ending = last(await say(transport, "ws-stop", "m1", "#slow tell me"));
  await until(() => frames(client, "cf_agent_use_chat_response").length > 5, "a beginning");
  assert.ok(transport.cancelActiveServerTurn());
  await ending.catch(() => undefined);
  await until(() => frames(client, "cf_agent_use_chat_response").some((frame) => frame.done), "the end");
  let kept = [];
  for (let i = 0; i < 200 && kept.length < 2; i += 1) kept = await stored("ws-stop");
  assert.equal(kept[1].metadata.aborted, true);
});

test("state is shared, and a reading client cannot write it", async () => {
  const heard = [];
  const refused = [];
  const one = await connect("ws-state");
  const two = await connect("ws-state", { onStateUpdate: (state, source) => heard.push([state, source]) });
  const reader = await connect("ws-state", { query: { readonly: "1" }, onStateUpdateError: (error) => refused.push(error) });
  await Promise.all([one.ready, two.ready, reader.ready]);
  one.setState({ colour: "蓝色" });
  await until(() => heard.some(([state, source]) => state?.colour === "蓝色" && source === "server"), "the state");
  reader.setState({ colour: "red" });
  await until(() => refused.length > 0, "the refusal");
  assert.match(refused[0], /readonly/);
});

test("a token that is bad, or good for another conversation, is closed with 4001", async () => {
  const other = await api("/api/tokens", { agent: "assistant", name: "ws-mine" });
  for (const token of ["nonsense", other.token]) {
    const codes = [];
    const client = await connect("ws-other", { query: { token }, maxRetries: 0 });
    client.ready.catch(() => undefined);
    client.addEventListener("close", (event) => codes.push(event.code));
    await until(() => codes.length > 0, "the close");
    assert.equal(codes[0], 4001);
    client.close();
  }
});
