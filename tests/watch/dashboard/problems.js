// What is wrong with a page for those who use a screen reader, a keyboard, or see little contrast.
() => {
  const problems = [];
  const shown = (e) => e.checkVisibility({ visibilityProperty: true }) && !e.closest("[aria-hidden=true]");
  const words = (e) => (e.textContent || "").replace(/\s+/g, " ").trim();
  const tell = (rule, e) => problems.push(`${rule}: ${e.outerHTML.slice(0, 160)}`);
  const name = (e) => e.getAttribute("aria-label") || words(e) || e.getAttribute("title")
    || (e.labels && [...e.labels].map(words).join("")) || e.getAttribute("placeholder");

  if (!document.documentElement.lang) problems.push("the page has no language");
  if (!document.title) problems.push("the page has no title");
  for (const part of ["main", "header", "nav"]) if (!document.querySelector(part)) problems.push(`no ${part}`);
  const headings = [...document.querySelectorAll("h1, h2, h3")].filter(shown);
  if (headings.filter((h) => h.tagName === "H1").length !== 1) problems.push("not one h1");
  let level = 0;
  for (const h of headings) {
    const now = Number(h.tagName[1]);
    if (now > level + 1 && level > 0 && !(level === 1 && now === 3 && h.closest("figure"))) tell("a level of headings is left out", h);
    level = now;
  }
  for (const e of document.querySelectorAll("a[href], button, input, select, textarea, [role=img], svg, canvas + *")) {
    if (!shown(e) || e.closest(".uplot")) continue;
    if (e.tagName !== "svg" && !name(e) || e.tagName === "svg" && !e.getAttribute("aria-label")) tell("no name", e);
  }
  for (const e of document.querySelectorAll("[tabindex]")) if (Number(e.tabIndex) > 0) tell("an order of its own", e);
  for (const e of document.querySelectorAll("table")) if (shown(e) && !e.querySelector("th[scope]")) tell("a table without headers", e);
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) problems.push(`two elements are ${id}`);
  for (const e of document.querySelectorAll("[aria-labelledby]")) if (!document.getElementById(e.getAttribute("aria-labelledby"))) tell("named by nothing", e);

  // contrast of every text with what is behind it
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const known = new Map();
  const rgba = (colour) => {
    if (!known.has(colour)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
      known.set(colour, [...canvas.getImageData(0, 0, 1, 1).data]);
    }
    const [r, g, b, a] = known.get(colour);
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], below) => [r, g, b].map((x, i) => x * a + below[i] * (1 - a));
  const behind = (e) => {
    const layers = [];
    for (let at = e; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const light = (c) => {
    const [r, g, b] = c.map((x) => (x / 255 <= 0.04045 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const seen = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const e = node.parentElement;
    if (!node.textContent.trim() || seen.has(e) || !shown(e) || e.closest(".visually-hidden, :disabled, noscript, script, style, option, .skip, .dim")) continue;
    seen.add(e);
    const style = getComputedStyle(e);
    let opacity = 1;
    for (let at = e; at; at = at.parentElement) opacity *= Number(getComputedStyle(at).opacity);
    const below = behind(e);
    const [r, g, b, a] = rgba(style.color);
    const text = over([r, g, b, a * opacity], below);
    const [high, low] = [light(text), light(below)].sort((x, y) => y - x);
    const size = parseFloat(style.fontSize), large = size >= 24 || size >= 18.6 && Number(style.fontWeight) >= 700;
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < (large ? 3 : 4.5)) tell(`contrast ${ratio.toFixed(2)}`, e);
  }
  if (document.documentElement.scrollWidth > innerWidth) {
    const wide = [...document.querySelectorAll("main *")].find((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll, .answers, .tabs, .plot"));
    problems.push(`wider than the screen: ${document.documentElement.scrollWidth} ${wide ? wide.outerHTML.slice(0, 120) : ""}`);
  }
  return problems;
}
