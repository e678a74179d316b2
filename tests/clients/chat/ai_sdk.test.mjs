// npm `ai` 6: DefaultChatTransport, readUIMessageStream, and the chat that `useChat` is made of.
import assert from "node:assert/strict";
import { test } from "node:test";
import {
  DefaultChatTransport,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
  readUIMessageStream,
} from "ai";
import { Conversation, api, headers, stored, text, until, url } from "./shared.mjs";

const clock = { name: "read_clock", description: "the clock on the wall", parameters: { type: "object", properties: {} } };
const transport = (body) => new DefaultChatTransport({ api: `${url}/api/chat`, headers, body });
const conversation = (id, { body, ...options } = {}) => new Conversation({ id, transport: transport(body), ...options });
const user = (id, words) => ({ id, role: "user", parts: [{ type: "text", text: words }] });
const toolPart = (message, name) => message.parts.find((part) => part.type === `tool-${name}`);

test("a text streams in, growing, and is stored under the id that was streamed", async () => {
  const sent = { chatId: "ai-text", messages: [user("m1", "#long tell me")], trigger: "submit-message", messageId: undefined };
  const stream = await transport().sendMessages({ ...sent, abortSignal: undefined });
  const seen = [];
  for await (const message of readUIMessageStream({ stream, terminateOnError: true })) seen.push({ id: message.id, said: text(message) });
  assert.ok(seen.length > 5);
  for (let i = 1; i < seen.length; i += 1) assert.ok(seen[i].said.startsWith(seen[i - 1].said));
  const [question, answer] = await stored("ai-text");
  assert.equal(question.id, "m1");
  assert.equal(answer.id, seen.at(-1).id);
  assert.equal(text(answer), seen.at(-1).said);
});

test("a conversation of two turns, with reasoning and a tool", async () => {
  const chat = conversation("ai-tool");
  await chat.sendMessage({ text: "#tool how late is it?" });
  assert.equal(chat.status, "ready");
  const part = toolPart(chat.lastMessage, "current_time");
  assert.equal(part.state, "output-available");
  assert.deepEqual(part.input, { zone: "Asia/Shanghai" });
  assert.match(part.output, /Asia\/Shanghai/);
  assert.equal(text(chat.lastMessage), "Let me see. It is late.");
  assert.equal(chat.lastMessage.parts.find((p) => p.type === "reasoning").text, "They want the time.");
  await chat.sendMessage({ text: "and now?" });
  assert.equal(text(chat.lastMessage), "Later.");
  const kept = await stored("ai-tool");
  assert.deepEqual(kept.map((m) => m.id), chat.messages.map((m) => m.id));
  assert.deepEqual(kept.map(text), chat.messages.map(text));
});

for (const approved of [true, false]) {
  test(`consent is ${approved ? "given" : "denied"} in the chat, and the same message goes on`, async () => {
    const chat = conversation(`ai-approval-${approved}`, { sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses });
    await chat.sendMessage({ text: "#approve solve it" });
    const waiting = toolPart(chat.lastMessage, "solve_issue");
    assert.equal(waiting.state, "approval-requested");
    assert.equal(waiting.input.title, "add subtracts");
    const { id } = chat.lastMessage;
    await chat.addToolApprovalResponse({ id: waiting.approval.id, approved, reason: "so it is" });
    await until(() => chat.status === "ready" && text(chat.lastMessage).includes("Very well."), "the answer");
    assert.equal(chat.messages.length, 2);
    assert.equal(chat.lastMessage.id, id);
    assert.equal(text(chat.lastMessage), "May I? Very well.");
    assert.equal(toolPart(chat.lastMessage, "solve_issue").state, approved ? "output-available" : "output-denied");
  });
}

test("a tool of the client is carried out by the client", async () => {
  const chat = conversation("ai-client-tool", {
    body: { tools: [clock] },
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithToolCalls,
    onToolCall: ({ toolCall }) => {
      if (toolCall.toolName === "read_clock") {
        chat.addToolOutput({ tool: "read_clock", toolCallId: toolCall.toolCallId, output: { time: "12:00" } });
      }
    },
  });
  await chat.sendMessage({ text: "#client what does the clock say?" });
  await until(() => chat.status === "ready" && text(chat.lastMessage).includes("Noon"), "the answer");
  assert.equal(chat.messages.length, 2);
  assert.equal(text(chat.lastMessage), "Noon.");
});

test("another tab resumes, sees the same, and there is nothing to resume afterwards", async () => {
  const first = conversation("ai-resume");
  const sending = first.sendMessage({ text: "#slow tell me" });
  await until(() => first.lastMessage?.role === "assistant" && text(first.lastMessage).length > 10, "a beginning");
  const second = conversation("ai-resume");
  second.messages = (await stored("ai-resume")).filter((m) => m.role === "user");
  await Promise.all([second.resumeStream(), sending]);
  assert.equal(second.messages.length, 2);
  assert.deepEqual(second.lastMessage.id, first.lastMessage.id);
  assert.equal(text(second.lastMessage), text(first.lastMessage));
  assert.equal(text((await stored("ai-resume"))[1]), text(first.lastMessage));
  const third = conversation("ai-resume");
  await third.resumeStream();
  assert.deepEqual([third.status, third.messages.length], ["ready", 0]);
});

test("an answer is made again, a question is edited, and the branches are kept", async () => {
  const chat = conversation("ai-branch");
  await chat.sendMessage({ text: "#branch what?" });
  const [question, first] = chat.messages;
  await chat.regenerate();
  assert.notEqual(chat.lastMessage.id, first.id);
  assert.equal(chat.messages.length, 2);
  await chat.sendMessage({ text: "#branch who?", messageId: question.id });
  assert.deepEqual((await stored("ai-branch")).map(text), ["#branch who?", "One."]);
  assert.equal((await api("/api/sessions/ai-branch/tree")).nodes.length, 5);
});

test("a refusal and a break in the middle are errors in the chat, which goes on afterwards", async () => {
  const errors = [];
  const chat = conversation("ai-error", { onError: (error) => errors.push(error.message) });
  await chat.sendMessage({ text: "#broken" });
  assert.equal(chat.status, "error");
  assert.match(errors[0], /this model is broken/);
  const half = conversation("ai-half", { onError: (error) => errors.push(error.message) });
  await half.sendMessage({ text: "#half" });
  assert.equal(half.status, "error");
  assert.match(errors[1], /connection was lost/);
  half.clearError();
  await half.sendMessage({ text: "#well" });
  assert.equal(text(half.lastMessage), "All is well.");
});
