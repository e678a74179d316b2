// What the suites share: where the server is, and what the server's own routes say.
import { AbstractChat } from "ai";

export const url = process.env.CHAT_URL;
export const token = process.env.CHAT_TOKEN;
export const headers = { Authorization: `Bearer ${token}` };

export async function api(path, body) {
  const how = body ? { method: "POST", body: JSON.stringify(body), headers: { ...headers, "Content-Type": "application/json" } } : { headers };
  const answer = await fetch(url + path, how);
  if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
  return answer.json();
}

export async function stored(session) {
  return (await api(`/api/sessions/${session}/messages`)).messages;
}

export const text = (message) => message.parts.filter((part) => part.type === "text").map((part) => part.text).join("");

export async function until(holds, what) {
  const deadline = Date.now() + 30_000;
  while (!holds()) {
    if (Date.now() > deadline) throw new Error(`not within 30 s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

// The state that a user interface would show.
class State {
  status = "ready";
  error = undefined;
  messages = [];
  pushMessage = (message) => void this.messages.push(message);
  popMessage = () => void this.messages.pop();
  replaceMessage = (index, message) => void (this.messages[index] = message);
  snapshot = (thing) => structuredClone(thing);
}

// What `useChat` is made of, without React.
export class Conversation extends AbstractChat {
  constructor(options) {
    super({ ...options, state: new State() });
  }
}
