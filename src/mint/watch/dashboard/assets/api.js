// The source of data: the server of this page, or the bundle that the page is in.
import { useEffect, useReducer, useRef, useState } from "./vendor/hooks.js";
import { Bundle } from "./bundle.js";

export const LIVE_MS = 1500;
const carried = document.getElementById("bundle");
let bundle = null;

export class NeedsKey extends Error {}

// A key in the address (#key=…) is kept for this tab and taken out of the address.
const given = /^#key=(.+)$/.exec(location.hash);
if (given) {
  sessionStorage.setItem("mint-key", decodeURIComponent(given[1]));
  history.replaceState(null, "", location.pathname + location.search);
}

export function setKey(key) {
  sessionStorage.setItem("mint-key", key);
}

function keyHeaders() {
  const key = isBundle() ? null : sessionStorage.getItem("mint-key");
  return key ? { "X-API-Key": key } : {};
}

export function isBundle() {
  return carried !== null;
}

function query(parameters) {
  const kept = Object.entries(parameters || {}).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return kept.length ? "?" + new URLSearchParams(kept) : "";
}

export async function get(path, parameters) {
  if (carried) {
    bundle = bundle || Bundle.read(carried.textContent);
    return (await bundle).answer(path, parameters || {});
  }
  const answer = await request("api/" + path + query(parameters));
  return answer.json();
}

export async function request(address, options = {}) {
  let answer;
  try {
    answer = await fetch(address, { ...options, headers: { ...options.headers, ...keyHeaders() } });
  } catch {
    throw new Error("The server is not responding. Is mint watch still running?");
  }
  if (answer.ok) return answer;
  let detail = answer.statusText;
  try {
    const body = await answer.json();
    detail = body.detail || body.error?.message || detail;
  } catch { /* not JSON: the status text has to do */ }
  throw answer.status === 401 ? new NeedsKey(detail) : new Error(detail);
}

export async function save(path, parameters, name) {
  const answer = await request("api/" + path + query(parameters));
  offer(await answer.blob(), name);
}

export function offer(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// ---- live data ----

// Call a function now and then repeatedly while the page is visible and the view is open.
export function useRepeated(work, keys, every = LIVE_MS) {
  useEffect(() => {
    let over = false, timer = 0;
    const round = async () => {
      if (!document.hidden || isBundle()) await work(() => over);
      if (!over && !isBundle()) timer = setTimeout(round, every);
    };
    round();
    return () => { over = true; clearTimeout(timer); };
  }, keys);
}

export function useRuns() {
  const [state, setState] = useState({ runs: null, error: null });
  useRepeated(async (isOver) => {
    try {
      const answer = await get("runs");
      if (!isOver()) setState({ ...answer, error: null });
    } catch (error) {
      if (!isOver()) setState((old) => ({ ...old, error }));
    }
  }, []);
  return state;
}

// A run's metrics and events, kept up to date by increments.
export class LiveRun {
  constructor(id) {
    this.id = id;
    this.steps = [];
    this.columns = {};
    this.bucket = 1;
    this.events = [];
    this.cursors = { metrics: "", events: "" };
    this.info = null;
    this.loaded = false;
  }

  async refresh() {
    const [metrics, events, info] = await Promise.all([
      get(`runs/${this.id}/metrics`, { cursor: this.cursors.metrics }),
      get(`runs/${this.id}/events`, { cursor: this.cursors.events }),
      get(`runs/${this.id}`),
    ]);
    const fresh = metrics.steps.length > 0 || metrics.reset || events.events.length > 0;
    const changed = fresh || !this.info || this.info.updated !== info.updated || this.info.status !== info.status;
    this.take(metrics);
    this.events = events.reset ? events.events : [...this.events, ...events.events];
    this.cursors = { metrics: metrics.cursor, events: events.cursor };
    this.info = info;
    this.loaded = true;
    return changed;
  }

  take(metrics) {
    if (metrics.reset || this.steps.length === 0) {
      this.steps = metrics.steps;
      this.columns = metrics.columns;
      this.bucket = metrics.bucket;
      return;
    }
    const before = this.steps.length;
    this.steps = [...this.steps, ...metrics.steps];
    const columns = {};
    for (const name of new Set([...Object.keys(this.columns), ...Object.keys(metrics.columns)])) {
      const old = this.columns[name] || new Array(before).fill(null);
      columns[name] = [...old, ...(metrics.columns[name] || new Array(metrics.steps.length).fill(null))];
    }
    this.columns = columns;
  }

  async range(from, to) {
    return get(`runs/${this.id}/metrics`, { from, to });
  }
}

const kept = new Map();

export function useLiveRun(id) {
  const [, redraw] = useReducer((n) => n + 1, 0);
  const [error, setError] = useState(null);
  const run = useRef(null);
  if (run.current?.id !== id) {
    run.current = kept.get(id) || new LiveRun(id);
    kept.delete(id);
    kept.set(id, run.current);
    if (kept.size > 6) kept.delete(kept.keys().next().value);
  }
  useRepeated(async (isOver) => {
    try {
      const changed = await run.current.refresh();
      if (!isOver()) { setError(null); if (changed) redraw(); }
    } catch (problem) {
      if (!isOver()) setError(problem);
    }
  }, [id]);
  return { run: run.current, error };
}
