// Puts texts on the page, as text.

export function element(name, fields = {}, text) {
  const made = Object.assign(document.createElement(name), fields);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Signs that are invisible, or that turn a line around, are shown by their numbers. Joiners and selectors may stay in emoji.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\u{e0000}-\u{e0fff}]/gu;
const IN_EMOJI = /(?<=[\p{Extended_Pictographic}\ufe0f])\u200d(?=\p{Extended_Pictographic})|(?<=\p{Emoji})\ufe0f/gu;

export function shown(text) {
  const lines = text.replaceAll("\r\n", "\n");
  const stays = new Set(Array.from(lines.matchAll(IN_EMOJI), (found) => found.index));
  return lines.replace(HIDDEN, (sign, at) =>
    stays.has(at) ? sign : `⟨U+${sign.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`,
  );
}

export function inDiff(node, text) {
  const isDiff = /^@@ |^--- .*\n\+\+\+ /m.test(text);
  if (!isDiff) {
    node.textContent = shown(text);
    return;
  }
  for (const line of text.replace(/\n$/, "").split("\n")) {
    const kind = line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : "";
    if (kind) node.append(element("span", { className: kind }, shown(line)));
    else node.append(`${shown(line)}\n`);
  }
}
