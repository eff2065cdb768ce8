// A curve: uPlot with marks for events, smoothing, log scale, zoom and the keyboard.
import uPlot from "./vendor/uplot.js";
import { useEffect, useRef } from "./vendor/hooks.js";
import { fixed, html } from "./parts.js";

export const COLOURS = ["--series-1", "--series-2", "--series-3", "--series-4", "--series-5", "--series-6", "--series-7", "--series-8"];

const WHOLE = Array.from({ length: 37 }, (_, i) => [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3)); // distances of ticks

export function themed(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// An exponential moving average; 0 leaves the values as they are.
export function smoothed(values, weight) {
  if (!weight) return values;
  let mean = null, scale = 0;
  return values.map((value) => {
    if (value === null || value === undefined) return value;
    mean = weight * (mean ?? 0) + (1 - weight) * value;
    scale = weight * scale + (1 - weight);
    return mean / scale;
  });
}

// Sums from the bottom up, the last series on top; nothing where no series has a value.
export function stacked(lists) {
  const sums = [];
  const isKnown = (value) => value !== null && value !== undefined;
  return lists.map((list) => list.map((value, i) => (lists.some((each) => isKnown(each[i])) ? (sums[i] = (sums[i] || 0) + (value || 0)) : null)));
}

export function describe(title, x, series) {
  const parts = series.map(({ label, values }) => {
    const known = values.map((value, i) => [x[i], value]).filter(([, value]) => value !== null && value !== undefined);
    if (!known.length) return null;
    const [first, last] = [known[0], known[known.length - 1]];
    return `${label}: ${fixed(first[1])} at ${fixed(first[0])}, ${fixed(last[1])} at ${fixed(last[0])}`;
  });
  return `${title}. ${parts.filter(Boolean).join(". ")}.`;
}

// series: [{label, values, colour, points, band: [low, high], raw}]
export function Chart({ title, help, x, series, marks = [], log, smooth = 0, stack, range, onRange, onPick, height = 190, unit = "step" }) {
  const box = useRef(null), plot = useRef(null), latest = useRef({});
  latest.current = { onPick, onRange, marks, range, x };
  const drawn = prepare(x, series, { smooth, stack, log });
  const shape = JSON.stringify([series.map((s) => [s.label, s.colour, s.points, !!s.band]), log, stack, unit]);

  useEffect(() => {
    const options = settings(box.current, latest, series, { log, stack, height, unit });
    plot.current = new uPlot(options, drawn.data, box.current);
    applyRange(plot.current, latest.current.range, x);
    const resize = new ResizeObserver(([entry]) => {
      const width = Math.floor(entry.contentRect.width);
      if (width > 0 && width !== plot.current.width) plot.current.setSize({ width, height });
    });
    resize.observe(box.current);
    const recolour = () => plot.current?.redraw(false, true);
    addEventListener("mint-theme", recolour);
    return () => { resize.disconnect(); removeEventListener("mint-theme", recolour); plot.current.destroy(); plot.current = null; };
  }, [shape]);

  useEffect(() => {
    if (!plot.current) return;
    plot.current.batch(() => {
      plot.current.setData(drawn.data, false);
      applyRange(plot.current, range, x);
    });
    plot.current.redraw(false, true);
  }, [x, series, smooth, range, marks]);

  const move = (event) => keyboard(event, plot.current, latest.current);
  return html`<figure class="chart">
    <figcaption><h3>${title}</h3>${help && html`<span class="help">${help}</span>`}</figcaption>
    <div class="plot" ref=${box} tabindex="0" role="img" aria-label=${describe(title, x, series)}
      aria-description="Arrow keys move along the curve, Enter opens the step" onKeyDown=${move}></div>
    <ul class="legend" aria-label="Legend of ${title}">${series.map((s) => html`<li key=${s.label}>
      <span class="swatch" style=${{ background: `var(${s.colour})` }}></span>${s.label}
      <span class="value">${fixed(lastKnown(s.values))}</span></li>`)}</ul>
  </figure>`;
}

function lastKnown(values) {
  for (let i = values.length - 1; i >= 0; i--) if (values[i] !== null && values[i] !== undefined) return values[i];
  return null;
}

function prepare(x, series, { smooth, stack, log }) {
  let lists = series.map((s) => smoothed(s.values, s.points ? 0 : smooth));
  if (stack) lists = stacked(lists);
  if (log) lists = lists.map((list) => list.map((value) => (value > 0 ? value : null)));
  const data = [x, ...lists];
  for (const s of series) if (s.band) data.push(s.band[0], s.band[1]);
  return { data };
}

function settings(element, latest, series, { log, stack, height, unit }) {
  const axis = { stroke: () => themed("--muted"), grid: { stroke: () => themed("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  const lines = series.map((s, i) => ({
    label: s.label,
    stroke: () => themed(s.colour),
    width: stack ? 1 : 1.75,
    fill: stack ? () => translucent(themed(s.colour), 0.75) : undefined,
    spanGaps: true,
    points: { show: !!s.points, size: 7, fill: () => themed(s.colour) },
  }));
  const bands = [];
  series.forEach((s) => {
    if (!s.band) return;
    const at = 1 + lines.length;
    for (const label of ["low", "high"]) lines.push({ label: `${s.label} ${label}`, stroke: "transparent", width: 0, spanGaps: true, points: { show: false } });
    bands.push({ series: [at + 1, at], fill: () => translucent(themed(s.colour), 0.18) });
  });
  if (stack) {
    // drawn from the top down, each over the one above
    for (let i = 1; i < series.length; i++) bands.push({ series: [i + 1, i], fill: () => translucent(themed(series[i].colour), 0.75) });
    for (let i = 1; i < series.length; i++) lines[i].fill = undefined;
  }
  return {
    width: Math.max(120, Math.floor(element.clientWidth)), height,
    legend: { show: false },
    padding: [8, 18, 0, 0], // on the right, half of the last label
    scales: { x: { time: false }, y: log ? { distr: 3 } : { range: (u, low, high) => niceRange(low, high, stack) } },
    axes: [{ ...axis, size: 26, incrs: unit === "hours" ? undefined : WHOLE, values: (u, ticks) => ticks.map((t) => tick(t, unit)) }, { ...axis, size: 48, values: (u, ticks) => ticks.map((t) => (t === null ? "" : fixed(t))) }],
    series: [{ label: unit }, ...lines],
    bands,
    cursor: { drag: { x: true, y: false, setScale: false }, points: { size: 7 }, y: false },
    hooks: {
      draw: [(u) => drawMarks(u, latest.current.marks)],
      setCursor: [(u) => showValues(u, series)],
      setSelect: [(u) => {
        if (u.select.width < 5) return;
        const from = u.posToVal(u.select.left, "x"), to = u.posToVal(u.select.left + u.select.width, "x");
        u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        latest.current.onRange?.([from, to]);
      }],
      ready: [(u) => {
        let down = 0;
        u.over.addEventListener("mousedown", (event) => { down = event.clientX; });
        u.over.addEventListener("click", (event) => {
          if (Math.abs(event.clientX - down) < 4 && u.cursor.idx !== null && u.cursor.idx !== undefined) latest.current.onPick?.(u.data[0][u.cursor.idx]);
        });
        u.over.addEventListener("dblclick", () => latest.current.onRange?.(null));
      }],
    },
  };
}

function tick(value, unit) {
  if (value === null) return "";
  if (unit === "hours") return `${fixed(value, 2)} h`;
  if (value >= 1e6) return `${fixed(value / 1e6, 1)}M`;
  if (value >= 1e4) return `${fixed(value / 1e3, 1)}k`;
  return fixed(value);
}

function niceRange(low, high, fromZero) {
  if (low === null || high === null || !Number.isFinite(low) || low === 0 && high === 0) return [0, 1];
  const least = fromZero || (low >= 0 && low < 0.5 * high) ? Math.min(0, low) : low;
  const room = (high - least || Math.abs(high) || 1) * 0.08;
  return [least < 0 || least === low && least !== 0 ? least - room : least, high + room];
}

function applyRange(u, range, x) {
  if (!x.length) return;
  let [from, to] = range || [x[0], x[x.length - 1]];
  if (from === to) { from -= 0.5; to += 0.5; }
  u.setScale("x", { min: from, max: to });
}

function translucent(colour, alpha) {
  return colour.startsWith("#") ? colour + Math.round(alpha * 255).toString(16).padStart(2, "0") : colour;
}

const MARKS = { finding: "--bad", stopped: "--bad", interrupted: "--warn", lost: "--warn", resumed: "--warn", failure: "--warn", sink_failed: "--warn", finished: "--done", checkpoint: "--muted" };

function drawMarks(u, marks) {
  const { ctx, bbox } = u;
  ctx.save();
  for (const mark of marks) {
    const colour = MARKS[mark.event];
    if (!colour || mark.x === null || mark.x === undefined) continue;
    const at = u.valToPos(mark.x, "x", true);
    if (at < bbox.left || at > bbox.left + bbox.width) continue;
    const size = 4 * devicePixelRatio;
    ctx.strokeStyle = ctx.fillStyle = themed(colour);
    if (mark.event !== "checkpoint") {
      ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.beginPath();
    ctx.moveTo(at, bbox.top + bbox.height - size);
    ctx.lineTo(at - size, bbox.top + bbox.height + size / 2);
    ctx.lineTo(at + size, bbox.top + bbox.height + size / 2);
    ctx.fill();
  }
  ctx.restore();
}

function showValues(u, series) {
  const list = u.root.closest("figure")?.querySelectorAll(".legend .value");
  const i = u.cursor.idx;
  if (!list) return;
  series.forEach((s, k) => {
    const value = i === null || i === undefined ? lastKnown(s.values) : s.values[i];
    if (list[k]) list[k].textContent = fixed(value);
  });
  const caption = u.root.closest("figure").querySelector("figcaption");
  caption.dataset.at = i === null || i === undefined ? "" : `at ${fixed(u.data[0][i])}`;
}

function keyboard(event, u, { onPick, onRange, x }) {
  if (!u || !x.length) return;
  const last = x.length - 1;
  const now = u.cursor.idx ?? (event.key === "ArrowLeft" ? last + 1 : -1);
  const to = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: last, PageUp: now - 10, PageDown: now + 10 }[event.key];
  if (to !== undefined) {
    event.preventDefault();
    const i = Math.max(0, Math.min(last, to));
    u.setCursor({ left: u.valToPos(x[i], "x"), top: 10 });
  } else if (event.key === "Enter" && u.cursor.idx !== null && u.cursor.idx !== undefined) {
    event.preventDefault();
    onPick?.(x[u.cursor.idx]);
  } else if (event.key === "Escape") onRange?.(null);
}
