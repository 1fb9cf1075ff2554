// Follows and steers sessions. Everything that comes from a session is put in as text, never as HTML.

import { inMarkdown } from "./markdown.js";
import { questionCard } from "./questions.js";
import { element, inDiff, shown } from "./view.js";
import { follow } from "./stream.js";

const $ = (id) => document.getElementById(id);
const place = location.hash.slice(1).split("&").reduce((found, part) => {
  const [name, value] = part.split("=");
  return { ...found, [name]: decodeURIComponent(value ?? "") };
}, {});
if (place.token) sessionStorage.setItem("token", place.token);
let problemAtStart = "";
if (place.once) { // the link of a terminal works once: its code is exchanged for a token of this tab
  const answer = await fetch("v1/pair", { method: "POST", headers: { Authorization: `Bearer ${place.once}` } });
  if (answer.ok) {
    const { token, session_id } = await answer.json();
    sessionStorage.setItem("token", token);
    place.session = session_id;
  } else {
    problemAtStart = "This link was used already. Type /remote in the terminal for a new one.";
  }
}
let session = place.session ?? "";
let following = null;
let view = null;
const main = document.querySelector("main");
let isAtEnd = true; // what comes is followed until somebody scrolls back
setPlace();

function setPlace() {
  history.replaceState(null, "", session ? `#session=${session}` : location.pathname);
}

async function ask(method, path, body) {
  const answer = await fetch(path, {
    method,
    headers: { Authorization: `Bearer ${sessionStorage.getItem("token") ?? ""}` },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (answer.status === 401) logIn();
  if (answer.status === 204) return null;
  const told = await answer.json().catch(() => ({ error: { message: `The server answered ${answer.status}.` } }));
  if (!answer.ok) throw Object.assign(new Error(told.error?.message ?? answer.statusText), { code: told.error?.code });
  return told;
}

// Sends until an answer comes: a message has an id, so that it is taken once.
async function send(path, body) {
  for (let wait = 500; ; wait = Math.min(wait * 2, 8000)) {
    try {
      return await ask("POST", path, body);
    } catch (error) {
      if (!(error instanceof TypeError) && error.code !== "no_owner") throw error;
      tell("The server is unreachable. Your message is sent when it is back.");
      await new Promise((done) => setTimeout(done, wait));
    }
  }
}

function tell(problem) {
  $("problem").textContent = problem;
}

function logIn() {
  following?.stop();
  showMenu(false);
  $("login").hidden = false;
  $("foot").hidden = true;
  $("login-problem").textContent = problemAtStart || (sessionStorage.getItem("token") ? "This server does not know that token." : "");
  problemAtStart = "";
}

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", new FormData(event.target).get("token").trim());
  $("login").hidden = true;
  begin();
});

// The list of sessions

async function list() {
  if (!sessionStorage.getItem("token")) return;
  const found = await ask("GET", "v1/sessions").catch((error) => {
    $("menu").hidden = error.code === "one_session"; // a terminal's own page has no list
  });
  if (!found) return;
  $("session-list").replaceChildren(...found.map((one) => {
    const button = element("button", { type: "button" });
    const dot = one.is_running ? "● " : "";
    button.append(element("span", {}, dot + shown(one.name || one.title || "No prompt yet")), element("small", {}, shown(one.cwd)));
    if (one.session_id === session) {
      button.setAttribute("aria-current", "true");
      $("title").textContent = shown(one.name || one.title || "New session");
    }
    button.addEventListener("click", () => open(one.session_id));
    const row = element("li");
    row.append(button);
    return row;
  }));
}

$("new-session").addEventListener("submit", async (event) => {
  event.preventDefault();
  const given = Object.fromEntries([...new FormData(event.target)].filter(([, value]) => value.trim()));
  try {
    open((await ask("POST", "v1/sessions", given)).session_id);
  } catch (error) {
    $("foot").hidden = false;
    tell(error.message);
  }
});

$("menu").addEventListener("click", () => showMenu(!$("sessions").classList.contains("open")));

function showMenu(isOpen) {
  $("sessions").classList.toggle("open", isOpen);
  $("menu").setAttribute("aria-expanded", String(isOpen));
}

function open(id) {
  session = id;
  setPlace();
  showMenu(false);
  begin();
}

// One session

function begin() {
  following?.stop();
  tell("");
  list();
  $("foot").hidden = !session;
  $("log").replaceChildren();
  $("questions").replaceChildren();
  if (!sessionStorage.getItem("token")) return logIn();
  if (!session) return showMenu(true);
  isAtEnd = true;
  view = new View();
  following = follow(`v1/sessions/${session}/events`, {
    token: () => sessionStorage.getItem("token"),
    heard: (one) => view.take(one),
    link: (text, isLost) => {
      $("link").textContent = text;
      $("link").classList.toggle("lost", isLost);
      if (!isLost) tell("");
    },
    refused: (status) => (status === 401 ? logIn() : tell(status === 404 ? "There is no such session." : `The server rejected the request (${status}).`)),
  });
  ask("GET", `v1/sessions/${session}`).then((one) => {
    $("elsewhere").hidden = one.held_by !== "terminal";
    if (one.model) view.setModel(one.model);
  }, () => {});
}

class View {
  constructor() {
    this.clear();
  }

  clear() {
    $("log").replaceChildren();
    $("questions").replaceChildren();
    this.calls = new Map();
    this.blocks = new Map();
    this.entries = new Map();
    this.setBusy(false);
    $("cost").textContent = "";
  }

  add(node) {
    if (node && !node.isConnected) $("log").append(node);
    if (isAtEnd) main.scrollTop = main.scrollHeight;
  }

  setBusy(isBusy) {
    this.isBusy = isBusy;
    $("send").textContent = isBusy ? "Steer" : "Send";
    $("later").hidden = $("stop").hidden = !isBusy;
  }

  setModel(name) {
    $("model").textContent = shown(name);
  }

  note(text, isBad = false) {
    const node = element("p", { className: isBad ? "note bad" : "note" }, shown(text));
    this.add(node);
    return node;
  }

  take(one) {
    if (one.stream_id && ["assistant", "stream_event", "user"].includes(one.type)) this.span = one.stream_id;
    if (one.type === "stream_event" && !one.parent_tool_use_id) this.takePart(one.event);
    else if (one.type === "assistant") this.takeReply(one);
    else if (one.type === "user") this.takeUser(one);
    else if (one.type === "result") this.takeResult(one);
    else if (one.type === "system") this.takeSystem(one);
  }

  // A reply while it is written: its blocks take their final form when it is complete.
  takePart(event) {
    const block = this.blocks.get(event.index);
    if (event.type === "message_start") {
      this.dropUnfinished();
      this.setBusy(true);
    } else if (event.type === "content_block_start") {
      this.blocks.set(event.index, this.startBlock(event.content_block));
    } else if (event.type === "content_block_delta" && block) {
      block.text += event.delta.text ?? event.delta.thinking ?? "";
      if (block.body && !block.isDrawn) {
        block.isDrawn = true;
        requestAnimationFrame(() => {
          block.isDrawn = false;
          inMarkdown(block.body, block.text);
          this.add();
        });
      }
    }
  }

  startBlock(block) {
    if (block.type === "tool_use") return { text: "", node: this.note(`${block.name} …`) };
    const isThought = block.type === "thinking";
    const node = element(isThought ? "details" : "div", { className: isThought ? "thinking" : "answer unfinished" });
    const body = isThought ? element("div") : node;
    if (isThought) node.append(element("summary", {}, "Thinking"), body);
    this.add(node);
    return { text: "", node, body };
  }

  dropUnfinished() {
    for (const block of this.blocks.values()) block.node.remove();
    this.blocks.clear();
  }

  takeReply(one) {
    if (!one.parent_tool_use_id) this.dropUnfinished();
    this.showReply(one.message, one.parent_tool_use_id, one.message.id);
  }

  showReply(message, parent, id) {
    const nodes = [];
    for (const block of message.content) {
      if (block.type === "text") {
        const node = element("div", { className: "answer" });
        inMarkdown(node, block.text);
        nodes.push(node);
      } else if (block.type === "thinking" && block.thinking) {
        const node = element("details", { className: "thinking" });
        const body = element("div");
        inMarkdown(body, block.thinking);
        node.append(element("summary", {}, "Thinking"), body);
        nodes.push(node);
      } else if (block.type === "tool_use") {
        nodes.push(this.showCall(block));
      }
    }
    const within = parent && this.calls.get(parent);
    for (const node of nodes) within ? within.append(node) : this.add(node);
    this.add();
    if (id) this.entries.set(id, nodes);
  }

  showCall(call) {
    const node = element("details");
    const input = call.input ?? {};
    const what = input.command ?? input.path ?? input.pattern ?? input.task ?? input.url ?? "";
    node.append(element("summary", {}, `${call.name}  ${shown(String(what)).split("\n")[0].slice(0, 200)}`));
    node.append(element("pre", {}, shown(input.command ?? JSON.stringify(input, null, 2))));
    this.calls.set(call.id, node);
    return node;
  }

  takeUser(one) {
    const said = [];
    for (const block of one.message.content) {
      if (block.type === "tool_result") this.showResult(block);
      else if (block.text?.startsWith("<system-reminder>")) continue; // for the model alone
      else said.push(block.type === "text" ? block.text : `[${block.type}]`);
    }
    if (!said.length) return;
    const node = element("div", { className: "said" }, shown(said.join("\n")));
    this.add(node);
    if (one.entry_id) this.entries.set(one.entry_id, [node]);
    if (document.querySelector("#session-list [aria-current] span")?.textContent.endsWith("No prompt yet")) list();
  }

  showResult(block) {
    const call = this.calls.get(block.tool_use_id);
    if (!call) return;
    const parts = typeof block.content === "string" ? [{ type: "text", text: block.content }] : (block.content ?? []);
    const text = parts.map((part) => (part.type === "text" ? part.text : `[${part.type}]`)).join("\n");
    const isDenied = text.startsWith("permission_denied"); // by the person, a rule or the mode: nothing failed
    const outcome = isDenied ? element("span", {}, "  not run") : element("span", { className: "failed" }, "  failed");
    if (block.is_error) call.querySelector("summary").append(outcome);
    const body = element("pre");
    inDiff(body, text.length > 20000 ? `${text.slice(0, 20000)}\n… ${text.length - 20000} more characters` : text);
    call.append(body);
  }

  takeResult(one) {
    const isOfTurn = one.stream_id === this.span; // else a command's
    if (isOfTurn) {
      this.dropUnfinished();
      this.setBusy(false);
      $("questions").replaceChildren();
    }
    if (one.is_error) this.note(one.subtype === "interrupted" ? "Interrupted." : one.result || one.subtype, true);
    if (one.total_cost_usd !== null) {
      this.cost = (this.cost ?? 0) + one.total_cost_usd;
      $("cost").textContent = `$${this.cost.toFixed(4)}`;
    }
  }

  takeSystem(one) {
    switch (one.subtype) {
      case "init":
        if (one.model) this.setModel(one.model);
        if (one.permission_mode) $("mode").value = one.permission_mode;
        if (one.is_resumed) {
          this.dropUnfinished();
          this.note("The server was replaced. Another one continues this session.");
        }
        $("questions").replaceChildren();
        break;
      case "reset":
        this.clear();
        if (one.model) this.setModel(one.model);
        for (const message of one.messages) {
          message.role === "assistant" ? this.showReply(message) : this.takeUser({ message });
        }
        this.setBusy(one.is_open);
        break;
      case "approval_requested":
      case "question":
        this.ask(one);
        break;
      case "approval_settled":
        document.getElementById(`question-${one.id}`)?.remove();
        break;
      case "queue_changed": {
        const waiting = one.steering.length + one.follow_ups.length;
        $("waiting").textContent = waiting ? `${waiting} waiting` : "";
        break;
      }
      case "permission_mode":
        $("mode").value = one.mode;
        break;
      case "provider_switch":
        this.setModel(one.to);
        break;
      case "rewound":
      case "retracted":
        this.takeBack(one);
        break;
      case "compact_boundary":
        this.note(`Compacted the conversation: ${one.tokens_before} → ${one.tokens_after} tokens.`);
        break;
      case "command":
        this.note(`${one.command}\n${one.output}`, one.is_error);
        break;
      case "notice":
        this.note(one.text);
        break;
      case "retry":
        this.note(`Retrying: ${one.error}`);
        break;
      case "subagent_started":
        this.note(`Subagent ${one.agent}: ${one.task.split("\n")[0]}`);
        break;
    }
  }

  // What was taken back goes; from an entry on that is not known here the page is read anew.
  takeBack(one) {
    if (one.ids) {
      for (const id of one.ids) for (const node of this.entries.get(id) ?? []) node.remove();
      return;
    }
    const first = this.entries.get(one.before)?.[0];
    if (!first) return begin();
    while (first.nextSibling) first.nextSibling.remove();
    first.remove();
  }

  ask(one) {
    const card = questionCard(one, async (op) => {
      try {
        await send(`v1/sessions/${session}/ops`, { id: one.id, ...op });
      } catch (error) {
        if (error.code !== "nobody_waits") {
          tell(error.message);
          return false;
        }
      }
      card.remove();
      return true;
    });
    $("questions").append(card);
    isAtEnd = card.offsetHeight <= main.clientHeight;
    if (isAtEnd) this.add();
    else card.scrollIntoView(); // it is read from its beginning; its buttons stand behind its end
  }
}

let sending = Promise.resolve(); // messages go one after the other, also those that wait for the network

function say(mode) {
  const text = $("text").value;
  if (!text.trim() || !session) return;
  const body = { content: text, mode, stream_id: crypto.randomUUID?.() ?? String(Math.random()).slice(2) };
  const path = `v1/sessions/${session}/messages`;
  $("text").value = "";
  tell("");
  sending = sending.then(() => deliver(path, body));
}

async function deliver(path, body) {
  try {
    await send(path, body);
    tell("");
  } catch (error) {
    $("text").value = [body.content, $("text").value].filter(Boolean).join("\n");
    tell(error.message);
    $("elsewhere").hidden = error.code !== "in_use";
  }
}

async function op(given) {
  try {
    await ask("POST", `v1/sessions/${session}/ops`, given);
    tell("");
    return true;
  } catch (error) {
    tell(error.message);
    return false;
  }
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  say(view?.isBusy ? "steer" : "prompt");
});
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && matchMedia("(pointer: fine)").matches) {
    event.preventDefault();
    $("composer").requestSubmit();
  }
});
$("later").addEventListener("click", () => say("follow_up"));
$("stop").addEventListener("click", () => op({ type: "interrupt" }));
$("mode").addEventListener("change", () => op({ type: "set_permission_mode", mode: $("mode").value }));
$("take-over").addEventListener("click", async () => {
  if (await op({ type: "take_over" })) $("elsewhere").hidden = true;
});
main.addEventListener("scroll", () => {
  isAtEnd = main.scrollHeight - main.scrollTop - main.clientHeight < 40;
});
main.addEventListener("click", () => session && showMenu(false));
addEventListener("online", () => following?.again());
document.addEventListener("visibilitychange", () => document.hidden || (following?.again(), list()));
setInterval(() => document.hidden || list(), 10000);
begin();
