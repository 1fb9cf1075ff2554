// Puts texts on the page, as text.

export function element(name, fields = {}, text) {
  const made = Object.assign(document.createElement(name), fields);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Signs that are invisible, or that turn a line around, are shown by their numbers.
export function shown(text) {
  return text.replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\u{e0000}-\u{e007f}]/gu,
    (sign) => (sign === "\r" || sign === "\u200d" ? sign : `⟨U+${sign.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`),
  );
}

// Paragraphs, fenced code and `code` of Markdown; all else stays as it was written.
export function inProse(node, text) {
  const parts = [];
  let code = null;
  let fence = "";
  let lines = [];
  const close = () => {
    if (lines.length) parts.push(code ? element("pre", {}, shown(lines.join("\n"))) : paragraph(lines.join("\n")));
    lines = [];
  };
  for (const line of text.split("\n")) {
    const found = line.match(/^ {0,3}(`{3,}|~{3,})(.*)$/);
    if (code ? found && found[1].startsWith(fence) && !found[2].trim() : found) {
      close();
      code = !code;
      fence = found[1];
    } else lines.push(line);
  }
  close();
  node.replaceChildren(...parts);
}

function paragraph(text) {
  const made = element("p");
  for (const [n, part] of text.trim().split(/`([^`\n]+)`/).entries()) made.append(n % 2 ? element("code", {}, shown(part)) : shown(part));
  return made;
}

export function inDiff(node, text) {
  const isDiff = /^@@ |^--- .*\n\+\+\+ /m.test(text);
  if (!isDiff) {
    node.textContent = shown(text);
    return;
  }
  for (const line of text.split("\n")) {
    const kind = line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : "";
    if (kind) node.append(element("span", { className: kind }, shown(line)));
    else node.append(`${shown(line)}\n`);
  }
}
