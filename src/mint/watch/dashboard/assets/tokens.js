// The tokens of a sample, each coloured by a value. Tokens that were not sampled have no colour
// and do not affect the scale.
import { fixed, html, visible } from "./parts.js";
import { useMemo, useState } from "./vendor/hooks.js";

const AT_ONCE = 2000;

export const MODES = {
  logprob: { name: "logprob", help: "logprob in the sampler: pale is likely, strong is unlikely", value: (s, i) => s.sampler?.[i], scale: "low" },
  gap: { name: "trainer − sampler", help: "difference of the two logprobs, which should be near 0", value: (s, i) => minus(s.trainer?.[i], s.sampler?.[i]), scale: "both" },
  advantage: { name: "advantage", help: "blue becomes more likely, orange less likely", value: (s, i) => s.advantages?.[i], scale: "both" },
  entropy: { name: "entropy", help: "how uncertain the choice was: strong is uncertain", value: (s, i) => s.entropy?.[i], scale: "high" },
};

function minus(a, b) {
  return a === null || a === undefined || b === null || b === undefined ? null : a - b;
}

// The values of a mode, null where a token was not sampled.
export function valuesOf(segment, mode) {
  return segment.tokens.map((_, i) => (segment.mask?.[i] ? MODES[mode].value(segment, i) ?? null : null));
}

export function scaleOf(lists) {
  let low = Infinity, high = -Infinity;
  for (const list of lists) for (const value of list) if (value !== null) { low = Math.min(low, value); high = Math.max(high, value); }
  return low <= high ? [low, high] : null;
}

export function Tokens({ segments }) {
  const usable = Object.keys(MODES).filter((mode) => segments.some((s) => valuesOf(s, mode).some((value) => value !== null)));
  const [wanted, setMode] = useState("logprob");
  const mode = usable.includes(wanted) ? wanted : usable[0];
  const [picked, setPicked] = useState(null);
  const lists = useMemo(() => segments.map((s) => (mode ? valuesOf(s, mode) : s.tokens.map(() => null))), [segments, mode]);
  const scale = scaleOf(lists);
  if (!segments.length) return html`<p class="hint">This run did not record the tokens of its samples; newer versions of mint do.</p>`;
  return html`<section class="tokens" aria-labelledby="tokens-title">
    <h2 id="tokens-title">Tokens</h2>
    <div class="toolbar" role="radiogroup" aria-label="Colour tokens by">
      ${usable.map((name) => html`<label key=${name}><input type="radio" name="token-mode" value=${name} checked=${mode === name} onChange=${() => setMode(name)} /> ${MODES[name].name}</label>`)}
    </div>
    ${mode && html`<p class="hint">${MODES[mode].help}. Tokens that were not sampled are dimmed.${missing(usable)}</p>`}
    ${scale && html`<${Scale} mode=${mode} scale=${scale} />`}
    ${segments.map((segment, i) => html`<${SegmentView} key=${i} number=${i} segments=${segments.length} segment=${segment} values=${lists[i]} scale=${scale} mode=${mode} onPick=${setPicked} picked=${picked} />`)}
    <p class="picked" role="status">${picked ? words(segments[picked[0]], picked[1]) : "Point at a token, or move with the arrow keys."}</p>
  </section>`;
}

function missing(usable) {
  if (!usable.includes("gap")) return " This answer was not trained on, so there are no logprobs of the trainer.";
  return usable.includes("entropy") ? "" : " With measure_entropy=true, a run also records the entropy of each token.";
}

function Scale({ mode, scale }) {
  const kind = MODES[mode].scale;
  const most = Math.max(Math.abs(scale[0]), Math.abs(scale[1]));
  const [left, right] = kind === "both" ? [-most, most] : kind === "low" ? [scale[1], scale[0]] : scale;
  return html`<div class="scale ${kind}" role="img" aria-label="Scale from ${fixed(left)} to ${fixed(right)}"><span>${fixed(left)}</span><i></i><span>${fixed(right)}</span></div>`;
}

function strength(value, scale, mode) {
  const kind = MODES[mode].scale;
  if (kind === "both") return value / (Math.max(Math.abs(scale[0]), Math.abs(scale[1])) || 1);
  const share = (value - scale[0]) / (scale[1] - scale[0] || 1);
  return kind === "low" ? 1 - share : share;
}

function SegmentView({ number, segments, segment, values, scale, mode, onPick, picked }) {
  const [shown, setShown] = useState(AT_ONCE);
  const total = segment.tokens.length;
  const first = segment.mask ? Math.max(0, segment.mask.indexOf(true)) : 0;
  const reach = (element) => element && Number(element.dataset.i);
  const pick = (event) => { const i = reach(event.target.closest("[data-i]")); if (i !== undefined && i !== null) onPick([number, i]); };
  const walk = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 }[event.key];
    if (!by) return;
    event.preventDefault();
    const now = picked?.[0] === number ? picked[1] : first - by;
    const to = Math.max(0, Math.min(Math.min(total, shown) - 1, now + by));
    onPick([number, to]);
  };
  return html`<div class="segment">
    ${segments > 1 && html`<h3>Context ${number + 1}</h3>`}
    <div class="pieces" tabindex="0" role="group" aria-label="Tokens${segments > 1 ? ` of context ${number + 1}` : ""}: arrow keys move" onMouseOver=${pick} onClick=${pick} onKeyDown=${walk}>
      ${segment.tokens.slice(0, shown).map((id, i) => {
        const value = values[i];
        const style = value === null || !scale ? {} : strengthStyle(strength(value, scale, mode));
        const isPicked = picked?.[0] === number && picked[1] === i;
        const text = segment.pieces?.[i] ?? `‹${id}›`;
        return html`<span class="token ${segment.mask?.[i] ? "sampled" : "given"} ${value === null ? "" : "coloured"} ${isPicked ? "on" : ""}" data-i=${i} style=${style}>${visible(text.replace(/\n/g, "⏎\n"))}</span>`;
      })}
    </div>
    ${shown < total && html`<button class="more" onClick=${() => setShown(shown + 10 * AT_ONCE)}>Show more of ${total.toLocaleString("en")} tokens</button>`}
  </div>`;
}

function strengthStyle(amount) {
  return { "--token": amount < 0 ? "var(--token-down)" : "var(--token-up)", "--v": Math.min(1, Math.abs(amount)).toFixed(3) };
}

function words(segment, i) {
  if (!segment) return "";
  const piece = JSON.stringify(segment.pieces?.[i] ?? "");
  if (!segment.mask?.[i]) return `${piece} (token ${segment.tokens[i]}): not sampled`;
  const parts = Object.values(MODES).map(({ name, value }) => { const x = value(segment, i); return x === null || x === undefined ? null : `${name} ${fixed(x, 4)}`; });
  return `${piece} (token ${segment.tokens[i]}): ${parts.filter(Boolean).join(", ")}`;
}
