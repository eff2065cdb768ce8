// Shared by all views: templates, small components, formatting of numbers and text.
import { h } from "./vendor/preact.js";
import { useEffect, useLayoutEffect, useRef, useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";

// Templates that make untrusted strings safe to show: see `checked` below.
export const html = htm.bind((type, props, ...children) =>
  typeof type === "string" ? h(type, plainProps(props), ...children.map((child) => checked(child, type))) : h(type, props, ...children));

export function fixed(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.0005 || size >= 1e6)) return value.toExponential(1);
  if (Number.isInteger(value)) return String(value);
  return String(Number(value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : digits)));
}

export function percent(value) {
  return value === null || value === undefined ? "–" : `${(100 * value).toFixed(value > 0 && value < 0.1 ? 1 : 0)}%`;
}

export function ago(time) {
  if (!time) return "";
  const seconds = Math.max(0, Date.now() / 1000 - time);
  return seconds < 5 ? "just now" : `${duration(seconds)} ago`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  if (seconds < 86400) return `${(seconds / 3600).toFixed(1)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export function count(number, one, many = `${one}s`) {
  return `${number} ${number === 1 ? one : many}`;
}

export function address(...parts) {
  return "#/" + parts.map((part) => encodeURIComponent(part)).join("/");
}

export function go(...parts) {
  location.hash = address(...parts).slice(1);
}

// ---- untrusted text ----

const HIDDEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;
const SHOWN_AT_ONCE = 20000, LONGEST_NAME = 2000;

// Characters that would change how the rest of a text is displayed are shown as their codes.
export function visible(text) {
  const parts = [];
  let from = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > from) parts.push(text.slice(from, match.index));
    parts.push(html`<span class="control" title="invisible character">U+${codeOf(match[0])}</span>`);
    from = match.index + match[0].length;
    if (parts.length > 4000) break;
  }
  parts.push(text.slice(from));
  return parts;
}

// A string in a template: short, and without characters that change how others look.
function checked(child, type) {
  if (typeof child !== "string") return child;
  const short = child.length > LONGEST_NAME ? child.slice(0, LONGEST_NAME) + "…" : child;
  if (short.search(HIDDEN) < 0) return short;
  return type === "option" ? plain(short) : visible(short);
}

export function plain(text) {
  return text.replace(HIDDEN, (character) => `U+${codeOf(character)}`);
}

function codeOf(character) {
  return character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
}

function plainProps(props) {
  for (const name of ["title", "aria-label"]) if (typeof props?.[name] === "string") props[name] = plain(props[name].slice(0, LONGEST_NAME));
  return props;
}

export function Text({ text, label, limit = SHOWN_AT_ONCE }) {
  const [all, setAll] = useState(false);
  const whole = String(text ?? "");
  const shown = all || whole.length <= limit ? whole : whole.slice(0, limit);
  return html`<div class="text" dir="auto" aria-label=${label} role=${label ? "group" : undefined}>
    <bdi>${visible(shown)}</bdi>
    ${shown.length < whole.length && html`<button class="more" onClick=${() => setAll(true)}>
      Show all ${whole.length.toLocaleString("en")} characters</button>`}
  </div>`;
}

// ---- components ----

const VERDICTS = [
  [/hack/i, "bad", "!"],
  [/diverg|fail|collapse/i, "bad", "!"],
  [/stall|flat|stuck|no signal|interrupt/i, "warn", "="],
  [/learn/i, "good", "↗"],
  [/finish/i, "done", "✓"],
];

export function verdictKind(words) {
  for (const [pattern, kind, sign] of VERDICTS) if (pattern.test(words || "")) return { kind, sign };
  return { kind: "plain", sign: "·" };
}

export function Verdict({ run, long }) {
  const verdict = run.verdict || {};
  const said = verdict.verdict || (run.status === "unknown" ? "no verdict yet" : run.status);
  const words = said.charAt(0).toUpperCase() + said.slice(1);
  const { kind, sign } = verdictKind(words);
  return html`<div class="verdict ${kind}">
    <p class="words"><span class="sign" aria-hidden="true">${sign}</span> ${words}</p>
    ${verdict.evidence && html`<p class="evidence">${verdict.evidence}</p>`}
    ${long && (verdict.since !== null && verdict.since !== undefined || verdict.advice) && html`<dl>
      ${verdict.since !== null && verdict.since !== undefined && html`<div><dt>Since</dt><dd>step ${verdict.since}</dd></div>`}
      ${verdict.advice && html`<div><dt>Do next</dt><dd>${verdict.advice}</dd></div>`}
    </dl>`}
  </div>`;
}

export function Spark({ values, label, width = 220, height = 44 }) {
  if (!values || values.length < 2) return null;
  const low = Math.min(...values, 0), high = Math.max(...values, low + 1e-9);
  const points = values.map((value, i) => [
    (2 + (i * (width - 8)) / (values.length - 1)).toFixed(1),
    (height - 4 - ((value - low) / (high - low)) * (height - 8)).toFixed(1),
  ]);
  const [endX, endY] = points[points.length - 1];
  const line = points.map((p) => p.join(",")).join(" ");
  return html`<svg class="spark" viewBox="0 0 ${width} ${height}" role="img" aria-label=${label}>
    <polygon points="2,${height - 4} ${line} ${endX},${height - 4}" />
    <polyline points=${line} />
    <circle cx=${endX} cy=${endY} r="3" />
  </svg>`;
}

export function RewardChip({ row, range }) {
  if (row.error) return html`<span class="chip error" title=${row.error}>error</span>`;
  if (row.reward === null || row.reward === undefined) return html`<span class="chip error">no reward</span>`;
  return html`<span class="chip reward" style=${{ "--v": share(row.reward, range) }}>${fixed(row.reward)}</span>`;
}

export function share(value, range) {
  const [low, high] = range || [0, 1];
  return high > low ? Math.max(0, Math.min(1, (value - low) / (high - low))) : value > 0 ? 1 : 0;
}

export function rewardRange(rows) {
  let low = 0, high = 1;
  for (const row of rows) if (typeof row.reward === "number") { low = Math.min(low, row.reward); high = Math.max(high, row.reward); }
  return [low, high];
}

export function CopyButton({ text, children, label }) {
  const [done, setDone] = useState("");
  const copy = async () => {
    const value = typeof text === "function" ? text() : text;
    setDone((await putOnClipboard(value)) ? "Copied" : "Not allowed");
    setTimeout(() => setDone(""), 1500);
  };
  return html`<button onClick=${copy} aria-label=${label}><span aria-live="polite">${done || children}</span></button>`;
}

async function putOnClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

export function Problem({ error }) {
  return html`<div class="problem" role="alert"><strong>This could not be shown.</strong> ${String(error.message || error)}</div>`;
}

export function Loading({ what = "Loading" }) {
  return html`<p class="loading" role="status">${what}…</p>`;
}

export function Empty({ children }) {
  return html`<div class="empty">${children}</div>`;
}

// A heading that takes the focus when another view opens, so that a screen reader reads it first.
// The first view leaves the focus where the browser put it.
let isFirstView = true;

export function Title({ children, sub }) {
  const element = useRef(null);
  useEffect(() => {
    if (!isFirstView) element.current?.focus({ preventScroll: true });
    isFirstView = false;
  }, []);
  return html`<div class="title"><h1 tabindex="-1" ref=${element}>${children}</h1>${sub && html`<div class="sub">${sub}</div>`}</div>`;
}

// Load data for a view; the previous data stays visible until the new data arrives.
export function useLoaded(load, keys) {
  const [state, setState] = useState({ value: null, error: null, busy: true });
  useEffect(() => {
    let current = true;
    setState((old) => ({ ...old, busy: true }));
    load().then(
      (value) => current && setState({ value, error: null, busy: false }),
      (error) => current && setState({ value: null, error, busy: false }),
    );
    return () => { current = false; };
  }, keys);
  return state;
}

export function useKeys(actions) {
  const latest = useRef(actions);
  latest.current = actions;
  useLayoutEffect(() => {
    const listen = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
      const action = latest.current[event.key];
      if (action) { event.preventDefault(); action(); }
    };
    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, []);
}
