// What attention moves between HBM and the chip, and how long that takes at least, in the standard form and in flash.
//
// First the arithmetic: the twin of `costs` in roofline.py, compared with it in tests/site. Then what is said about it,
// also pure. Then the picture, which only shows what they return. Every size and rate comes from the model's `options`.

// ---------------------------------------------------------------------------------------------------- arithmetic

export const MOVES = 6; // of the standard form: three kernels, each of which reads and writes

/** Bytes for tile x tile scores: tiles of Q, K and V in shared memory; scores and outputs in registers. */
export const tileNeeds = (tile, headDim, element, { stages, accumulator }) => ({
  shared: (1 + 2 * stages) * tile * headDim * element,
  registers: (tile * tile + tile * headDim) * accumulator,
});

/** The same numbers, under the same names, as `costs` in roofline.py, whose docstring explains them. */
export function costs({ n, heads, head_dim, dtype, card, l2 }, options) {
  const { bytes: element, rate: rateName } = options.dtypes[dtype];
  const { hbm_rate, shared_bytes_block, register_bytes_each, [rateName]: rate } = options.cards[card];
  const array = heads * n * head_dim * element;
  const matrix = heads * n * n * element;
  const product = 2 * heads * n * n * head_dim;
  const tile = options.tiles.find((size) => {
    const { shared, registers } = tileNeeds(size, head_dim, element, options);
    return shared <= shared_bytes_block && registers <= register_bytes_each;
  });
  const visits = Math.ceil(n / tile);
  const repeats = l2 ? 1 : visits;

  const kernel = (flop, read, written) => ({ flop, read, written });
  const standard = [
    kernel(product, 2 * repeats * array, matrix),
    kernel(0, matrix, matrix),
    kernel(product, matrix + repeats * array, array),
  ];
  const flash = [kernel(2 * product, array + 2 * repeats * array, array)];

  const moved = [0];
  for (const { read, written } of standard) {
    const before = moved.at(-1);
    moved.push(before + read, before + read + written);
  }
  const done = Array.from({ length: MOVES + 1 }, (_, position) => Math.ceil(position * visits / MOVES));
  const streamed = done.map((tiles) =>
    2 * heads * head_dim * element * Math.min(n, tiles * tile) + 2 * array * (l2 ? Math.min(1, tiles) : tiles));

  function form(kernels, movedSoFar, held) {
    const bytes = kernels.reduce((sum, { read, written }) => sum + read + written, 0);
    const times = kernels.map(({ flop, read, written }) => [(read + written) / hbm_rate, flop / rate]);
    const limits = new Set(times.map(([memory, arithmetic]) => (memory > arithmetic ? "memory" : "arithmetic")));
    return {
      bytes,
      held,
      intensity: 2 * product / bytes,
      memory_seconds: bytes / hbm_rate,
      arithmetic_seconds: 2 * product / rate,
      seconds: times.reduce((sum, pair) => sum + Math.max(...pair), 0),
      limit: limits.size === 1 ? [...limits][0] : "both in turn",
      moved: movedSoFar,
    };
  }

  return {
    score_head: n * n * element,
    score_all: matrix,
    input_all: array,
    kv_head: 2 * n * head_dim * element,
    flop: 2 * product,
    rate,
    ridge: rate / hbm_rate,
    tile,
    ...tileNeeds(tile, head_dim, element, options),
    visits,
    done,
    standard: form(standard, moved, 4 * array + 2 * matrix),
    flash: form(flash, streamed, 4 * array),
  };
}

/** What a reader typed as a whole number in [low, high], or undefined. Commas and spaces between digits are fine. */
export function parseWhole(text, [low, high]) {
  const plain = text.trim().replace(/[,\s]/g, "");
  const value = /^\d+$/.test(plain) ? Number(plain) : NaN;
  return value >= low && value <= high ? value : undefined;
}

// --------------------------------------------------------------------------------------------------------- words

const whole = (x) => x.toLocaleString("en-US");
const three = (x) => (x >= 999.5 ? whole(Math.round(x)) : String(Number(x.toPrecision(3))));

/** Three significant digits with the largest unit that leaves a number of 1 or so: [[limit, factor, name], ...]. */
const scaled = (x, step, units) => {
  let i = 0;
  while (i < units.length - 1 && x >= 999.5) { x /= step; i += 1; }
  return `${three(x)} ${units[i]}`;
};
export const size = (bytes) => scaled(bytes, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
export const time = (seconds) => scaled(seconds * 1e6, 1000, ["µs", "ms", "s"]);
export const flops = (flop) => scaled(flop / 1e9, 1000, ["GFLOP", "TFLOP", "PFLOP"]);
const times = (ratio) => `${three(ratio)} times`;

const STANDARD = [
  ["kernel 1: S = QKᵀ", "reads Q and K"],
  ["kernel 1: S = QKᵀ", "writes S"],
  ["kernel 2: softmax", "reads S back"],
  ["kernel 2: softmax", "writes P"],
  ["kernel 3: O = PV", "reads P and V"],
  ["kernel 3: O = PV", "writes O"],
];

const limitText = (limit) => (limit === "both in turn" ? "memory and arithmetic in turn" : limit);

/** What the move that led to `position` did, in both forms. */
export function story(own, position) {
  if (position === 0) return "Nothing has moved: Q, K and V lie in HBM. Step to start both forms.";
  const { standard, flash, done, visits } = own;
  const moved = size(standard.moved[position] - standard.moved[position - 1]);
  const first = `Move ${position} of ${MOVES}. Standard ${STANDARD[position - 1][1]}: ${moved}. `;
  if (position < MOVES) {
    return `${first}Flash has finished ${whole(done[position])} of ${whole(visits)} tiles of queries; every tile of scores it made is gone again.`;
  }
  return `${first}Both have the same O. The standard form moved ${size(standard.bytes)}, flash ${size(flash.bytes)}.`;
}

/** What a change of shape or card has led to. */
export function effect(own, what) {
  const { standard, flash } = own;
  const ratio = standard.seconds / flash.seconds;
  return `${what}: the standard form takes at least ${time(standard.seconds)} (${limitText(standard.limit)}), `
    + `flash at least ${time(flash.seconds)} (${limitText(flash.limit)}); the first bound is ${times(ratio)} the second.`;
}

/** The rows of the table: [name, standard, flash]; a cell that begins with ⚠ is a warning. */
export function rows(own, position, card) {
  const { standard, flash } = own;
  const held = (form) => (form.held > card.hbm_bytes ? `⚠ too much: ${size(form.held)}` : size(form.held));
  return [
    ["moved so far", size(standard.moved[position]), size(flash.moved[position])],
    ["HBM traffic in all", size(standard.bytes), size(flash.bytes)],
    [`held, of ${Math.round(card.hbm_bytes / 1e9)} GB`, held(standard), held(flash)],
    ["matrix products", flops(own.flop), flops(own.flop)],
    ["FLOP per byte", three(standard.intensity), three(flash.intensity)],
    ["traffic alone", time(standard.memory_seconds), time(flash.memory_seconds)],
    ["arithmetic alone", time(standard.arithmetic_seconds), time(flash.arithmetic_seconds)],
    ["least time", time(standard.seconds), time(flash.seconds)],
    ["limited by", standard.limit, flash.limit],
  ];
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

const WIDTH = 340; // of both pictures: a phone shows their text at 11 pixels or more
const text = (x, y, words, extra = {}) => s("text", { x, y, ...extra }, words);

/** What lies in HBM and what moves, one lane a form, arrays to scale. */
function lanes(own, position, { n, head_dim, l2 }, hatch) {
  const ARRAYS = [["Q", "query"], ["K", "key"], ["S", "key"], ["P", "key"], ["V", "value"], ["O", "value"]];
  const inside = WIDTH - 20;
  const share = head_dim / n;
  const side = Math.min(104, (inside - 50) / (2 + 4 * share));
  const strip = Math.max(1.5, side * share);
  const gap = (inside - 4 * strip - 2 * side) / 5;
  let x = 10;
  const at = {};
  for (const [name] of ARRAYS) {
    const width = name === "S" || name === "P" ? side : strip;
    at[name] = { x, width, middle: x + width / 2 };
    x += width + gap;
  }
  const top = 106; // of the arrays, in a lane
  const height = top + 104 + 56;
  const most = Math.max(own.standard.bytes, own.flash.bytes);
  const box = (name, token, state, from = 0, to = 1) => s("rect", {
    x: at[name].x, y: top + side * from, width: at[name].width, height: Math.max(1.5, side * (to - from)),
    "data-token": token, "data-state": state,
  });
  const arrow = (name, up) => s("path", {
    class: up ? "ft-up" : "ft-down",
    d: up ? `M${at[name].middle} ${top - 4} V66 m-4 6 l4 -6 l4 6` : `M${at[name].middle} 64 V${top - 6} m-4 -6 l4 6 l4 -6`,
  });

  function lane(form, y, title, what, deed, header, shapes, arrows) {
    const bytes = own[form].moved[position];
    return s("g", { transform: `translate(0 ${y})`, "data-form": form },
      text(0, 12, title, { class: "ft-strong" }),
      s("rect", { class: "ft-box ft-chip", x: 1, y: 20, width: WIDTH - 2, height: 44, rx: 5 }),
      text(10, 37, "on chip", { class: "ft-muted" }),
      text(WIDTH - 10, 37, what, { class: "ft-muted", "text-anchor": "end" }),
      text(10, 56, deed, { class: "ft-deed" }),
      arrows.map(([name, up]) => arrow(name, up)),
      s("rect", { class: "ft-box", x: 1, y: 84, width: WIDTH - 2, height: 148, rx: 5 }),
      text(WIDTH / 2, 99, header, { class: "ft-muted ft-halo", "text-anchor": "middle" }),
      shapes,
      ARRAYS.map(([name]) => text(at[name].middle, top + side + 15, name, { "text-anchor": "middle", class: "ft-name" })),
      s("rect", { class: "ft-rail", x: 1, y: 240, width: WIDTH - 2, height: 10, rx: 2 }),
      s("rect", { class: "ft-sofar", "data-form": form, x: 1, y: 240, width: Math.max(bytes ? 1.5 : 0, (WIDTH - 2) * bytes / most), height: 10, rx: 2 }),
      text(WIDTH - 1, 262, `${size(bytes)} moved so far`, { "text-anchor": "end", class: "ft-muted" }));
  }

  // The standard form: what each move touches, and what exists by then.
  const touched = [[], ["Q", "K"], ["S"], ["S"], ["P"], ["P", "V"], ["O"]][position];
  const born = { S: 2, P: 4, O: 6 };
  const reads = position % 2 === 1;
  const [kernel, deed] = position ? STANDARD[position - 1] : ["", ""];
  const step = (form) => size(own[form].moved[position] - own[form].moved[position - 1]);
  const standard = lane("standard", 0, "Standard: S and P travel", kernel,
    position ? `${reads ? "↑" : "↓"} ${deed}: ${step("standard")}` : "nothing yet", "HBM",
    ARRAYS.map(([name, token]) => box(name, token,
      touched.includes(name) ? "moving" : position >= (born[name] ?? 0) ? "stored" : "absent")),
    touched.map((name) => [name, reads]));

  // Flash: rows of Q that are done, the same rows of O, and in S one tile at a time. With L2, K and V leave HBM once.
  const seen = (k) => Math.min(1, own.done[k] * own.tile / n);
  const [before, now] = [position ? seen(position - 1) : 0, seen(position)];
  const active = now > before;
  const streams = active && (!l2 || before === 0);
  const cell = Math.min(side, Math.max(4, side * own.tile / n));
  const shapes = [
    box("Q", "query", "stored"),
    active ? box("Q", "query", "moving", before, now) : [],
    box("K", "key", streams ? "moving" : "stored"),
    box("V", "value", streams ? "moving" : "stored"),
    ["S", "P"].map((name) => [
      now ? s("rect", { x: at[name].x, y: top, width: side, height: side * now, fill: `url(#${hatch})` }) : [],
      box(name, "key", "absent"),
      active && now < 1 ? s("rect", { x: at[name].x + side - cell, y: top + Math.max(0, side * now - cell), width: cell, height: cell, "data-state": "moving" }) : [],
    ]),
    box("O", "value", "absent"),
    now ? box("O", "value", "stored", 0, now) : [],
    active ? box("O", "value", "moving", before, now) : [],
  ];
  const deeds = !position ? "nothing yet" : !active ? "finished before" : streams ? `↑ tiles of Q, K, V  ↓ rows of O: ${step("flash")}`
    : `↑ Q  ↓ O: ${step("flash")}; K, V come from L2`;
  const flash = lane("flash", height + 6, "Flash: S and P, a tile at a time",
    position ? `${whole(own.done[position])} of ${whole(own.visits)} tiles of queries done` : "", deeds, "HBM: never S, never P", shapes,
    [["Q", true, active], ["K", true, streams], ["V", true, streams], ["O", false, active]].filter(([, , moves]) => moves));

  return s("svg", { viewBox: `0 0 ${WIDTH} ${2 * height + 6}`, "aria-hidden": "true", class: "ft-lanes" },
    s("defs", {}, s("pattern", { id: hatch, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      s("rect", { class: "ft-hatch", width: 1.4, height: 6 }))),
    standard, flash);
}

/** The roofline of the card on log axes, and both forms on it. */
function chart(own, card) {
  const [left, right, top, bottom] = [50, WIDTH - 6, 12, 262];
  const [x0, x1, y0, y1] = [0, 6, 12, 15.4]; // powers of ten: FLOP per byte; FLOP per second
  const px = (x) => left + (right - left) * (Math.log10(x) - x0) / (x1 - x0);
  const py = (y) => bottom - (bottom - top) * (Math.log10(y) - y0) / (y1 - y0);
  const grid = [0, 1, 2, 3, 4, 5, 6].map((p) => [
    s("line", { class: "ft-grid", x1: px(10 ** p), x2: px(10 ** p), y1: top, y2: bottom }),
    text(px(10 ** p), bottom + 16, ["1", "10", "100", "1k", "10k", "100k", "1M"][p], { "text-anchor": p === 6 ? "end" : "middle", class: "ft-muted" }),
  ]).concat([12, 13, 14, 15].map((p) => [
    s("line", { class: "ft-grid", x1: left, x2: right, y1: py(10 ** p), y2: py(10 ** p) }),
    text(left - 5, py(10 ** p) + 4, ["1", "10", "100", "1000"][p - 12], { "text-anchor": "end", class: "ft-muted" }),
  ]));
  const roof = s("path", { class: "ft-roof", d: `M${px(1)} ${py(card.hbm_rate)} L${px(own.ridge)} ${py(own.rate)} H${right}` });
  const place = (form) => [px(own[form].intensity), py(own.flop / own[form].seconds)];
  const drop = (form) => {
    const [x, y] = place(form);
    return s("g", { "data-form": form }, s("line", { class: "ft-drop", x1: x, x2: x, y1: y, y2: bottom }));
  };
  const point = (form) => {
    const [x, y] = place(form);
    const labelX = Math.min(right - 24, Math.max(left + 40, x + (form === "standard" ? 42 : 0)));
    return s("g", { "data-form": form },
      form === "standard" ? s("rect", { class: "ft-point", x: x - 6, y: y - 6, width: 12, height: 12 })
        : s("circle", { class: "ft-point", cx: x, cy: y, r: 6.5 }),
      text(labelX, y + (form === "standard" ? 18 : -13), form, { "text-anchor": "middle", class: "ft-point-name ft-halo" }));
  };
  return s("svg", { viewBox: `0 0 ${WIDTH} 300`, role: "img", class: "ft-chart",
    "aria-label": `Roofline of the ${card.name}: ${three(own.standard.intensity)} FLOP per byte for the standard form, `
      + `${three(own.flash.intensity)} for flash; the ridge is at ${three(own.ridge)}.` },
  grid, drop("standard"), drop("flash"),
  text(left + 2, top - 2, "TFLOP/s", { class: "ft-muted ft-halo" }),
  text((left + right) / 2, bottom + 34, "FLOP per byte of HBM traffic", { "text-anchor": "middle", class: "ft-muted" }),
  s("line", { class: "ft-ridge", x1: px(own.ridge), x2: px(own.ridge), y1: py(own.rate), y2: bottom }),
  text(px(own.ridge) + 5, bottom - 7, `ridge: ${three(own.ridge)}`, { class: "ft-muted ft-halo" }),
  roof, point("standard"), point("flash"));
}

// Each experiment starts from the same choice, so that it shows what its text says.
const BASE = { n: 8192, heads: 32, head_dim: 128, dtype: "fp16", card: "H100", l2: true };
const TRY = [
  [["N = 8,192", {}], ", then ", ["16,384", { n: 16384 }],
    ": S, the standard traffic and the arithmetic grow four times, flash's traffic twice. On the roofline one point stays, the other moves. Then ",
    ["65,536", { n: 65536 }], ": look at what must be held. And ", ["512", { n: 512 }], ": what limits flash now?"],
  [["fp32, outside the matrix units", { dtype: "fp32" }], ", then ", ["fp16", {}],
    ": half the bytes, and an arithmetic rate 15 times as high. Compare the two least times: it is the fast matrix units that make the standard form wait for memory."],
  [["L2 serves nothing", { l2: false }], ", then the same with ", ["heads of 256", { l2: false, head_dim: 256 }],
    ": each tile of queries now fetches K and V from HBM again, and flash does about as many FLOP per byte as its tile has queries. A smaller tile means a point further left."],
];

let instances = 0;

function render({ model, el }) {
  const uid = `ft-roofline-${++instances}`;
  const options = model.get("options");
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const names = ["n", "heads", "head_dim", "dtype", "card", "l2", "position"];
  let timer = null;
  let busy = false;
  let said = null; // what a change has led to, until the next step

  const view = () => Object.fromEntries(names.map((name) => [name, model.get(name)]));

  // Several traits can change at once: show and send the result, not the steps.
  function change(values, what = null) {
    busy = true;
    for (const [name, value] of Object.entries(values)) model.set(name, value);
    busy = false;
    said = what && effect(costs(view(), options), what);
    draw();
    model.save_changes();
  }

  function changed() {
    if (busy) return;
    said = null;
    draw();
  }

  const go = (position) => change({ position: Math.max(0, Math.min(position, MOVES)) });

  function stop() {
    clearInterval(timer);
    timer = null;
    draw();
  }

  function run() {
    if (timer) return stop();
    if (still.matches) return go(MOVES);
    if (model.get("position") === MOVES) go(0);
    timer = setInterval(() => {
      const position = model.get("position") + 1;
      if (position >= MOVES) stop();
      go(position);
    }, 1400);
    draw();
  }

  const act = (callback) => () => { if (timer) stop(); callback(); };

  // -- controls
  const field = (name, label, control, extra = "") => h("div", { class: `ft-field ${extra}` }, h("label", { for: `${uid}-${name}` }, label), control);
  const choice = (name, labels, cast, say) => {
    const control = h("select", { id: `${uid}-${name}`, onchange: act(() => change({ [name]: cast(control.value) }, say(control.value))) },
      Object.entries(labels).map(([value, label]) => h("option", { value }, label)));
    return control;
  };
  const powers = options.lengths.map(Math.log2);
  const length = h("input", { id: `${uid}-n`, type: "range", min: Math.max(9, powers[0]), max: Math.min(17, powers[1]), step: 1,
    oninput: act(() => setLength(2 ** Number(length.value))) });
  const lengthShown = h("output", { for: `${uid}-n` });
  const heads = h("input", { id: `${uid}-heads`, type: "number", min: options.heads[0], max: options.heads[1], step: 1, inputmode: "numeric" });
  const headDim = choice("head_dim", Object.fromEntries(options.head_dims.map((d) => [d, String(d)])), Number, (d) => `Heads of ${d}`);
  const dtype = choice("dtype", Object.fromEntries(Object.entries(options.dtypes).map(([name, own]) => [name, own.label])), String, (name) => options.dtypes[name].label);
  const card = choice("card", Object.fromEntries(Object.entries(options.cards).map(([name, own]) => [name, own.name])), String, (name) => options.cards[name].name);
  const l2 = h("input", { id: `${uid}-l2`, type: "checkbox", onchange: act(() => change({ l2: l2.checked }, l2.checked ? "L2 serves repeated reads" : "Every read comes from HBM")) });
  const button = (label, name, callback) => h("button", { type: "button", class: `ft-${name}`, onclick: callback }, label);
  const back = button("Back", "back", act(() => go(model.get("position") - 1)));
  const next = button("Step", "step", act(() => go(model.get("position") + 1)));
  const play = button("Run", "run", run);
  const reset = button("Reset", "reset", act(() => go(0)));
  const controls = h("div", { class: "ft-controls" },
    h("div", { class: "ft-field ft-grow" }, h("label", { for: `${uid}-n` }, "N: ", lengthShown), length),
    field("heads", "Heads", heads, "ft-narrow"), field("head_dim", "Head size d", headDim, "ft-narrow"), field("dtype", "Numbers", dtype), field("card", "Card", card),
    h("label", { class: "ft-check" }, l2, "L2 serves repeats"),
    h("div", { class: "ft-buttons" }, back, next, play, reset));

  // -- the sentence whose N can be changed
  const typed = h("input", { type: "number", class: "ft-inline", "aria-label": "N, tokens", min: options.lengths[0], max: options.lengths[1], step: 64, inputmode: "numeric" });
  const parts = Object.fromEntries(["count", "all", "ratio", "standard", "standardLimit", "flash", "flashLimit"].map((name) => [name, h("strong")]));
  const linked = h("p", { class: "ft-linked" },
    "At ", typed, " tokens, the ", parts.count, " of one layer take ", parts.all, ", ", parts.ratio, " the room of Q. The standard form moves four matrices of that size and takes at least ",
    parts.standard, ", limited by ", parts.standardLimit, "; flash at least ", parts.flash, ", limited by ", parts.flashLimit, ".");

  const setLength = (n) => change({ n }, `N = ${whole(n)}`);
  function typing(input, range, apply, name) {
    const read = () => parseWhole(input.value, range);
    input.addEventListener("input", act(() => { if (read() !== undefined) apply(read()); }));
    input.addEventListener("change", () => {
      if (read() !== undefined) return;
      const was = input.value;
      draw(true);
      sentence.textContent = `“${was}” does not do: ${name} is a whole number from ${whole(range[0])} to ${whole(range[1])}.`;
    });
  }
  typing(typed, options.lengths, setLength, "N");
  typing(heads, options.heads, (count) => change({ heads: count }, `${count} ${count === 1 ? "head" : "heads"}`), "the number of heads");

  // -- picture, table, facts
  const moving = h("div", { class: "ft-moving", tabindex: 0, role: "group",
    "aria-label": `What moves between HBM and the chip, in ${MOVES} moves. Space or right arrow steps, left arrow goes back, Home resets, End finishes.` });
  const states = h("p", { class: "ft-states" },
    h("span", {}, h("i", { class: "ft-swatch", "data-state": "stored" }), "in HBM"),
    h("span", {}, h("i", { class: "ft-swatch", "data-state": "current" }), "moving now"),
    h("span", {}, h("i", { class: "ft-swatch", "data-state": "discarded" }), "made on chip, used, gone"),
    h("span", {}, h("i", { class: "ft-swatch", "data-state": "absent" }), "not in HBM"),
    h("span", { class: "ft-hint" }, "Arrays of one head, to scale; a line is never thinner than it can be seen."));
  const roofline = h("div", { class: "ft-roofline-chart" });
  const body = h("tbody");
  const table = h("table", { class: "ft-costs" },
    h("caption", {}, "All heads of one layer, one request"),
    h("thead", {}, h("tr", {}, h("td", {}), h("th", { scope: "col" }, h("i", { class: "ft-mark", "data-form": "standard" }), "standard"),
      h("th", { scope: "col" }, h("i", { class: "ft-mark", "data-form": "flash" }), "flash"))), body);
  const fact = (name) => ({ name, value: h("strong"), note: h("span", { class: "ft-note" }) });
  const facts = { head: fact("S of one head"), all: fact("S of all heads"), tile: fact("largest tile that fits"), cache: fact("K and V of one head") };
  const bar = (name) => ({ name, fill: h("i"), words: h("span") });
  const budget = [bar("shared"), bar("registers")];
  const numbers = h("ul", { class: "ft-facts" }, Object.values(facts).map((own) =>
    h("li", {}, h("span", {}, own.name), own.value, own.note)));
  facts.tile.note.append(...budget.map((own) => h("span", { class: "ft-budget" }, h("span", { class: "ft-bar-box", "aria-hidden": "true" }, own.fill), own.words)));
  const sentence = h("p", { class: "ft-sentence", role: "status", "aria-live": "polite" });
  const tryThis = h("div", { class: "ft-try" }, h("h4", {}, "Try this"), h("ul", {}, TRY.map((line) =>
    h("li", {}, line.map((part) => (typeof part === "string" ? part
      : h("button", { type: "button", class: "ft-link", onclick: act(() => change({ ...BASE, ...part[1], position: MOVES }, part[0])) }, part[0])))))));

  const root = h("section", { class: "ft ft-roofline", "aria-labelledby": `${uid}-title`, onkeydown: press },
    h("h3", { id: `${uid}-title`, class: "ft-title" }, "What does a stored score matrix cost?"),
    controls, linked,
    h("div", { class: "ft-two" }, h("div", {}, moving, states), h("div", {}, roofline, table)),
    numbers, sentence, tryThis);

  function press(event) {
    const at = event.target;
    if (event.ctrlKey || event.metaKey || event.altKey || at.matches("input, select")) return;
    if (event.key === " " && at.matches("button")) return;
    const position = model.get("position");
    const to = { " ": position + 1, ArrowRight: position + 1, ArrowLeft: position - 1, Home: 0, End: MOVES }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    act(() => go(to))();
  }

  // A field that is being typed in keeps its text as long as it means the same.
  function show(input, value, force) {
    if (force || parseWhole(input.value, [0, Infinity]) !== value) input.value = value;
  }

  function draw(force = false) {
    const now = view();
    const own = costs(now, options);
    const chosen = options.cards[now.card];
    const { position } = now;

    length.value = Math.log2(now.n);
    length.setAttribute("aria-valuetext", `${whole(now.n)} tokens`);
    lengthShown.textContent = `${whole(now.n)} tokens`;
    show(typed, now.n, force);
    show(heads, now.heads, force);
    [headDim.value, dtype.value, card.value, l2.checked] = [now.head_dim, now.dtype, now.card, now.l2];
    // A disabled button would drop the keyboard's focus; these say so and do nothing.
    back.setAttribute("aria-disabled", String(position === 0));
    reset.setAttribute("aria-disabled", String(position === 0));
    next.setAttribute("aria-disabled", String(position === MOVES));
    play.textContent = timer ? "Pause" : "Run";

    parts.count.textContent = now.heads === 1 ? "score matrix" : `${whole(now.heads)} score matrices`;
    parts.all.textContent = size(own.score_all);
    parts.ratio.textContent = times(own.score_all / own.input_all);
    parts.standard.textContent = time(own.standard.seconds);
    parts.standardLimit.textContent = limitText(own.standard.limit);
    parts.flash.textContent = time(own.flash.seconds);
    parts.flashLimit.textContent = limitText(own.flash.limit);

    moving.replaceChildren(lanes(own, position, now, `${uid}-hatch`));
    roofline.replaceChildren(chart(own, chosen));
    body.replaceChildren(...rows(own, position, chosen).map(([name, ...cells]) => h("tr", {}, h("th", { scope: "row" }, name),
      cells.map((cell) => h("td", { class: cell.startsWith("⚠") ? "ft-warn" : null }, cell)))));

    facts.head.value.textContent = size(own.score_head);
    facts.head.note.textContent = `N × N × ${options.dtypes[now.dtype].bytes} bytes`;
    facts.all.value.textContent = size(own.score_all);
    facts.all.note.textContent = own.score_all > chosen.l2_bytes ? "of one layer, for one request"
      : `smaller than L2 (${size(chosen.l2_bytes)}): its trips may end there`;
    facts.tile.value.textContent = `${own.tile} × ${own.tile}`;
    for (const part of budget) {
      const room = part.name === "shared" ? chosen.shared_bytes_block : chosen.register_bytes_each;
      part.fill.style.width = `${100 * own[part.name] / room}%`;
      part.words.textContent = `${part.name}: ${own[part.name] / 1024} of ${room / 1024} KiB`;
    }
    const fits = own.kv_head <= chosen.l2_bytes;
    facts.cache.value.textContent = size(own.kv_head);
    facts.cache.value.classList.toggle("ft-warn", !fits);
    facts.cache.note.textContent = fits ? `L2 has ${size(chosen.l2_bytes)}: it can serve repeats` : `⚠ L2 has ${size(chosen.l2_bytes)}: it cannot serve all repeats`;

    // While it runs by itself, a screen reader hears the last sentence only.
    sentence.setAttribute("aria-live", timer ? "off" : "polite");
    const words = said ?? story(own, position);
    if (sentence.textContent !== words) sentence.textContent = words;
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
