// Cards for what waits for an answer. All of it is on the card, whatever its length, and the buttons stand behind its end.

import { element, inDiff, shown } from "./view.js";

const LABELS = {
  run: ["Allow", "Deny"],
  keep: ["Apply these changes", "Discard them"],
  plan: ["Carry out this plan", "Keep planning"],
  limit: ["Continue", "Stop"],
  file: ["Run it again with the file", "Discard the dry run"],
  files: ["Run it again with the files", "Discard the dry run"],
  host: ["Run it again with the host", "Go on without it"],
};

// `answer` sends an op with the question's id and tells if that was taken; the card is then gone.
export function questionCard(one, answer) {
  const seen = { ...one, ...one.exposed }; // with letters in disguise as escapes; answers name the texts themselves
  const node = element("section", { className: "question", id: `question-${one.id}` });
  node.append(element("h2", {}, shown(seen.question ?? seen.title)));
  const ways = element("div", { className: "ways" });
  const way = (label, op, className = "") => {
    const button = element("button", { type: "button", className }, shown(label));
    button.addEventListener("click", async () => {
      for (const each of node.querySelectorAll("button")) each.disabled = true;
      if (!(await answer(typeof op === "function" ? op() : op))) {
        for (const each of node.querySelectorAll("button")) each.disabled = false;
      }
    });
    ways.append(button);
    return button;
  };
  if (one.subtype === "question") ask(one, seen, node, way);
  else approve(one, seen, node, way);
  node.append(ways);
  return node;
}

function ask(one, seen, node, way) {
  for (const [n, option] of one.options.entries()) way(seen.options[n], { type: "answer", text: option });
  const words = element("input", { placeholder: "Your own answer" });
  words.setAttribute("aria-label", "Your own answer");
  node.append(words);
  way("Answer", () => ({ type: "answer", text: words.value }), "yes");
  way("Skip this question", { type: "deny" });
}

function approve(one, seen, node, way) {
  const isKeep = one.kind === "keep";
  const [yes, no] = LABELS[one.opens || (one.kind === "run" && !one.tool_name ? "limit" : one.kind)];
  for (const text of [...seen.effects, seen.reason].filter(Boolean)) node.append(element("p", { className: "note" }, shown(text)));
  const hunks = seen.hunks.length > 1 ? seen.hunks.map((hunk, n) => hunkRow(hunk, n)) : [];
  const head = /^--- .*\n\+\+\+ .*\n/.exec(seen.preview)?.[0];
  const texts = isKeep ? seen.hunks : [hunks.length ? head : seen.preview];
  for (const text of hunks.length && isKeep ? [] : texts.filter(Boolean)) {
    const body = element("pre");
    inDiff(body, text);
    node.append(body);
  }
  node.append(...hunks);
  // With a yes to a plan, a comment would be the plan that is carried out in its place.
  const isPlan = one.kind === "plan";
  const placeholder = isPlan ? "What to change first" : "A comment for the model";
  const words = element("textarea", { rows: 1, placeholder });
  words.setAttribute("aria-label", placeholder);
  node.append(words);

  const chosen = () => hunks.flatMap((row, n) => (row.querySelector("input").checked ? [n] : []));
  const allow = way("", () => {
    const hunk = chosen();
    const comment = isPlan ? "" : words.value.trim();
    return { type: "approve", comment, ...(hunk.length < hunks.length ? { hunks: hunk } : {}) };
  }, "yes");
  const wide = [];
  if (one.can_try) way("Dry run first", { type: "approve", scope: "try" });
  for (const [n, rule] of one.rules.entries()) {
    wide.push(way(`Allow ${seen.rules[n]} in this session`, { type: "approve", scope: "session", rule }));
  }
  const deny = way("", () => ({ type: "deny", comment: words.value.trim() }));

  const label = () => {
    const count = chosen().length;
    const isPart = count < hunks.length;
    allow.textContent = `${yes}${isPart ? ` (${count} of ${hunks.length})` : ""}`;
    allow.hidden = isPart && !count;
    for (const button of wide) button.hidden = isPart;
    deny.textContent = no + (words.value.trim() ? ", because…" : "");
  };
  for (const row of hunks) {
    row.addEventListener("change", (event) => {
      row.classList.toggle("left", !event.target.checked);
      label();
    });
  }
  words.addEventListener("input", label);
  label();
}

// A part of a change that can be made by itself; what is left out goes back to the model.
function hunkRow(text, n) {
  const row = element("label", { className: "hunk" });
  const box = element("input", { type: "checkbox", checked: true });
  box.setAttribute("aria-label", `Part ${n + 1}`);
  const body = element("pre");
  inDiff(body, text);
  row.append(box, body);
  return row;
}
