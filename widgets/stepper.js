// The online softmax of one query against its keys, tile by tile.
//
// First the arithmetic: pure functions, exported, compared with kernels.reference in tests/site. Then what is said
// about a step, also pure. Then the picture, which only shows what they return.

// ---------------------------------------------------------------------------------------------------- arithmetic

/** The state of a query that has seen no key. */
export const emptyState = (width) => ({ m: -Infinity, l: 0, o: Array(width).fill(0) });

/**
 * Take in one tile.  state: {m, l, o}; s: the tile's scores, -Infinity where masked; v: one array of numbers a key.
 * With the guard, 0 is subtracted in place of a maximum of -Infinity; without it, -Infinity - (-Infinity) is NaN.
 * Returns the new {m, l, o} and the parts they were made of: {shift, correction, weight, pull}.
 */
export function step(state, s, v, guard = true) {
  const m = Math.max(state.m, ...s);
  const shift = guard && m === -Infinity ? 0 : m;
  const correction = Math.exp(state.m - shift);
  const p = s.map((score) => Math.exp(score - shift));
  const weight = p.reduce((sum, x) => sum + x, 0);
  const pull = state.o.map((_, c) => p.reduce((sum, x, j) => sum + x * v[j][c], 0));
  return {
    m,
    l: correction * state.l + weight,
    o: state.o.map((x, c) => correction * x + pull[c]),
    shift, correction, weight, pull,
  };
}

/** o / l, and zeros for a query that has seen no key. */
export const output = ({ m, l, o }) => (m === -Infinity && l === 0 ? o.map(() => 0) : o.map((x) => x / l));

/** The answer the naive way: all scores at once, two passes. */
export function exact(scores, values) {
  const m = Math.max(...scores);
  if (m === -Infinity) return values[0].map(() => 0);
  const p = scores.map((s) => Math.exp(s - m));
  const l = p.reduce((sum, x) => sum + x, 0);
  return values[0].map((_, c) => p.reduce((sum, x, j) => sum + x * values[j][c], 0) / l);
}

/** Largest absolute difference; NaN if any number is NaN. */
export const distance = (a, b) => a.reduce((worst, x, i) => {
  const d = Math.abs(x - b[i]);
  return Number.isNaN(d) || Number.isNaN(worst) ? NaN : Math.max(worst, d);
}, 0);

/** One row a tile: {start, stop, m, correction, l, o, output, error} and the parts that `step` gives. */
export function trace(scores, values, tile, guard = true) {
  const truth = exact(scores, values);
  const rows = [];
  let state = emptyState(values[0].length);
  for (let start = 0; start < scores.length; start += tile) {
    const stop = Math.min(start + tile, scores.length);
    state = step(state, scores.slice(start, stop), values.slice(start, stop), guard);
    const out = output(state);
    rows.push({ start, stop, ...state, output: out, error: distance(out, truth) });
  }
  return rows;
}

/** How often something that was kept had to be multiplied by a correction other than 1. */
export const rescalings = (rows) =>
  rows.filter((row, k) => k > 0 && rows[k - 1].m > -Infinity && row.correction !== 1).length;

/** What a reader typed as a score: a number, -Infinity for a masked key, or undefined if it is neither. */
export function parseScore(text) {
  const plain = text.trim().replace("−", "-").replace("∞", "inf").replace(",", ".").toLowerCase();
  if (["", "-inf", "-infinity", "masked"].includes(plain)) return -Infinity;
  const value = Number(plain);
  return Number.isFinite(value) ? value : undefined;
}

// JSON has no NaN and no infinities; Python's float() reads these words.
const WORDS = { nan: NaN, inf: Infinity, "-inf": -Infinity };
export const encode = (x) => (Array.isArray(x) ? x.map(encode)
  : Number.isNaN(x) ? "nan" : x === Infinity ? "inf" : x === -Infinity ? "-inf" : x);
export const decode = (x) => (Array.isArray(x) ? x.map(decode) : typeof x === "string" ? WORDS[x] : x);

// --------------------------------------------------------------------------------------------------------- words

/** A number for a reader: fixed places so that columns line up, a true minus, and words for what is no number. */
export function shown(x, places = 4) {
  if (Number.isNaN(x)) return "⚠ NaN";
  if (x === Infinity) return "∞";
  if (x === -Infinity) return "−∞";
  if (Number.isInteger(x)) return String(x).replace("-", "−");
  const text = x !== 0 && Math.abs(x) < 0.5 * 10 ** -places ? x.toExponential(0) : x.toFixed(places);
  return text.replace("-", "−");
}

/** An error: 0, or two digits and a power of ten once it is small. */
export const shownError = (x) => (x > 0 && x < 1e-3 ? x.toExponential(1).replace("-", "−") : shown(x));

const scoreText = (x) => (Number.isFinite(x) ? String(x).replace("-", "−") : shown(x));
const keysText = ({ start, stop }) => (stop - start === 1 ? `key ${stop}` : `keys ${start + 1}–${stop}`);

/** One or two sentences on the step that led to `position`. */
export function story(rows, position, guarded) {
  if (position === 0) return "Nothing is loaded: m = −∞, l = 0, o = 0. Step to bring the first tile in.";
  const row = rows[position - 1];
  const before = position > 1 ? rows[position - 2] : { m: -Infinity, l: 0 };
  const name = `Tile ${position} (${keysText(row)})`;
  if (Number.isNaN(row.l)) {
    return Number.isNaN(before.l)
      ? `⚠ ${name} is harmless by itself, but NaN times anything is NaN: l and o stay NaN to the end. `
        + `With the guard, l would be ${shown(guarded[position - 1].l)} here.`
      : `⚠ ${name} is masked throughout and the guard is off: m = −∞, and −∞ − (−∞) is NaN. `
        + "It goes into the correction, into l and into every component of o.";
  }
  let what;
  if (row.m === -Infinity) what = `${name} is masked throughout: the guard subtracts 0, every e^(−∞) is 0, and nothing changes.`;
  else if (before.m === -Infinity) what = `${name} brings the first score: its largest, ${scoreText(row.m)}, becomes m. There is nothing to correct yet.`;
  else if (row.correction === 1) what = `${name} holds nothing larger than m = ${scoreText(row.m)}: the correction is 1, so its terms are simply added.`;
  else if (row.correction === 0) what = `${name} lifts m from ${scoreText(before.m)} to ${scoreText(row.m)}: the correction underflows to 0, and what came before no longer counts.`;
  else what = `${name} lifts m from ${scoreText(before.m)} to ${scoreText(row.m)}: everything kept so far is multiplied by ${shown(row.correction)}.`;
  const error = row.error === 0 ? "exactly" : `to within ${shownError(row.error)}`;
  return position === rows.length
    ? `${what} All keys are seen: o / l meets the exact answer ${error}.`
    : `${what} o / l is right for the ${row.stop} keys seen, and off by up to ${shownError(row.error)} for all of them.`;
}

/** The current step as four lines, [term, formula, numbers]; formulas hold [[term|text]] and ^(exponent). */
export function lines(rows, position, guard) {
  const formulas = [
    ["m", "[[m|m′]] = max([[m|m]], max [[s|s]])"],
    ["alpha", "[[alpha|α]] = e^([[m|m]] − [[m|m′]])"],
    ["l", "[[l|l′]] = [[alpha|α]] [[l|l]] + Σ e^([[s|s]] − [[m|m′]])"],
    ["o", "[[o|o′]] = [[alpha|α]] [[o|o]] + Σ e^([[s|s]] − [[m|m′]]) [[v|v]]"],
  ];
  if (position === 0) {
    const start = ["−∞, before any key", "no step yet", "0, before any key", "0, before any key"];
    return formulas.map(([term, formula], i) => [term, formula, start[i]]);
  }
  const row = rows[position - 1];
  const old = position > 1 ? rows[position - 2] : { m: -Infinity, l: 0, o: row.o.map(() => 0) };
  const largest = row.m > old.m || position === 1 ? scoreText(row.m) : "smaller";
  const shift = guard && row.m === -Infinity ? "0" : row.m < 0 ? `(${scoreText(row.m)})` : scoreText(row.m);
  const signed = (x) => (x < 0 ? `(${shown(x)})` : shown(x));
  return [
    [...formulas[0], `max(${scoreText(old.m)}, ${largest}) = ${scoreText(row.m)}`],
    [...formulas[1], `e^(${scoreText(old.m)} − ${shift}) = ${shown(row.correction)}`],
    [...formulas[2], `${shown(row.correction)} × ${shown(old.l)} + ${shown(row.weight)} = ${shown(row.l)}`],
    [...formulas[3], `${shown(row.correction)} × ${signed(old.o[0])} + ${signed(row.pull[0])} = ${shown(row.o[0])}`],
  ];
}

// ------------------------------------------------------------------------------------------------------- picture

/** A DOM element: h("p", {class: "x", onclick: f, "aria-live": "polite"}, "text", child). */
function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat());
  return element;
}

/** "[[m|m′]] = e^(x)" as nodes: terms that light up, exponents raised. */
function formula(text) {
  return text.split(/(\[\[.*?\]\]|\^\((?:[^()]|\([^()]*\))*\))/).filter(Boolean).map((part) => {
    if (part.startsWith("[[")) {
      const [term, name] = part.slice(2, -2).split("|");
      return h("span", { class: "ft-var", "data-term": term }, name);
    }
    return part.startsWith("^(") ? h("sup", {}, formula(part.slice(2, -1))) : part;
  });
}

const TERMS = [
  ["s", "s", "a score, q·k"],
  ["m", "m", "running maximum"],
  ["alpha", "α", "correction"],
  ["l", "l", "running sum"],
  ["o", "o / l", "accumulator"],
  ["exact", "▲", "exact answer"],
];

const TRY = [
  [["Tile 1", { tile: 1 }], " and ", ["tile 16", { tile: 16 }],
    ": run both. The rows differ, the last m and l do not. The tile decides how much is held at once, never the answer."],
  [["Rising", { preset: "rising" }], ", then ", ["falling", { preset: "falling" }],
    ": the same 16 scores in opposite order. Compare the rescalings: one for every tile, against none."],
  [["First tile masked, guard off", { preset: "masked", guard: false, tile: 4, position: 1 }],
    ": step on and see how far the NaN gets. Then ", ["tile 8", { preset: "masked", guard: false, tile: 8, position: 1 }],
    ": why is it gone?"],
];

let instances = 0;

function render({ model, el }) {
  const uid = `ft-stepper-${++instances}`;
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const width = model.get("values")[0].length;
  const count = model.get("scores").length;
  let timer = null;
  let busy = false;
  let drag = null; // {column, low, high}: the scale stands still while a bar is dragged
  let pinned = null; // the term that a click keeps lit

  const view = () => {
    const scores = decode(model.get("scores"));
    const values = decode(model.get("values"));
    const tile = model.get("tile");
    const guard = model.get("guard");
    const rows = trace(scores, values, tile, guard);
    return {
      scores, values, tile, guard, rows,
      position: Math.min(model.get("position"), rows.length),
      guarded: guard ? rows : trace(scores, values, tile, true),
    };
  };

  // Several traits can change at once: show and send the result, not the steps.
  function change(values) {
    busy = true;
    for (const [name, value] of Object.entries(values)) model.set(name, value);
    busy = false;
    draw();
    report();
    model.save_changes();
  }

  function changed() {
    if (busy) return;
    draw();
    if (report()) model.save_changes();
  }

  /** Keep `trace`: the rows of the tiles that are done. Says whether it was news. */
  function report() {
    const { rows, position } = view();
    const done = rows.slice(0, position).map(({ start, stop, m, correction, l, o, output: out, error }) => ({
      start, stop, m: encode(m), correction: encode(correction), l: encode(l),
      o: encode(o), output: encode(out), error: encode(error),
    }));
    const news = JSON.stringify(done) !== JSON.stringify(model.get("trace"));
    if (news) model.set("trace", done);
    return news;
  }

  function go(position) {
    change({ position: Math.max(0, Math.min(position, view().rows.length)) });
  }

  function setTile(tile) {
    // Stay where the reader was: at the end, or at the first tile that covers the keys already seen.
    const { rows, position } = view();
    const seen = position ? rows[position - 1].stop : 0;
    change({ tile, position: Math.ceil(seen / tile) });
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    draw();
  }

  function run() {
    const { rows, position } = view();
    if (timer) return stop();
    if (still.matches) return go(rows.length);
    if (position === rows.length) go(0);
    timer = setInterval(() => {
      const now = view();
      if (now.position >= now.rows.length - 1) stop();
      go(now.position + 1);
    }, 900);
    draw();
  }

  function act(callback) {
    return () => { if (timer) stop(); callback(); };
  }

  // -- controls
  const preset = h("select", { id: `${uid}-preset`, onchange: act(() => {
    change({ preset: preset.value, scores: model.get("presets")[preset.value].scores });
  }) }, Object.entries(model.get("presets")).map(([name, { label }]) => h("option", { value: name }, label)),
  h("option", { value: "custom", hidden: true }, "your own"));
  const tile = h("input", { id: `${uid}-tile`, type: "range", min: 1, max: count, step: 1,
    oninput: act(() => setTile(Number(tile.value))) });
  const tileShown = h("output", { for: `${uid}-tile` });
  const guard = h("input", { id: `${uid}-guard`, type: "checkbox", onchange: act(() => change({ guard: guard.checked })) });
  const button = (label, name, callback, extra = {}) => h("button", { type: "button", class: `ft-${name}`, onclick: callback, ...extra }, label);
  const back = button("Back", "back", act(() => go(view().position - 1)));
  const next = button("Step", "step", act(() => go(view().position + 1)));
  const play = button("Run", "run", run);
  const reset = button("Reset", "reset", act(() => go(0)));
  const controls = h("div", { class: "ft-controls" },
    h("div", { class: "ft-field" }, h("label", { for: `${uid}-preset` }, "Scores"), preset),
    h("div", { class: "ft-field ft-grow" }, h("label", { for: `${uid}-tile` }, "Tile: ", tileShown), tile),
    h("label", { class: "ft-check" }, guard, "guard"),
    h("div", { class: "ft-buttons" }, back, next, play, reset));

  // -- picture: the scores
  const keys = Array.from({ length: count }, (_, j) => {
    const parts = {
      name: h("span", { class: "ft-tile-name" }),
      bar: h("i", { class: "ft-bar", "data-term": "s" }),
      zero: h("i", { class: "ft-zero" }),
      gap: h("i", { class: "ft-gap", "data-term": "alpha" }),
      old: h("i", { class: "ft-m ft-m-old", "data-term": "m" }),
      m: h("i", { class: "ft-m", "data-term": "m" }),
      masked: h("i", { class: "ft-masked" }, "masked"),
      tag: h("span", { class: "ft-tag ft-tag-alpha", "data-term": "alpha" }),
      mTag: h("span", { class: "ft-tag ft-tag-m", "data-term": "m" }),
      input: h("input", { class: "ft-score", type: "text", autocomplete: "off", spellcheck: "false",
        onchange: () => edit(j), onkeydown: (event) => nudge(event, j), onfocus: () => parts.input.select() }),
    };
    parts.plot = h("div", { class: "ft-plot", "aria-hidden": "true",
      onpointerdown: (event) => grab(event, j), onpointermove: pull, onpointerup: release, onpointercancel: release },
    parts.zero, parts.bar, parts.gap, parts.old, parts.m, parts.masked, parts.tag, parts.mTag);
    parts.cell = h("div", { class: "ft-key" }, parts.name, parts.plot, parts.input);
    return parts;
  });
  const scores = h("div", {
    class: "ft-scores", tabindex: 0, role: "group",
    "aria-label": `${count} scores of one query. Space or right arrow steps, left arrow goes back, Home resets, End finishes.`,
  }, keys.map((key) => key.cell));
  const states = h("p", { class: "ft-states" },
    h("span", {}, h("i", { class: "ft-swatch", "data-state": "absent" }), "not loaded"),
    h("span", {}, h("i", { class: "ft-swatch", "data-state": "current" }), "on chip now"),
    h("span", {}, h("i", { class: "ft-swatch", "data-state": "discarded" }), "used and discarded"),
    h("span", { class: "ft-hint" }, "Type a score or drag its bar; leave it empty to mask the key."));

  // -- picture: the accumulator
  const bars = Array.from({ length: width }, (_, c) => {
    const parts = {
      bar: h("i", { class: "ft-out", "data-term": "o" }),
      tick: h("i", { class: "ft-exact", "data-term": "exact" }),
      now: h("td", { "data-term": "o" }),
      sign: h("td", { class: "ft-sign" }),
      truth: h("td", { class: "ft-truth", "data-term": "exact" }),
    };
    parts.row = h("tr", {}, h("th", { scope: "row" }, h("span", { class: "ft-var", "data-term": "o" }, "o"), h("sub", {}, String(c + 1)), " / ", h("span", { class: "ft-var", "data-term": "l" }, "l")),
      h("td", { class: "ft-track-cell", "aria-hidden": "true" }, h("div", { class: "ft-track" }, h("i", { class: "ft-middle" }), parts.bar, parts.tick)),
      parts.now, parts.sign, parts.truth);
    return parts;
  });
  const accumulator = h("table", { class: "ft-acc" },
    h("caption", {}, "o / l against the exact answer"),
    h("thead", {}, h("tr", {}, h("td", {}), h("td", {}), h("th", { scope: "col" }, "now"), h("td", {}), h("th", { scope: "col" }, "exact"))),
    h("tbody", {}, bars.map((bar) => bar.row)));

  // -- the table of tiles
  const body = h("tbody");
  const table = h("table", { class: "ft-rows" },
    h("caption", {}, "One row for each tile"),
    h("thead", {}, h("tr", {},
      h("th", { scope: "col" }, "keys"),
      h("th", { scope: "col", "data-term": "m" }, "m"),
      h("th", { scope: "col", "data-term": "alpha" }, h("span", { class: "ft-wide" }, "correction "), h("span", { class: "ft-small" }, "e", h("sup", {}, "m", h("small", {}, " old"), " − m", h("small", {}, " new")))),
      h("th", { scope: "col", "data-term": "l" }, "l"))), body);

  const fact = (name) => ({ name, value: h("strong"), note: h("span", { class: "ft-note" }) });
  const facts = { memory: fact("scores in memory"), rescaled: fact("rescalings"), error: fact("error against exact") };
  const numbers = h("ul", { class: "ft-facts" }, Object.values(facts).map(({ name, value, note }) =>
    h("li", {}, h("span", {}, name), value, note)));

  const sentence = h("p", { class: "ft-sentence", role: "status", "aria-live": "polite" });
  const working = Array.from({ length: 4 }, () => ({ formula: h("div", { class: "ft-formula" }), numbers: h("div", { class: "ft-worked" }) }));
  const terms = h("p", { class: "ft-terms", role: "group", "aria-label": "Terms: point at one, or press it, to find it everywhere" },
    TERMS.map(([term, symbol, name]) => h("button", { type: "button", "data-term": term, "aria-pressed": "false",
      onclick: () => { pinned = pinned === term ? null : term; light(pinned); } },
    h("span", { class: "ft-var", "data-term": term }, symbol), ` ${name}`)));
  const tryThis = h("div", { class: "ft-try" }, h("h4", {}, "Try this"), h("ul", {}, TRY.map((parts) =>
    h("li", {}, parts.map((part) => (typeof part === "string" ? part
      : h("button", { type: "button", class: "ft-link", onclick: act(() => prepare(part[1])) }, part[0])))))));

  const root = h("section", { class: "ft ft-stepper", "aria-labelledby": `${uid}-title`, onkeydown: press },
    h("h3", { id: `${uid}-title`, class: "ft-title" }, "Can a softmax finish without holding all of its scores?"),
    controls, scores, states,
    h("div", { class: "ft-pair" }, accumulator, table),
    numbers, sentence, terms,
    h("div", { class: "ft-working" }, h("p", { class: "ft-small-title" }, "This step, in numbers (o for its first component)"),
      working.map((line) => h("div", { class: "ft-line" }, line.formula, line.numbers))),
    tryThis);

  // -- editing scores
  function setScore(j, value) {
    const own = decode(model.get("scores"));
    own[j] = value;
    change({ preset: "custom", scores: encode(own) });
  }

  function edit(j) {
    const value = parseScore(keys[j].input.value);
    if (timer) stop();
    if (value === undefined) {
      const typed = keys[j].input.value;
      draw();
      sentence.textContent = `“${typed}” is no score: type a number, or leave the field empty to mask the key.`;
    } else setScore(j, value);
  }

  function nudge(event, j) {
    const by = { ArrowUp: 0.25, ArrowDown: -0.25 }[event.key];
    const now = parseScore(keys[j].input.value);
    if (!by || !Number.isFinite(now)) return;
    event.preventDefault();
    setScore(j, Math.round((now + by) * 100) / 100);
  }

  // Dragging is for a mouse or a pen: on a touch screen the same movement scrolls the page.
  function grab(event, j) {
    if (event.pointerType === "touch" || event.button !== 0) return;
    drag = { j, ...scale(decode(model.get("scores"))) };
    event.currentTarget.setPointerCapture(event.pointerId);
    pull(event);
    event.preventDefault();
  }

  function pull(event) {
    if (!drag) return;
    const box = keys[drag.j].plot.getBoundingClientRect();
    const share = (box.bottom - event.clientY) / box.height;
    const value = drag.low + Math.max(0, Math.min(1, share)) * (drag.high - drag.low);
    setScore(drag.j, Math.round(value * 20) / 20);
  }

  function release() {
    if (!drag) return;
    drag = null;
    draw();
  }

  function prepare(values) {
    const own = values.preset ? { scores: model.get("presets")[values.preset].scores } : {};
    change({ position: 0, ...values, ...own });
    if (values.position == null) run();
    scores.focus({ preventScroll: true });
  }

  function press(event) {
    const at = event.target;
    if (event.ctrlKey || event.metaKey || event.altKey || at.matches("input, select")) return;
    if (event.key === " " && at.matches("button")) return;
    const { position, rows } = view();
    const to = { " ": position + 1, ArrowRight: position + 1, ArrowLeft: position - 1, Home: 0, End: rows.length }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    act(() => go(to))();
  }

  // -- a term of a formula, its number and its shape light up together
  function light(term) {
    for (const part of root.querySelectorAll("[data-term]")) part.classList.toggle("ft-lit", part.dataset.term === term);
    for (const chip of terms.children) chip.setAttribute("aria-pressed", String(chip.dataset.term === pinned));
  }
  const pointed = (event) => event.target.closest?.("[data-term]")?.dataset.term;
  root.addEventListener("pointerover", (event) => light(pointed(event) ?? pinned));
  root.addEventListener("pointerleave", () => light(pinned));
  terms.addEventListener("focusin", (event) => light(pointed(event) ?? pinned));
  terms.addEventListener("focusout", () => light(pinned));

  function scale(all) {
    const finite = all.filter(Number.isFinite);
    const low = Math.min(0, ...finite);
    const high = Math.max(0, ...finite);
    const range = high - low || 1; // and room above for the label of m
    return { low: low < 0 ? low - 0.06 * range : low, high: high + 0.2 * range };
  }

  function draw() {
    const now = view();
    const { rows, position } = now;
    const row = rows[position - 1];
    const broken = Boolean(row) && Number.isNaN(row.l);

    preset.value = model.get("preset");
    tile.value = now.tile;
    tile.setAttribute("aria-valuetext", `${now.tile} of ${count} keys`);
    tileShown.textContent = `${now.tile} ${now.tile === 1 ? "key" : "keys"}`;
    guard.checked = now.guard;
    // A disabled button would drop the keyboard's focus; these say so and do nothing.
    back.setAttribute("aria-disabled", String(position === 0));
    reset.setAttribute("aria-disabled", String(position === 0));
    next.setAttribute("aria-disabled", String(position === rows.length));
    play.textContent = timer ? "Pause" : "Run";

    const { low, high } = drag || scale(now.scores);
    const at = (x) => 100 * (x - low) / (high - low);
    keys.forEach((key, j) => {
      const index = Math.floor(j / now.tile);
      const own = rows[index];
      const state = index >= position ? "absent" : index === position - 1 ? "current" : "discarded";
      const score = now.scores[j];
      const masked = score === -Infinity;
      const first = own.start === j;
      key.cell.dataset.state = state;
      key.cell.classList.toggle("ft-first", first);
      key.cell.classList.toggle("ft-last", own.stop === j + 1);
      key.name.textContent = first ? (now.tile === 1 ? String(index + 1) : `tile ${index + 1}`) : "";
      key.masked.hidden = !masked;
      key.bar.hidden = masked;
      key.zero.style.bottom = `${at(0)}%`;
      if (!masked) {
        key.bar.style.bottom = `${at(Math.min(0, score))}%`;
        key.bar.style.height = `${Math.max(at(Math.max(0, score)) - at(Math.min(0, score)), 1.5)}%`;
      }
      const seen = state !== "absent" && own.m > -Infinity;
      key.m.hidden = !seen;
      if (seen) key.m.style.bottom = `${at(own.m)}%`;
      const old = index > 0 ? rows[index - 1].m : -Infinity;
      const moved = state === "current" && old > -Infinity && own.m > old;
      key.mTag.hidden = !(seen && state === "current" && first);
      key.mTag.style.bottom = key.m.style.bottom;
      key.mTag.textContent = `m ${scoreText(own.m)}`;
      key.old.hidden = key.gap.hidden = !moved;
      key.tag.hidden = !(moved && first);
      if (moved) {
        key.old.style.bottom = key.gap.style.bottom = `${at(old)}%`;
        key.gap.style.height = `${at(own.m) - at(old)}%`;
        key.tag.style.bottom = `${at(old)}%`;
        key.tag.textContent = `×${shown(own.correction, 2)}`;
      }
      const text = scoreText(score);
      if (document.activeElement !== key.input || parseScore(key.input.value) !== score) key.input.value = text.replace("−", "-").replace("∞", "inf");
      key.input.setAttribute("aria-label", `score of key ${j + 1}, tile ${index + 1}, ${{ absent: "not loaded", current: "on chip now", discarded: "used and discarded" }[state]}${masked ? ", masked" : ""}`);
    });

    // One scale for all steps, so that a bar that moves has moved; without the guard, the same one.
    const truth = exact(now.scores, now.values);
    const reach = 1.08 * Math.max(...truth.concat(now.guarded.flatMap((own) => own.output)).map(Math.abs)) || 1;
    const out = row ? row.output : truth.map(() => 0);
    bars.forEach((bar, c) => {
      const bad = Number.isNaN(out[c]);
      bar.row.classList.toggle("ft-nan", bad);
      bar.bar.style.left = bad ? "0" : `${50 + 50 * Math.min(0, out[c]) / reach}%`;
      bar.bar.style.width = bad ? "100%" : `${50 * Math.abs(out[c]) / reach}%`;
      bar.tick.style.left = `${50 + 50 * truth[c] / reach}%`;
      const hit = Math.abs(out[c] - truth[c]) < 1e-12;
      bar.now.textContent = shown(out[c]);
      bar.sign.textContent = hit ? "=" : "≠";
      bar.sign.classList.toggle("ft-hit", hit);
      bar.truth.textContent = shown(truth[c]);
    });

    body.replaceChildren(...rows.map((own, k) => {
      const done = k < position;
      const cell = (term, x, places) => h("td", { "data-term": term, class: done && Number.isNaN(x) ? "ft-bad" : null }, done ? shown(x, places) : "·");
      return h("tr", { "data-state": done ? (k === position - 1 ? "current" : "discarded") : "absent", "aria-current": k === position - 1 ? "step" : null },
        h("th", { scope: "row" }, own.stop - own.start === 1 ? String(own.stop) : `${own.start + 1}–${own.stop}`),
        cell("m", own.m, 2), cell("alpha", own.correction), cell("l", own.l));
    }));

    facts.memory.value.textContent = `${row ? row.stop - row.start : 0} of ${count}`;
    facts.memory.note.textContent = `naive: ${count}, or ${count * count} for ${count} queries`;
    facts.rescaled.value.textContent = String(rescalings(rows.slice(0, position)));
    facts.rescaled.note.textContent = `in ${position} of ${rows.length} tiles`;
    facts.error.value.textContent = row ? shownError(row.error) : "–";
    facts.error.value.classList.toggle("ft-bad", broken);
    facts.error.note.textContent = broken ? "it never recovers" : position === rows.length ? "all keys seen" : "not all keys seen";

    // While it runs by itself, a screen reader hears the last sentence only.
    sentence.setAttribute("aria-live", timer ? "off" : "polite");
    const said = story(rows, position, now.guarded);
    if (sentence.textContent !== said) sentence.textContent = said;
    sentence.classList.toggle("ft-bad", broken);

    lines(rows, position, now.guard).forEach(([term, left, right], i) => {
      working[i].formula.replaceChildren(...formula(left));
      working[i].numbers.replaceChildren(...formula(right));
      working[i].numbers.dataset.term = term;
    });
    light(pinned);
  }

  const watched = ["scores", "values", "tile", "guard", "position", "preset"].map((name) => `change:${name}`);
  for (const name of watched) model.on(name, changed);
  el.append(root);
  changed();
  return () => {
    clearInterval(timer);
    for (const name of watched) model.off(name, changed);
  };
}

export default { render };
