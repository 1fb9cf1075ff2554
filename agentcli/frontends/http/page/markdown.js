// Makes nodes of Markdown: CommonMark's blocks and spans as far as answers use them, with GitHub's tables and task lists.
// Text becomes text and links lead to the web alone: HTML in it is never parsed, so that nothing in it can run.

import { element, shown } from "./view.js";

const DEEPEST = 12; // lists and quotes within each other; what nests deeper is text
const FENCE = /^ {0,3}(`{3,}(?=[^`]*$)|~{3,})[ \t]*(\S*)/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:( {1,4})(?=\S)| +|$)/;
const TABLE_RULE = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

export function inMarkdown(node, text) {
  node.replaceChildren(...blocks(text.replaceAll("\r\n", "\n").split("\n"), 0));
}

function blocks(lines, depth) {
  const made = [];
  for (let at = 0; at < lines.length; ) {
    const [node, next] = block(lines, at, depth);
    if (node) made.push(node);
    at = next;
  }
  return made;
}

// The block that begins at a line, and the line behind it.
function block(lines, at, depth) {
  const line = lines[at];
  if (!line.trim()) return [null, at + 1];
  if (depth < DEEPEST) {
    if (QUOTE.test(line)) return quote(lines, at, depth);
    if (ITEM.test(line) && !RULE.test(line)) return list(lines, at, depth);
  }
  if (FENCE.test(line)) return fenced(lines, at);
  if (/^(?: {4}|\t)/.test(line)) return indented(lines, at);
  if (RULE.test(line)) return [element("hr"), at + 1];
  const heading = line.match(HEADING);
  if (heading) return [titled(heading[1].length, (heading[2] ?? "").replace(/(?:^|[ \t]+)#+[ \t]*$/, "")), at + 1];
  if (isTable(lines, at)) return table(lines, at);
  return paragraph(lines, at);
}

function beginsBlock(lines, at) {
  const line = lines[at];
  const item = line.match(ITEM);
  const isItem = item && item[0].length < line.length && (!/\d/.test(item[2]) || parseInt(item[2], 10) === 1);
  return isItem || QUOTE.test(line) || FENCE.test(line) || RULE.test(line) || HEADING.test(line) || isTable(lines, at);
}

function fenced(lines, at) {
  const [, mark, language] = lines[at].match(FENCE);
  const indent = lines[at].search(/\S/);
  const end = lines.findIndex((line, n) => n > at && line.trim().startsWith(mark) && !line.trim().replaceAll(mark[0], ""));
  const inside = lines.slice(at + 1, end < 0 ? lines.length : end);
  const code = inside.map((line) => line.slice(Math.min(indent, Math.max(0, line.search(/\S|$/)))));
  return [element("pre", { title: shown(language) }, shown(code.join("\n"))), end < 0 ? lines.length : end + 1];
}

function indented(lines, at) {
  let end = at;
  while (end < lines.length && (/^(?: {4}|\t)/.test(lines[end]) || !lines[end].trim())) end += 1;
  const code = lines.slice(at, end).map((line) => line.replace(/^(?: {4}|\t)/, ""));
  return [element("pre", {}, shown(code.join("\n").trimEnd())), end];
}

function titled(level, text) {
  const made = element(`h${Math.min(6, level + 1)}`); // the page's own title is the first
  made.append(...spans(text.trim()));
  return made;
}

function quote(lines, at, depth) {
  const inside = [];
  let end = at;
  for (; end < lines.length && (QUOTE.test(lines[end]) || (lines[end].trim() && !beginsBlock(lines, end))); end += 1) {
    inside.push(lines[end].replace(QUOTE, ""));
  }
  const made = element("blockquote");
  made.append(...blocks(inside, depth + 1));
  return [made, end];
}

function list(lines, at, depth) {
  const [, , mark] = lines[at].match(ITEM);
  const isSame = (other) => (/\d/.test(mark) ? /\d/.test(other) && other.at(-1) === mark.at(-1) : other === mark);
  const made = element(/\d/.test(mark) ? "ol" : "ul");
  if (/\d/.test(mark) && parseInt(mark, 10) !== 1) made.start = parseInt(mark, 10);
  let end = at;
  while (end < lines.length) {
    const found = lines[end].match(ITEM);
    if (!found || !isSame(found[2]) || RULE.test(lines[end])) break;
    const width = found[1].length + found[2].length + (found[3]?.length ?? 1);
    const inside = [lines[end].slice(found[0].length)];
    for (end += 1; end < lines.length; end += 1) {
      const indent = lines[end].search(/\S|$/);
      const isBlank = !lines[end].trim();
      if (!isBlank && indent < width && (beginsBlock(lines, end) || ITEM.test(lines[end]) || !inside.at(-1).trim())) break;
      if (isBlank && !lines.slice(end).find((line) => line.trim())?.startsWith(" ".repeat(width))) break;
      inside.push(isBlank ? "" : lines[end].slice(Math.min(indent, width)));
    }
    made.append(listItem(inside, depth));
    while (end < lines.length && !lines[end].trim() && ITEM.test(lines[end + 1] ?? "")) end += 1;
  }
  return [made, end];
}

function listItem(lines, depth) {
  const made = element("li");
  const task = lines[0].match(/^\[([ xX])\][ \t]+/);
  if (task) {
    lines[0] = lines[0].slice(task[0].length);
    made.className = "task";
    made.append(task[1] === " " ? "☐ " : "☑ ");
  }
  const [first, ...rest] = blocks(lines, depth + 1);
  if (first) made.append(...(first.tagName === "P" ? first.childNodes : [first]), ...rest);
  return made;
}

function isTable(lines, at) {
  const rule = lines[at + 1] ?? "";
  return lines[at].includes("|") && rule.includes("-") && TABLE_RULE.test(rule) && cells(lines[at]).length === cells(rule).length;
}

function table(lines, at) {
  const sides = cells(lines[at + 1]).map((cell) => (/^:-+:$/.test(cell) ? "center" : /:$/.test(cell) ? "right" : ""));
  const row = (line, name) => {
    const given = cells(line);
    const made = element("tr");
    made.append(...sides.map((side, n) => {
      const cell = element(name, { className: side });
      cell.append(...spans(given[n] ?? ""));
      return cell;
    }));
    return made;
  };
  const [head, body, made] = [element("thead"), element("tbody"), element("table")];
  head.append(row(lines[at], "th"));
  let end = at + 2;
  for (; end < lines.length && lines[end].includes("|"); end += 1) body.append(row(lines[end], "td"));
  made.append(head, body);
  const box = element("div", { className: "wide" }); // it scrolls where a phone is narrower
  box.append(made);
  return [box, end];
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function paragraph(lines, at) {
  let end = at + 1;
  for (; end < lines.length && lines[end].trim(); end += 1) {
    const under = lines[end].match(/^ {0,3}(=+|-+)[ \t]*$/);
    if (under) return [titled(under[1][0] === "=" ? 1 : 2, lines.slice(at, end).join("\n")), end + 1];
    if (beginsBlock(lines, end)) break;
  }
  const made = element("p");
  made.append(...spans(lines.slice(at, end).map((line) => line.trim()).join("\n")));
  return [made, end];
}

// Spans

const SPECIAL = /[\\`*_~[!<h]/;
const PUNCTUATION = /[!-/:-@[-`{-~]/;

function spans(text, depth = 0) {
  if (depth > DEEPEST) return [shown(text)];
  const made = [];
  let said = "";
  const missing = new Set(); // marks that nothing ends any more: each is looked for once
  const put = (node) => {
    if (said) made.push(shown(said));
    said = "";
    made.push(node);
  };
  for (let at = 0; at < text.length; ) {
    const found = SPECIAL.test(text[at]) && span(text, at, missing, depth);
    if (found) {
      if (typeof found[0] === "string") said += found[0];
      else put(found[0]);
      at = found[1];
    } else {
      said += text[at];
      at += 1;
    }
  }
  if (said) made.push(shown(said));
  return made;
}

// What begins at a place: a node or text, and the place behind it; nothing where the character stands for itself.
function span(text, at, missing, depth) {
  switch (text[at]) {
    case "\\":
      return PUNCTUATION.test(text[at + 1] ?? "") ? [text[at + 1], at + 2] : null;
    case "`":
      return codeSpan(text, at, missing);
    case "*":
    case "_":
    case "~":
      return emphasis(text, at, missing, depth);
    case "!":
      return text[at + 1] === "[" ? link(text, at + 1, depth) : null; // a picture from the web would tell who looks
    case "[":
      return link(text, at, depth);
    case "<": {
      const found = /^<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/.exec(text.slice(at, at + 2010));
      return found && linked(found[1], [shown(found[1])], at + found[0].length);
    }
    default: {
      if (!text.startsWith("http", at) || /[\w/]/.test(text[at - 1] ?? "")) return null;
      const found = /^https?:\/\/[^\s<>"`|]{1,2000}/.exec(text.slice(at, at + 2010));
      const url = found?.[0].replace(/[.,;:!?'"*_~]+$/, "").replace(/\)+$/, (ends) => (found[0].includes("(") ? ends : ""));
      return url ? linked(url, [shown(url)], at + url.length) : null;
    }
  }
}

function codeSpan(text, at, missing) {
  const mark = /^`+/.exec(text.slice(at))[0];
  if (missing.has(mark)) return [mark, at + mark.length];
  for (let end = text.indexOf(mark, at + mark.length); end >= 0; ) {
    const run = /^`+/.exec(text.slice(end))[0].length;
    if (run === mark.length) {
      const code = text.slice(at + run, end).replaceAll("\n", " ");
      const isPadded = /^ .*\S.* $/.test(code);
      return [element("code", {}, shown(isPadded ? code.slice(1, -1) : code)), end + run];
    }
    end = text.indexOf(mark, end + run);
  }
  missing.add(mark);
  return [mark, at + mark.length];
}

const NAMES = { 1: ["em"], 2: ["strong"], 3: ["strong", "em"] };

function emphasis(text, at, missing, depth) {
  const sign = text[at];
  let run = 1;
  while (text[at + run] === sign && run < 4) run += 1;
  const isWord = (character) => /[\p{L}\p{N}_]/u.test(character ?? "");
  const cannot = run > 3 || (sign === "~" && run !== 2) || !/\S/.test(text[at + run] ?? "");
  if (cannot || (sign === "_" && isWord(text[at - 1]))) return [sign.repeat(run), at + run];
  const mark = sign.repeat(run);
  if (missing.has(mark)) return [mark, at + run];
  for (let end = at + run; end < text.length; end += 1) {
    if (text[end] === "\\") end += 1;
    else if (text[end] === "`") end = codeSpan(text, end, missing)[1] - 1;
    else if (text[end] === sign) {
      let ends = 1;
      while (text[end + ends] === sign) ends += 1;
      const closes = ends === run && /\S/.test(text[end - 1]) && !(sign === "_" && isWord(text[end + run]));
      if (closes) {
        const [outer, inner] = (sign === "~" ? ["del"] : NAMES[run]).map((name) => element(name));
        (inner ?? outer).append(...spans(text.slice(at + run, end), depth + 1));
        if (inner) outer.append(inner);
        return [outer, end + run];
      }
      end += ends - 1;
    }
  }
  missing.add(mark);
  return [mark, at + run];
}

function link(text, at, nested) {
  let depth = 0;
  let end = at;
  for (; end < Math.min(text.length, at + 1000); end += 1) {
    if (text[end] === "\\") end += 1;
    else if (text[end] === "[") depth += 1;
    else if (text[end] === "]" && !(depth -= 1)) break;
  }
  const target = text[end] === "]" && /^\(\s*(?:<([^<>\n]*)>|((?:[^\s()]|\([^\s()]*\))*))(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/.exec(text.slice(end + 1, end + 4000));
  if (!target) return null;
  return linked(target[1] ?? target[2], spans(text.slice(at + 1, end), nested + 1), end + 1 + target[0].length);
}

// A link to the web or to a mailbox; anything else (javascript:, files, what is on this server) is only named.
function linked(target, label, end) {
  const url = URL.parse ? URL.parse(target) : parsed(target);
  const made = element("span");
  if (url && ["http:", "https:", "mailto:"].includes(url.protocol)) {
    const anchor = element("a", { href: url.href, target: "_blank", rel: "noopener noreferrer", title: shown(url.href) });
    anchor.append(...label.map((part) => (part instanceof Node && part.querySelector?.("a") ? shown(part.textContent) : part)));
    return [anchor, end];
  }
  made.append(...label, ` (${shown(target)})`);
  return [made, end];
}

function parsed(target) {
  try {
    return new URL(target);
  } catch {
    return null;
  }
}
