// The difference of two texts, word by word.
import { html, visible } from "./parts.js";

const MOST_WORDS = 3000;

export function difference(before, after) {
  const a = words(before), b = words(after);
  const lengths = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) for (let j = b.length - 1; j >= 0; j--)
    lengths[i][j] = a[i] === b[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
  const parts = [];
  const add = (kind, text) => { const last = parts[parts.length - 1]; if (last?.kind === kind) last.text += text; else parts.push({ kind, text }); };
  let i = 0, j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { add("same", a[i]); i++; j++; }
    else if (j >= b.length || i < a.length && lengths[i + 1][j] >= lengths[i][j + 1]) { add("del", a[i]); i++; }
    else { add("ins", b[j]); j++; }
  }
  return parts;
}

function words(text, most = MOST_WORDS) {
  return (String(text ?? "").match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) || []).slice(0, most);
}

export function Difference({ before, after, label }) {
  const parts = difference(before, after);
  const isCut = [before, after].some((text) => words(text, MOST_WORDS + 1).length > MOST_WORDS);
  return html`${isCut && html`<p class="notice">Only the first ${MOST_WORDS} words are compared.</p>`}
    <div class="text diff" dir="auto" role="group" aria-label=${label}>${parts.map(({ kind, text }) =>
    kind === "same" ? html`<span>${visible(text)}</span>` : kind === "del" ? html`<del>${visible(text)}</del>` : html`<ins>${visible(text)}</ins>`)}</div>`;
}
