// A ragged batch as a map of tiles, and what one query's state goes through, with the guard and without.
//
// First the arithmetic: the twin of masks.py, compared with it and with kernels.reference in tests/site. Then what is
// said about a step, also pure. Then the picture, which only shows what they return. Scores, values and lengths come
// from the model's `options`.

// ---------------------------------------------------------------------------------------------------- arithmetic

/** May query i see key j? Aligned at the bottom right: the last query stands at the last key. */
export function visible(i, j, [queries, keys], { causal, window }) {
  const ahead = j - (i + keys - queries);
  const seen = i < queries && j < keys && !(causal && ahead > 0);
  return seen && (window === null || Math.abs(ahead) < window);
}

const range = (start, stop) => Array.from({ length: stop - start }, (_, k) => start + k);

/** "full", "partial" or "empty" for each sequence, tile of queries and tile of keys, padding included. */
export function kinds(own, options) {
  const starts = range(0, options.slots / own.tile).map((t) => t * own.tile);
  const kind = (lengths, row, column) => {
    const cells = range(row, row + own.tile).flatMap((i) =>
      range(column, column + own.tile).map((j) => visible(i, j, lengths, own)));
    return cells.every(Boolean) ? "full" : cells.some(Boolean) ? "partial" : "empty";
  };
  return options.batches[own.batch].lengths.map((lengths) =>
    starts.map((row) => starts.map((column) => kind(lengths, row, column))));
}

/** One tile into {m, l, o}: scores s and values v, one number each. Without the guard, -Infinity - (-Infinity) is NaN. */
export function step(state, s, v, guard = true) {
  const m = Math.max(state.m, ...s);
  const shift = guard && m === -Infinity ? 0 : m;
  const correction = Math.exp(state.m - shift);
  const p = s.map((score) => Math.exp(score - shift));
  return {
    m,
    l: correction * state.l + p.reduce((sum, x) => sum + x, 0),
    o: correction * state.o + p.reduce((sum, x, j) => sum + x * v[j], 0),
  };
}

/** {m, l, o} over the keys of both states. */
export function merge(a, b, guard = true) {
  const m = Math.max(a.m, b.m);
  const shift = guard && m === -Infinity ? 0 : m;
  const [wa, wb] = [Math.exp(a.m - shift), Math.exp(b.m - shift)];
  return { m, l: wa * a.l + wb * b.l, o: wa * a.o + wb * b.o };
}

/** {output, lse}. Without the guard, a state that has seen no key gives 0 / 0. */
export function finalize({ m, l, o }, guard = true) {
  return guard && l === 0 ? { output: 0, lse: -Infinity } : { output: o / l, lse: m + Math.log(l) };
}

const EMPTY = { m: -Infinity, l: 0, o: 0 };

/** {steps, output, lse} of one query, as `trace` in masks.py, whose docstring explains them. */
export function trace(own, options, sequence, query) {
  const { lengths, level } = options.batches[own.batch];
  const keys = lengths[sequence][1];
  const states = [EMPTY, EMPTY];
  const row = kinds(own, options)[sequence][Math.floor(query / own.tile)];
  const steps = row.map((kind, t) => {
    const [start, stop] = [t * own.tile, (t + 1) * own.tile];
    const worker = Number(own.split && 2 * t >= row.length);
    const see = range(start, stop).map((j) => visible(query, j, lengths[sequence], own));
    const skipped = own.skip && kind === "empty";
    if (!skipped) {
      const s = see.map((seen, k) => (seen ? options.scores[sequence][query][start + k] + level : options.hidden[own.hidden]));
      const v = range(start, stop).map((j) => (j < keys || (!own.guard && !own.nan) ? options.values[sequence][j] : own.guard ? 0 : NaN));
      states[worker] = step(states[worker], s, v, own.guard);
    }
    return { start, stop, kind, seen: see.filter(Boolean).length, worker, skipped, ...states[worker] };
  });
  if (own.split) {
    const seen = steps.reduce((sum, one) => sum + one.seen, 0);
    steps.push({ start: 0, stop: options.slots, kind: "merge", seen, worker: 0, skipped: false, ...merge(...states, own.guard) });
  }
  return { steps, ...finalize(own.split ? steps.at(-1) : states[0], own.guard) };
}

export const RULES = { guard: true, hidden: "-inf" }; // what makes any of these kernels right

/** "right", "nan" or "wrong" for each query of each sequence. */
export const verdicts = (own, options) => options.batches[own.batch].lengths.map(([queries], b) =>
  range(0, queries).map((i) => {
    const [mine, right] = [own, { ...own, ...RULES }].map((settings) => trace(settings, options, b, i).output);
    return Number.isNaN(mine) ? "nan" : Math.abs(mine - right) > 1e-9 ? "wrong" : "right";
  }));

/** How many tiles there are of each kind, how many scores are computed, and how many of those are seen. */
export function counts(own, options) {
  const all = kinds(own, options).flat(2);
  const of = (kind) => all.filter((one) => one === kind).length;
  const [full, partial, empty] = ["full", "partial", "empty"].map(of);
  const seen = options.batches[own.batch].lengths.flatMap((lengths) =>
    range(0, options.slots).flatMap((i) => range(0, options.slots).filter((j) => visible(i, j, lengths, own)))).length;
  const computed = (own.skip ? full + partial : all.length) * own.tile ** 2;
  return { tiles: all.length, full, partial, empty, computed, scores: all.length * own.tile ** 2, seen };
}

const WORDS = { nan: NaN, inf: Infinity, "-inf": -Infinity };
export const decode = (x) => (Array.isArray(x) ? x.map(decode)
  : x && typeof x === "object" ? Object.fromEntries(Object.entries(x).map(([key, value]) => [key, decode(value)]))
    : typeof x === "string" && x in WORDS ? WORDS[x] : x);

// --------------------------------------------------------------------------------------------------------- words

/** A number for a reader: fixed places so that columns line up, a true minus, and words for what is no number. */
export function shown(x, places = 4) {
  if (Number.isNaN(x)) return "⚠ NaN";
  if (!Number.isFinite(x)) return x < 0 ? "−∞" : "∞";
  if (Number.isInteger(x)) return String(x).replace("-", "−");
  return x.toFixed(Math.abs(x) >= 1000 ? 2 : places).replace("-", "−");
}

const keysText = ({ start, stop }) => `keys ${start + 1}–${stop}`;
const stateText = ({ m, l, o }) => `(${shown(m, 2)}, ${shown(l)}, ${shown(o)})`;

/** The keys that a query sees, in words. */
export function sees(own, options, sequence, query) {
  const lengths = options.batches[own.batch].lengths[sequence];
  const keys = range(0, options.slots).filter((j) => visible(query, j, lengths, own)).map((j) => j + 1);
  if (!keys.length) return "no key at all";
  return keys.length === 1 ? `key ${keys[0]} alone` : `keys ${keys[0]} to ${keys.at(-1)}`;
}

/** What the step that led to `position` did. mine, right: traces; position counts the steps that are not skipped. */
export function story(own, options, sequence, query, mine, right, position) {
  const name = `Query ${query + 1} of sequence ${sequence + 1}`;
  const done = mine.steps.map((one, k) => k).filter((k) => !mine.steps[k].skipped);
  const end = position === done.length ? ending(own, options, sequence, query, mine, right) : "";
  if (position === 0) {
    const start = `${name} sees ${sees(own, options, sequence, query)}. `;
    return done.length ? `${start}No tile is loaded: m = −∞, l = 0, o = 0.` : `${start}All its tiles are skipped. ${end}`;
  }
  const at = done[position - 1];
  const one = mine.steps[at];
  const before = at > 0 && mine.steps[at - 1].worker === one.worker ? mine.steps[at - 1] : EMPTY;
  if (one.kind === "merge") {
    const half = mine.steps.slice(0, -1);
    const last = (worker) => half.filter((other) => other.worker === worker).at(-1);
    const bad = [0, 1].filter((worker) => Number.isNaN(last(worker).l));
    const what = bad.length ? `⚠ Merge: the state of worker ${bad.map((w) => w + 1).join(" and of worker ")} is NaN, and a weight of 0 does not remove it: 0 × NaN is NaN.`
      : Number.isNaN(one.l) ? "⚠ Merge: both workers saw nothing, so both maxima are −∞, and −∞ − (−∞) is NaN."
        : `Merge: both states are measured against the larger m, ${shown(one.m, 2)}, and added.`;
    return `${what} ${end}`;
  }
  const tile = `Tile ${at + 1} (${keysText(one)})`;
  const padded = options.batches[own.batch].lengths[sequence][1] < one.stop;
  let what;
  if (Number.isNaN(before.l)) what = `${tile} is in order, but NaN times anything is NaN: l and o stay NaN.`;
  else if (Number.isNaN(one.l)) what = `⚠ ${tile} holds no key that this query sees: m is −∞ before and after it, and −∞ − (−∞) is NaN, in the correction and in every weight.`;
  else if (Number.isNaN(one.o) && !Number.isNaN(before.o)) what = `⚠ ${tile} hangs over the last key, and NaN is stored there. Its weights are 0, but 0 × NaN is NaN: o is lost, while m and l look well.`;
  else if (Number.isNaN(one.o)) what = `${tile} is in order, but o is NaN already.`;
  else if (one.seen === 0 && own.hidden === "-inf") {
    what = before.m === -Infinity && own.guard ? `${tile} holds no key that this query sees: the guard subtracts 0, every e^(−∞) is 0, and the state stays empty.`
      : `${tile} holds no key that this query sees: every weight is e^(−∞) = 0, and nothing changes.`;
  } else if (one.seen === 0) {
    what = one.m === -1e4 ? `${tile} holds no key that this query sees, yet its hidden scores of −10⁴ are as good as any so far: m = −10⁴, and each hidden key has weight 1.`
      : `${tile} holds no key that this query sees: each weight e^(−10⁴ − m) is 0, and nothing changes.`;
  } else if (own.hidden === "-1e4" && one.m === -1e4) what = `${tile}: the hidden keys' −10⁴ is larger than every score that this query sees, so the hidden keys take the weight.`;
  else if (before.m === -1e4) what = `${tile} brings real scores: m rises to ${shown(one.m, 2)}, and what the hidden keys had added is multiplied by 0.`;
  else what = `${tile}: the query sees ${one.seen} of its ${one.stop - one.start} keys${padded && own.guard ? "; values beyond the last key are loaded as 0" : ""}. State: ${stateText(one)}.`;
  return end ? `${what} ${end}` : what;
}

function ending(own, options, sequence, query, mine, right) {
  if (Number.isNaN(mine.output)) {
    const zero = mine.steps.every((one) => one.skipped || one.l === 0);
    return `The output is ${zero ? "0 / 0, which is " : ""}NaN; with the rules it is ${shown(right.output)}.`;
  }
  if (Math.abs(mine.output - right.output) > 1e-9) return `⚠ The output is ${shown(mine.output)}: finite, and wrong. It should be ${shown(right.output)}.`;
  if (right.lse === -Infinity) {
    return mine.lse === -Infinity ? "It sees no key: output 0 and lse −∞, as agreed."
      : `The output is 0 by luck, but lse is ${shown(mine.lse, 2)} and should be −∞: a merge will count this row.`;
  }
  return `The output is ${shown(mine.output)}, which is right.`;
}

// ------------------------------------------------------------------------------------------------------- picture

/** A DOM element: h("p", {class: "x", onclick: f, "aria-live": "polite"}, "text", child). */
function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** The same for SVG. */
function s(tag, props = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity));
  return element;
}

const CELL = 9; // units of the drawing; a phone shows one as 7 pixels
const [LEFT, TOP] = [2, 14];

/** One sequence: its keys above, a grid of scores in tiles, and a mark for each query's output at the right. */
function grid(own, options, b, kindsOf, verdictsOf, chosen, hatch) {
  const { slots } = options;
  const [queries, keys] = options.batches[own.batch].lengths[b];
  const x = (j) => LEFT + j * CELL;
  const y = (i) => TOP + i * CELL;
  const side = own.tile * CELL;
  const rect = (props) => s("rect", props);
  const cross = (cx, cy) => s("path", { class: "ft-cross", d: `M${cx - 3} ${cy - 3} l6 6 m-6 0 l6 -6` });

  const above = range(0, slots).map((j) => (j < keys ? rect({ class: "ft-slot", x: x(j) + 1, y: 2, width: CELL - 2, height: CELL - 2 })
    : own.nan ? cross(x(j) + CELL / 2, 2 + CELL / 2 - 1) : rect({ class: "ft-slot ft-pad", x: x(j) + 1.5, y: 2.5, width: CELL - 3, height: CELL - 3 })));
  const cells = range(0, slots).flatMap((i) => range(0, slots).map((j) => {
    const kind = kindsOf[Math.floor(i / own.tile)][Math.floor(j / own.tile)];
    if (visible(i, j, [queries, keys], own)) return rect({ class: "ft-seen", x: x(j), y: y(i), width: CELL, height: CELL });
    const wasted = kind === "partial" || (kind === "empty" && !own.skip);
    return wasted ? rect({ fill: `url(#${hatch})`, x: x(j), y: y(i), width: CELL, height: CELL }) : [];
  }));
  const tiles = kindsOf.flatMap((row, r) => row.map((kind, c) => s("g", { "data-tile": chosen.sequence === b && r === chosen.row ? c : null },
    rect({ class: "ft-tile", "data-kind": kind, x: x(c * own.tile) + 0.75, y: y(r * own.tile) + 0.75, width: side - 1.5, height: side - 1.5 }),
    s("text", { class: "ft-kind", x: x(c * own.tile) + side / 2, y: y(r * own.tile) + side / 2, "text-anchor": "middle", "dominant-baseline": "central" },
      { full: "F", partial: "P", empty: "E" }[kind]))));
  const marks = verdictsOf.map((verdict, i) => {
    const [cx, cy] = [x(slots) + 8, y(i) + CELL / 2];
    return verdict === "right" ? rect({ class: "ft-good", x: cx - 3, y: cy - 3, width: 6, height: 6 })
      : verdict === "nan" ? cross(cx, cy) : s("path", { class: "ft-wrong", d: `M${cx} ${cy - 4} l4 4 l-4 4 l-4 -4 z` });
  });
  const here = chosen.sequence === b ? [
    rect({ class: "ft-here", x: LEFT - 1, y: y(chosen.query), width: slots * CELL + 2, height: CELL }),
    chosen.tile === null ? [] : rect({ class: "ft-now", x: x(chosen.tile * own.tile), y: y(chosen.query) - 1, width: side, height: CELL + 2 }),
  ] : [];
  return s("svg", { viewBox: `0 0 ${LEFT + slots * CELL + 16} ${TOP + slots * CELL + 3}`, "data-sequence": b, "aria-hidden": "true" },
    s("defs", {}, s("pattern", { id: hatch, width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      rect({ class: "ft-hatch", width: 1.1, height: 5 }))),
    above, cells, tiles, marks, here);
}

const BASE = {
  batch: "ragged", causal: true, window: 6, tile: 3, skip: true, guard: false, hidden: "-inf", nan: false, split: false,
  sequence: 0, query: 8, position: 1,
};
const TRY = [
  [["Guard off", {}], ": step to the end of query 9, then walk through the queries with ↑ and ↓. Which row of a tile of queries is lost, and why not the first? Then ",
    ["guard on", { guard: true }], ": the same input."],
  [["−10⁴ for −∞", { hidden: "-1e4", skip: false, sequence: 2, query: 1, position: 0 }], ": no NaN anywhere. Look at the ◆ of the rows that see no key, and at their lse. Then ",
    ["very low scores", { batch: "low", hidden: "-1e4", window: null, sequence: 1, query: 1, position: 0 }], ": now rows that see keys are wrong too."],
  [["NaN in the padding", { nan: true, window: null, sequence: 1, query: 3, position: 0 }], ": follow o; m and l stay well to the end. Why does a ", ["tile of 2", { nan: true, window: null, tile: 2, sequence: 1, query: 3, position: 0 }],
    " hide the mistake for this sequence?"],
  [["Two workers", { split: true, window: null, skip: false, sequence: 0, query: 4, position: 0 }], ": the second half of the keys lies in the future of this query. Its NaN meets a good state at the merge."],
];

let instances = 0;

function render({ model, el }) {
  const uid = `ft-masks-${++instances}`;
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const options = decode(model.get("options"));
  const names = Object.keys(BASE);
  let timer = null;
  let busy = false;
  let note = null; // what a change of the settings has led to, in place of the step's story

  function view() {
    const own = Object.fromEntries(names.map((name) => [name, model.get(name)]));
    const { lengths } = options.batches[own.batch];
    own.query = Math.min(own.query, lengths[own.sequence][0] - 1);
    const mine = trace(own, options, own.sequence, own.query);
    const right = trace({ ...own, ...RULES }, options, own.sequence, own.query);
    const done = mine.steps.map((_, k) => k).filter((k) => !mine.steps[k].skipped);
    return { own, mine, right, done, position: Math.min(own.position, done.length) };
  }

  // Several traits can change at once: show and send the result, not the steps.
  function change(values) {
    busy = true;
    for (const [name, value] of Object.entries(values)) model.set(name, value);
    busy = false;
    draw();
    model.save_changes();
  }

  /** A change of the settings: says what it has led to. */
  function set(values) {
    note = null;
    busy = true;
    for (const [name, value] of Object.entries(values)) model.set(name, value);
    busy = false;
    note = summary();
    draw();
    model.save_changes();
  }

  function summary() {
    const { own } = view();
    const all = verdicts(own, options).flat();
    const of = (verdict) => all.filter((one) => one === verdict).length;
    const { full, partial, empty } = counts(own, options);
    const rows = of("right") === all.length ? `All ${all.length} outputs are right.`
      : `⚠ Of ${all.length} outputs, ${of("nan")} are NaN and ${of("wrong")} are finite and wrong.`;
    return `${full} full tiles, ${partial} partial, ${empty} empty. ${rows}`;
  }

  function changed() {
    if (busy) return;
    note = null;
    draw();
  }

  function go(position) {
    note = null;
    change({ position: Math.max(0, Math.min(position, view().done.length)) });
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    draw();
  }

  function run() {
    const { done, position } = view();
    if (timer) return stop();
    if (still.matches) return go(done.length);
    if (position === done.length) go(0);
    timer = setInterval(() => {
      const now = view();
      if (now.position >= now.done.length - 1) stop();
      go(now.position + 1);
    }, 900);
    draw();
  }

  function act(callback) {
    return (event) => { if (timer) stop(); callback(event); };
  }

  // The queries of all sequences in one line: up and down walk along it.
  const everyQuery = () => options.batches[model.get("batch")].lengths.flatMap(([queries], b) => range(0, queries).map((i) => [b, i]));

  function walk(by) {
    const all = everyQuery();
    const { own } = view();
    const at = all.findIndex(([b, i]) => b === own.sequence && i === own.query) + by;
    if (at >= 0 && at < all.length) follow(...all[at]);
  }

  function follow(sequence, query) {
    note = null;
    const { position, done } = view();
    const end = position === done.length; // whoever was at the end wants to see the end
    change({ sequence, query, ...(end ? { position: options.slots } : {}) });
    if (end) change({ position: view().done.length });
  }

  // -- controls
  const select = (name, label, choices, read, callback) => {
    const input = h("select", { id: `${uid}-${name}`, onchange: act(() => callback(input.value)) },
      choices.map(([value, text]) => h("option", { value }, text)));
    return { input, read, field: h("div", { class: "ft-field" }, h("label", { for: `${uid}-${name}` }, label), input) };
  };
  const selects = {
    batch: select("batch", "Batch", Object.entries(options.batches).map(([name, { label }]) => [name, label]), (own) => own.batch,
      (value) => set({ batch: value })),
    window: select("window", "Window", [["", "none"], ...[1, 2, 3, 4, 5, 6, 8, 10].map((w) => [w, `${w} ${w === 1 ? "key" : "keys"}`])],
      (own) => own.window ?? "", (value) => set({ window: value === "" ? null : Number(value) })),
    tile: select("tile", "Tile", options.tiles.map((t) => [t, `${t} × ${t}`]), (own) => own.tile, (value) => set({ tile: Number(value) })),
    hidden: select("hidden", "Hidden score", [["-inf", "−∞"], ["-1e4", "−10⁴"]], (own) => own.hidden, (value) => set({ hidden: value })),
  };
  const query = h("select", { id: `${uid}-query`, onchange: act(() => follow(...query.value.split("-").map(Number))) });
  const check = (name, label) => {
    const input = h("input", { id: `${uid}-${name}`, type: "checkbox", onchange: act(() => set({ [name]: input.checked })) });
    return { input, field: h("label", { class: "ft-check" }, input, label) };
  };
  const checks = {
    causal: check("causal", "causal"), skip: check("skip", "skip empty tiles"), nan: check("nan", "NaN in padding"),
    split: check("split", "two workers"), guard: check("guard", "guard"),
  };
  const button = (label, name, callback) => h("button", { type: "button", class: `ft-${name}`, onclick: callback }, label);
  const back = button("Back", "back", act(() => go(view().position - 1)));
  const next = button("Step", "step", act(() => go(view().position + 1)));
  const play = button("Run", "run", run);
  const reset = button("Reset", "reset", act(() => go(0)));
  const controls = h("div", { class: "ft-controls" },
    Object.values(selects).map(({ field }) => field),
    h("div", { class: "ft-field ft-follow" }, h("label", { for: `${uid}-query` }, "Follow"), query),
    Object.values(checks).map(({ field }) => field),
    h("div", { class: "ft-buttons" }, back, next, play, reset));

  // -- picture
  const maps = range(0, 3).map(() => ({ box: h("div", { class: "ft-grid-box" }), words: h("p", { class: "ft-grid-words" }) }));
  const map = h("div", {
    class: "ft-map", tabindex: 0, role: "group", onclick: act(pick),
    "aria-label": "Three sequences as tiles. Down and up arrows choose the query that is followed. Space or right arrow steps, left arrow goes back, Home resets, End finishes.",
  }, maps.map(({ box, words }) => h("div", {}, box, words)));
  const swatch = (kind, words) => h("span", {}, h("i", { class: "ft-swatch", "data-kind": kind }), words);
  const states = h("p", { class: "ft-states" },
    swatch("seen", "F, full: seen, no mask needed"), swatch("wasted", "P, partial: hatched scores are computed, then hidden"),
    swatch("absent", "E, empty: no score is seen"),
    h("span", {}, h("b", { class: "ft-sign", "data-mark": "good" }, "■"), "output right"),
    h("span", {}, h("b", { class: "ft-sign" }, "×"), "NaN"), h("span", {}, h("b", { class: "ft-sign" }, "◆"), "finite and wrong"));

  // -- both traces
  const lane = (title) => {
    const body = h("tbody");
    const caption = h("caption", {}, title);
    const output = [h("td"), h("td")];
    return {
      body, caption, output,
      table: h("table", { class: "ft-rows" }, caption,
        h("thead", {}, h("tr", {}, ["keys", "sees", "m", "l", "o"].map((name) => h("th", { scope: "col" }, name)))),
        body, h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, "o / l"), output[0], h("th", { scope: "row" }, "lse"), output[1]))),
    };
  };
  const lanes = { mine: lane("As set above"), right: lane("With the guard and −∞") };
  lanes.mine.output[0].colSpan = lanes.right.output[0].colSpan = 2;

  const fact = (name) => ({ name, value: h("strong"), note: h("span", { class: "ft-note" }) });
  const facts = { tiles: fact("tiles computed"), scores: fact("scores computed"), rows: fact("outputs that are right") };
  const numbers = h("ul", { class: "ft-facts" }, Object.values(facts).map(({ name, value, note: words }) =>
    h("li", {}, h("span", {}, name), value, words)));
  const sentence = h("p", { class: "ft-sentence", role: "status", "aria-live": "polite" });
  const tryThis = h("div", { class: "ft-try" }, h("h4", {}, "Try this"), h("ul", {}, TRY.map((line) =>
    h("li", {}, line.map((part) => (typeof part === "string" ? part
      : h("button", { type: "button", class: "ft-link", onclick: act(() => { note = null; change({ ...BASE, ...part[1] }); map.focus({ preventScroll: true }); }) }, part[0])))))));

  const root = h("section", { class: "ft ft-masks", "aria-labelledby": `${uid}-title`, onkeydown: press },
    h("h3", { id: `${uid}-title`, class: "ft-title" }, "What becomes of a query that meets a tile it may not see?"),
    controls, map, states, h("div", { class: "ft-two" }, lanes.mine.table, lanes.right.table), numbers, sentence, tryThis);

  function pick(event) {
    const svg = event.target.closest?.("svg");
    if (!svg) return;
    const box = svg.getBoundingClientRect();
    const units = svg.viewBox.baseVal;
    const i = Math.floor(((event.clientY - box.top) * units.height / box.height - TOP) / CELL);
    const b = Number(svg.dataset.sequence);
    if (i >= 0 && i < options.batches[model.get("batch")].lengths[b][0]) follow(b, i);
  }

  function press(event) {
    const at = event.target;
    if (event.ctrlKey || event.metaKey || event.altKey || at.matches("input, select")) return;
    if (event.key === " " && at.matches("button")) return;
    const { position, done } = view();
    const to = { " ": position + 1, ArrowRight: position + 1, ArrowLeft: position - 1, Home: 0, End: done.length }[event.key];
    const by = at === map ? { ArrowDown: 1, ArrowUp: -1 }[event.key] : undefined;
    if (to === undefined && by === undefined) return;
    event.preventDefault();
    act(() => (by ? walk(by) : go(to)))();
  }

  // A tile of the map and its line in the tables light up together.
  function light(tile) {
    for (const part of root.querySelectorAll("[data-tile]")) part.classList.toggle("ft-lit", tile != null && part.dataset.tile === tile);
  }
  root.addEventListener("pointerover", (event) => light(event.target.closest?.("[data-tile]")?.dataset.tile));
  root.addEventListener("pointerleave", () => light(null));

  function draw() {
    const { own, mine, right, done, position } = view();
    const { lengths } = options.batches[own.batch];
    const at = position ? done[position - 1] : null;
    const now = at !== null && mine.steps[at].kind !== "merge" ? at : null;

    for (const { input, read } of Object.values(selects)) input.value = String(read(own));
    for (const [name, { input }] of Object.entries(checks)) input.checked = own[name];
    query.replaceChildren(...lengths.map(([queries], b) => h("optgroup", { label: `Sequence ${b + 1}` },
      range(0, queries).map((i) => h("option", { value: `${b}-${i}` }, `query ${i + 1} of sequence ${b + 1}`)))));
    query.value = `${own.sequence}-${own.query}`;
    // A disabled button would drop the keyboard's focus; these say so and do nothing.
    back.setAttribute("aria-disabled", String(position === 0));
    reset.setAttribute("aria-disabled", String(position === 0));
    next.setAttribute("aria-disabled", String(position === done.length));
    play.textContent = timer ? "Pause" : "Run";

    const allKinds = kinds(own, options);
    const allVerdicts = verdicts(own, options);
    const chosen = { sequence: own.sequence, query: own.query, row: Math.floor(own.query / own.tile), tile: now };
    maps.forEach(({ box, words }, b) => {
      box.replaceChildren(grid(own, options, b, allKinds[b], allVerdicts[b], chosen, `${uid}-hatch-${b}`));
      words.textContent = `${b + 1}: ${lengths[b][0]} queries, ${lengths[b][1]} keys`;
    });

    for (const [name, result] of Object.entries({ mine, right })) {
      const { body, output } = lanes[name];
      body.replaceChildren(...result.steps.map((one, k) => {
        const reached = done.indexOf(k) >= 0 && done.indexOf(k) < position;
        const cells = one.skipped ? [h("td", { colspan: 3, class: "ft-skip" }, "skipped")]
          : ["m", "l", "o"].map((letter) => h("td", { class: reached && Number.isNaN(one[letter]) ? "ft-bad" : null },
            reached ? shown(one[letter], letter === "m" ? 2 : 4) : "·"));
        return h("tr", {
          "data-state": k === at ? "current" : reached ? "discarded" : "absent", "aria-current": k === at ? "step" : null,
          "data-tile": one.kind === "merge" ? null : k,
        }, h("th", { scope: "row" }, one.kind === "merge" ? "merge" : `${one.start + 1}–${one.stop}`),
        h("td", {}, one.kind === "merge" ? "" : String(one.seen)), cells);
      }));
      const finished = position === done.length;
      output[0].textContent = finished ? shown(result.output) : "·";
      output[1].textContent = finished ? shown(result.lse) : "·";
      const off = name === "mine" && finished;
      output[0].className = off && !(Math.abs(mine.output - right.output) <= 1e-9) ? "ft-bad" : "";
      output[1].className = off && mine.lse !== right.lse && !(Math.abs(mine.lse - right.lse) <= 1e-9) ? "ft-bad" : "";
    }

    const count = counts(own, options);
    const flat = allVerdicts.flat();
    const good = flat.filter((one) => one === "right").length;
    const percent = (x) => `${Math.round(100 * x)} %`;
    facts.tiles.value.textContent = `${own.skip ? count.full + count.partial : count.tiles} of ${count.tiles}`;
    facts.tiles.note.textContent = `${count.full} full, ${count.partial} partial, ${count.empty} empty`;
    facts.scores.value.textContent = percent(count.computed / count.scores);
    facts.scores.note.textContent = `${percent(count.seen / count.scores)} are seen`;
    facts.rows.value.textContent = `${good} of ${flat.length}`;
    facts.rows.value.classList.toggle("ft-bad", good < flat.length);
    facts.rows.note.textContent = good < flat.length
      ? `⚠ ${flat.filter((one) => one === "nan").length} NaN, ${flat.filter((one) => one === "wrong").length} wrong` : "no NaN";

    // While it runs by itself, a screen reader hears the last sentence only.
    sentence.setAttribute("aria-live", timer ? "off" : "polite");
    const said = note ?? story(own, options, own.sequence, own.query, mine, right, position);
    if (sentence.textContent !== said) sentence.textContent = said;
    sentence.classList.toggle("ft-bad", said.includes("⚠"));
  }

  const watched = names.map((name) => `change:${name}`);
  for (const name of watched) model.on(name, changed);
  el.append(root);
  draw();
  return () => {
    clearInterval(timer);
    for (const name of watched) model.off(name, changed);
  };
}

export default { render };
