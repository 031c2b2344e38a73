// Tiles of Q against tiles of K and V, with the loops nested either way, and what each order moves to and from HBM.
//
// First the arithmetic: the twin of `count` in tiles.py, compared with it in tests/site. Then what is said about it,
// also pure. Then the picture, which only shows what they return. Every size comes from the model's `options`.

// ---------------------------------------------------------------------------------------------------- arithmetic

export const ORDERS = ["queries", "keys"];
export const PARTS = ["q", "kv", "state", "o"];

const sum = (parts) => Object.values(parts).reduce((all, x) => all + x, 0);

/** The same numbers, under the same names, as `count` in tiles.py, whose docstring explains them. */
export function count({ n, head_dim, dtype, tile_q, tile_k, stages, card, position: asked }, options) {
  const { accumulator, reserved } = options;
  const element = options.dtypes[dtype].bytes;
  const own = options.cards[card];
  const [rows, columns] = [n / tile_q, n / tile_k];
  const visits = rows * columns;
  const position = Math.min(asked, visits);
  const array = n * head_dim * element;
  const [qTile, kvTile] = [tile_q * head_dim * element, 2 * tile_k * head_dim * element];
  const stateTile = tile_q * (head_dim + 2) * accumulator;
  const oTile = qTile + tile_q * accumulator;
  const registers = (tile_q * tile_k + tile_q * head_dim) * accumulator;
  const last = visits - rows; // keys outside: visits before the last tile of keys

  const queriesOutside = (k) => ({
    q: Math.ceil(k / columns) * qTile, kv: k * kvTile, state: 0, o: Math.floor(k / columns) * oTile,
  });
  const keysOutside = (k) => ({
    q: k * qTile, kv: Math.ceil(k / rows) * kvTile,
    state: (Math.max(0, k - rows) + Math.min(k, last)) * stateTile, o: Math.max(0, k - last) * oTile,
  });

  function order(walk, shared, rest) {
    const moved = walk(position);
    const total = sum(walk(visits));
    const fits = shared <= own.shared_bytes_block;
    const blocks = Math.min(Math.floor(own.shared_bytes_each / (shared + reserved)), Math.floor(own.register_bytes_each / registers));
    return { moved, bytes: sum(moved), total, intensity: 4 * n * n * head_dim / total, shared, fits, blocks: fits ? blocks : 0, ...rest };
  }

  // The last visit, as [outer, inner] tile.
  const at = (inner) => (position ? [Math.floor((position - 1) / inner), (position - 1) % inner] : [-1, -1]);
  const [qi, qj] = at(columns);
  const [kj, ki] = at(rows);
  const done = Math.max(0, position - last);
  const begun = (names) => (position ? names : []);
  return {
    rows, columns, visits, position,
    once: 4 * array + n * accumulator,
    registers,
    registers_fit: registers <= own.register_bytes_each,
    queries: order(queriesOutside, qTile + stages * kvTile, {
      programs: rows, i: qi, j: qj,
      loads: begun(qj === 0 ? ["q", "kv"] : ["kv"]),
      stores: begun(qj === columns - 1 ? ["o"] : []),
      unfinished: 0, finished: Math.floor(position / columns),
    }),
    keys: order(keysOutside, kvTile + stages * qTile, {
      programs: 1, i: ki, j: kj,
      loads: begun(["q", ...(ki === 0 ? ["kv"] : []), ...(kj > 0 ? ["state"] : [])]),
      stores: begun(kj === columns - 1 ? ["o"] : ["state"]),
      unfinished: Math.min(position, rows) - done, finished: done,
    }),
  };
}

// --------------------------------------------------------------------------------------------------------- words

const whole = (x) => x.toLocaleString("en-US");
const three = (x) => (x >= 999.5 ? whole(Math.round(x)) : String(Number(x.toPrecision(3))));
const times = (ratio) => `${three(ratio)} times`;
const kib = (bytes) => three(bytes / 1024);

/** Bytes with a binary unit and three significant digits. */
export function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let i = 0;
  while (i < units.length - 1 && bytes >= 999.5) { bytes /= 1024; i += 1; }
  return `${three(bytes)} ${units[i]}`;
}

/** A tile's name with its number, from 1: sub("Q", 0) is Q₁. */
const sub = (letter, index) => letter + String(index + 1).replace(/\d/g, (digit) => "₀₁₂₃₄₅₆₇₈₉"[digit]);
const NAMES = { queries: "Queries outside", keys: "Keys outside" };
const PAPERS = { queries: "FlashAttention-2", keys: "FlashAttention, 2022" };
const LABELS = { q: "Q", kv: "K, V", state: "m, l, o", o: "O, lse" };

/** Tiles by name: `(m, l, o)₃` is the state of the third tile of queries. */
const named = (parts, { i, j }) => parts.map((part) => ({
  q: sub("Q", i), kv: `${sub("K", j)}, ${sub("V", j)}`, state: sub("(m, l, o)", i), o: sub("O", i),
})[part]).join(", ");

/** What the last visit of one order moved: [what came, what went]. */
export function deeds(own, order) {
  const form = own[order];
  if (own.position === 0) return ["nothing yet", ""];
  const kept = order === "queries" ? `${sub("(m, l, o)", form.i)} stays on chip` : "";
  return [`↑ ${named(form.loads, form)}`, form.stores.length ? `↓ ${named(form.stores, form)}` : kept];
}

/** What the visit that led to this position did, in both orders. */
export function story(own) {
  const { position, visits, queries, keys } = own;
  if (position === 0) return "Nothing has moved: Q, K and V lie in HBM. Step to let the first two tiles meet.";
  if (position === visits) {
    return `All ${whole(visits)} visits are made, and both orders have the same O. Queries outside moved ${size(queries.total)}, `
      + `keys outside ${size(keys.total)}; every array once would be ${size(own.once)}.`;
  }
  const one = (order) => {
    const [came, went] = deeds(own, order).map((words) => words.slice(2));
    const form = own[order];
    const stored = form.stores.length ? `and stores ${went}` : `and stores nothing: ${sub("(m, l, o)", form.i)} stays on chip`;
    return `${NAMES[order]} loads ${came} ${stored}.`;
  };
  return `Visit ${whole(position)} of ${whole(visits)}. ${one("queries")} ${one("keys")}`;
}

/** What a change of shape, tile or card has led to. */
export function effect(own, what) {
  const { queries, keys } = own;
  const less = queries.total <= keys.total;
  const [small, large] = less ? [queries, keys] : [keys, queries];
  const ratio = large.total / small.total;
  const compared = ratio < 1.005 ? "about the same" : `${times(ratio)} as much as ${less ? "queries" : "keys"} outside`;
  const over = [
    ...ORDERS.filter((order) => !own[order].fits).map((order) => `shared memory does not hold the tiles with ${order} outside`),
    ...(own.registers_fit ? [] : ["the registers do not hold the scores and o"]),
  ];
  const second = less ? "keys" : "queries";
  return `${what}: in all, ${less ? "queries" : "keys"} outside moves ${size(small.total)}, ${second} outside ${size(large.total)}, ${compared}.`
    + (over.length ? ` ⚠ Too large: ${over.join("; ")}.` : "");
}

/** The rows of the table: [part or "", name, queries outside, keys outside]; a cell that begins with ⚠ is a warning. */
export function rows(own, card) {
  const both = (f) => ORDERS.map((order) => f(own[order]));
  const room = kib(card.shared_bytes_block);
  return [
    ...PARTS.map((part) => [part, LABELS[part], ...both((form) => size(form.moved[part]))]),
    ["", "moved so far", ...both((form) => size(form.bytes))],
    ["", "moved in all", ...both((form) => size(form.total))],
    ["", "FLOP per byte", ...both((form) => three(form.intensity))],
    ["", `shared, of ${room} KiB`, ...both((form) => (form.fits ? kib(form.shared) : `⚠ too much: ${kib(form.shared)}`))],
    ["", "blocks a multiprocessor", ...both((form) => (form.blocks ? whole(form.blocks) : "⚠ none"))],
    ["", "thread blocks a head", ...both((form) => whole(form.programs))],
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

const WIDTH = 340; // of each picture: a phone shows its text at 11 pixels or more
const [LEFT, TOP, SIDE, STRIP] = [62, 84, 196, 22]; // the score matrix, and how wide an array of n rows is drawn
const HEIGHT = TOP + SIDE + 112;
const text = (x, y, words, extra = {}) => s("text", { x, y, ...extra }, words);
const END = { "text-anchor": "end", class: "ft-muted" };
const MIDDLE = { "text-anchor": "middle", class: "ft-name" };

/** One order at one moment: what lies in HBM, what is on chip, what has moved. */
function panel(own, order, most, uid) {
  const form = own[order];
  const { position, columns } = own;
  const { i, j } = form;
  const [tall, wide] = [SIDE / own.rows, SIDE / columns];
  const hatch = `url(#${uid}-hatch)`;
  const box = (part, state, x, y, width, height) => s("rect", {
    x, y, width: Math.max(1.5, width), height: Math.max(1.5, height), "data-part": part, "data-state": state,
  });
  // Down the side, tiles of queries; along the top, tiles of keys. A tile on chip is never thinner than it can be seen.
  const down = (part, state, x, from, to) => box(part, state, x, TOP + tall * from, STRIP, tall * (to - from));
  const across = (part, state, y, from, to) => box(part, state, LEFT + wide * from, y, wide * (to - from), 16);
  const thick = (length) => Math.max(3, length);
  const [xQ, xState, xO] = [32, LEFT + SIDE + 8, LEFT + SIDE + 44];
  const [yQ, xK] = [TOP + tall * (i + 0.5), LEFT + wide * (j + 0.5)];
  const head = (x, y, dx, dy) => s("path", { class: "ft-arrow", d: `M${x} ${y} l${dx * 7 - dy * 4.5} ${dy * 7 - dx * 4.5} l${dy * 9} ${dx * 9} z`, transform: `rotate(180 ${x} ${y})` });

  const gone = [];
  if (position) {
    const solid = (x, y, width, height) => width > 0 && height > 0 && gone.push(s("rect", { x, y, width, height, fill: hatch }));
    if (order === "queries") {
      solid(LEFT, TOP, SIDE, tall * i);
      solid(LEFT, TOP + tall * i, wide * j, tall);
    } else {
      solid(LEFT, TOP, wide * j, SIDE);
      solid(LEFT + wide * j, TOP, wide, tall * i);
    }
  }
  // States and outputs in HBM. Keys outside: the last pass turns states into outputs, from the top.
  const finished = form.finished;
  const stored = [
    down("state", "absent", xState, 0, own.rows),
    form.unfinished ? down("state", "stored", xState, finished, finished + form.unfinished) : [],
    down("o", "absent", xO, 0, own.rows),
    finished ? down("o", "stored", xO, 0, finished) : [],
  ];
  const lines = [];
  if (tall >= 4) for (let k = 1; k < own.rows; k += 1) lines.push(`M${LEFT} ${TOP + tall * k} h${SIDE}`);
  if (wide >= 4) for (let k = 1; k < columns; k += 1) lines.push(`M${LEFT + wide * k} ${TOP} v${SIDE}`);

  const held = position ? [
    box("q", "current", xQ, yQ - thick(tall) / 2, STRIP, thick(tall)),
    ["kv", "kv"].map((part, k) => box(part, "current", xK - thick(wide) / 2, 28 + 22 * k, thick(wide), 16)),
    box("state", "current", xState, yQ - thick(tall) / 2, STRIP, thick(tall)),
    s("rect", { class: "ft-now", "data-state": "current", x: xK - thick(wide) / 2, y: yQ - thick(tall) / 2, width: thick(wide), height: thick(tall) }),
  ] : [];
  const arrows = position ? [
    form.loads.includes("q") ? head(LEFT - 1, yQ, 1, 0) : [],
    form.loads.includes("kv") ? head(xK, TOP - 1, 0, 1) : [],
    form.loads.includes("state") ? head(xState - 8, yQ - 5, -1, 0) : [],
    form.stores.includes("state") ? head(xState, yQ + 5, 1, 0) : [],
    form.stores.includes("o") ? head(xO, yQ, 1, 0) : [],
  ] : [];

  const outer = order === "queries";
  const arrow = (d) => s("path", { class: "ft-loop", d });
  const loops = [
    arrow(`M14 ${TOP} V${TOP + SIDE} m-4 -7 l4 7 l4 -7`),
    text(0, 0, outer ? "outer loop" : "inner loop", { class: outer ? "ft-strong" : "ft-muted", "text-anchor": "middle", transform: `translate(9 ${TOP + SIDE / 2}) rotate(-90)` }),
    arrow(`M${LEFT} ${TOP + SIDE + 12} H${LEFT + SIDE} m-7 -4 l7 4 l-7 4`),
    text(LEFT + SIDE / 2, TOP + SIDE + 27, outer ? "inner loop" : "outer loop", { class: outer ? "ft-muted" : "ft-strong", "text-anchor": "middle" }),
  ];

  const barTop = TOP + SIDE + 78;
  let x = 1;
  const bar = PARTS.map((part) => {
    const width = (WIDTH - 2) * form.moved[part] / most;
    const own = s("rect", { class: "ft-part", "data-part": part, x, y: barTop, width, height: 12 });
    x += width;
    return own;
  });
  const [came, went] = deeds(own, order);
  return s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true", "data-order": order },
    s("defs", {}, s("pattern", { id: `${uid}-hatch`, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      s("rect", { class: "ft-hatch", width: 1.4, height: 6 }))),
    text(0, 13, NAMES[order], { class: "ft-strong" }),
    text(WIDTH, 13, PAPERS[order], END),
    across("kv", "stored", 28, 0, columns), across("kv", "stored", 50, 0, columns), down("q", "stored", xQ, 0, own.rows),
    text(LEFT - 6, 40, "K", { ...END, class: "ft-name" }), text(LEFT - 6, 62, "V", { ...END, class: "ft-name" }),
    text(xQ + STRIP / 2, TOP - 7, "Q", MIDDLE), text(xState + STRIP / 2, TOP - 7, "m, l, o", MIDDLE), text(xO + STRIP / 2, TOP - 7, "O", MIDDLE),
    gone,
    s("path", { class: "ft-grid", d: lines.join(" ") || "M0 0" }),
    s("rect", { class: "ft-scores-box", "data-state": "absent", x: LEFT, y: TOP, width: SIDE, height: SIDE }),
    stored, held, arrows, loops,
    text(1, barTop - 25, came, { class: "ft-deed" }),
    text(1, barTop - 8, went, { class: "ft-deed" }),
    s("rect", { class: "ft-rail", x: 1, y: barTop, width: WIDTH - 2, height: 12, rx: 2 }), bar,
    text(WIDTH - 1, barTop + 28, `${size(form.bytes)} of ${size(form.total)} moved`, END));
}

// Each experiment starts from the same choice, so that it shows what its text says.
const BASE = { n: 1024, head_dim: 128, dtype: "fp16", tile_q: 128, tile_k: 128, stages: 2, card: "H100" };
const TRY = [
  [["128 queries a tile", {}], ", then ", ["64", { tile_q: 64 }], ", then ", ["32", { tile_q: 32 }],
    ": queries outside moves about twice as much each time, because K and V are walked through more often. Keys outside does not notice. Now the other tile, ",
    ["64 keys", { tile_k: 64 }], " or ", ["32 keys", { tile_k: 32 }], ": which order notices?"],
  [["Heads of 256", { head_dim: 256 }], " do not fit into shared memory. With ", ["32 keys a tile", { head_dim: 256, tile_k: 32 }],
    " they do, and queries outside moves not a byte more: only its outer tile decides. ", ["4 stages", { tile_k: 32, stages: 4 }],
    " of such narrow tiles fit as well. They hide the time of loading, not its bytes."],
  [["1,024 tokens", {}], ", then ", ["8,192", { n: 8192 }],
    ": eight times the tokens, about sixty times the bytes, in either order; every array once would be eight times. Follow the row of m, l, o: with queries outside it stays at nothing."],
];
const RUN_TICKS = 40; // a run shows about so many pictures, however many visits there are

let instances = 0;

function render({ model, el }) {
  const uid = `ft-tiles-${++instances}`;
  const options = model.get("options");
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const names = ["n", "head_dim", "dtype", "tile_q", "tile_k", "stages", "card", "position"];
  let timer = null;
  let busy = false;
  let said = null; // what a change has led to, until the next step
  let pinned = null; // the part that stays lit

  const view = () => Object.fromEntries(names.map((name) => [name, model.get(name)]));
  const numbers = () => count(view(), options);

  // Several traits can change at once: show and send the result, not the steps. The walk stays as far as it was.
  function change(values, what = null) {
    const before = numbers();
    busy = true;
    for (const [name, value] of Object.entries(values)) model.set(name, value);
    if (!("position" in values)) {
      model.set("position", Math.round(before.position / before.visits * numbers().visits));
    }
    busy = false;
    said = what && effect(numbers(), what);
    draw();
    model.save_changes();
  }

  function changed() {
    if (busy) return;
    said = null;
    draw();
  }

  const go = (position) => change({ position: Math.max(0, Math.min(position, numbers().visits)) });

  function stop() {
    clearInterval(timer);
    timer = null;
    draw();
  }

  function run() {
    if (timer) return stop();
    const { visits, position } = numbers();
    if (still.matches) return go(visits);
    if (position === visits) go(0);
    const stride = Math.max(1, Math.round(visits / RUN_TICKS));
    timer = setInterval(() => {
      const now = numbers();
      const next = Math.min(now.visits, now.position + stride);
      if (next === now.visits) stop();
      go(next);
    }, 300);
    draw();
  }

  const act = (callback) => () => { if (timer) stop(); callback(); };

  // -- controls
  const field = (name, label, control) => h("div", { class: "ft-field" }, h("label", { for: `${uid}-${name}` }, label), control);
  const choice = (name, labels, cast, say) => {
    const control = h("select", { id: `${uid}-${name}`, onchange: act(() => change({ [name]: cast(control.value) }, say(control.value))) },
      labels.map(([value, label]) => h("option", { value }, label)));
    return control;
  };
  const list = (values, label = String) => values.map((value) => [String(value), label(value)]);
  const n = choice("n", list(options.lengths, whole), Number, (value) => `N = ${whole(Number(value))}`);
  const headDim = choice("head_dim", list(options.head_dims), Number, (value) => `Heads of ${value}`);
  const dtype = choice("dtype", Object.entries(options.dtypes).map(([name, own]) => [name, own.label]), String, (name) => options.dtypes[name].label);
  const stages = choice("stages", list(options.stages), Number, (value) => (value === "1" ? "1 stage" : `${value} stages`));
  const card = choice("card", Object.entries(options.cards).map(([name, own]) => [name, own.name]), String, (name) => options.cards[name].name);
  const slider = (name, what) => {
    const shown = h("output", { for: `${uid}-${name}` });
    const control = h("input", { id: `${uid}-${name}`, type: "range", min: 0, max: options.tiles.length - 1, step: 1, "data-trait": name,
      oninput: act(() => { const value = options.tiles[control.value]; change({ [name]: value }, `${value} ${what} a tile`); }) });
    return { control, shown, what, name };
  };
  const sliders = [slider("tile_q", "queries"), slider("tile_k", "keys")];
  const place = h("input", { id: `${uid}-position`, type: "range", min: 0, step: 1, "data-trait": "position", oninput: act(() => go(Number(place.value))) });
  const placeShown = h("output", { for: `${uid}-position` });
  const button = (label, name, callback) => h("button", { type: "button", class: `ft-${name}`, onclick: callback }, label);
  const back = button("Back", "back", act(() => go(numbers().position - 1)));
  const next = button("Step", "step", act(() => go(numbers().position + 1)));
  const play = button("Run", "run", run);
  const reset = button("Reset", "reset", act(() => go(0)));
  const controls = h("div", { class: "ft-controls" },
    field("n", "N, tokens", n), field("head_dim", "Head size d", headDim), field("stages", "Stages", stages), field("dtype", "Numbers", dtype), field("card", "Card", card));
  const walking = h("div", { class: "ft-controls" },
    sliders.map(({ control, shown, name }) => h("div", { class: "ft-field ft-grow" }, h("label", { for: `${uid}-${name}` }, "Tile: ", shown), control)),
    h("div", { class: "ft-field ft-grow" }, h("label", { for: `${uid}-position` }, "Visit: ", placeShown), place),
    h("div", { class: "ft-buttons" }, back, next, play, reset));

  // -- picture, table, facts
  const pictures = h("div", { class: "ft-orders", tabindex: 0, role: "group" });
  const parts = h("div", { class: "ft-parts", role: "group", "aria-label": "What moves; press to keep it lit" }, PARTS.map((part) =>
    h("button", { type: "button", "data-part": part, "aria-pressed": "false", onclick: () => { pinned = pinned === part ? null : part; light(pinned); } },
      h("i", { class: "ft-part-mark", "data-part": part }), LABELS[part])));
  const swatch = (state, words) => h("span", {}, h("i", { class: "ft-swatch", "data-state": state }), words);
  const states = h("p", { class: "ft-states" }, swatch("stored", "in HBM"), swatch("current", "on chip now"),
    swatch("discarded", "scores made, used, gone"), swatch("absent", "not in HBM"));
  const body = h("tbody");
  const table = h("table", { class: "ft-moves" }, h("caption", {}, "One head: bytes between HBM and the chip"),
    h("thead", {}, h("tr", {}, h("td", {}), ORDERS.map((order) => h("th", { scope: "col" }, NAMES[order])))), body);
  const fact = (name) => ({ name, value: h("strong"), note: h("span", { class: "ft-note" }) });
  const facts = { ratio: fact("the two totals"), once: fact("every array once"), registers: fact("registers of a thread block") };
  const figures = h("ul", { class: "ft-facts" }, Object.values(facts).map((own) => h("li", {}, h("span", {}, own.name), own.value, own.note)));
  const sentence = h("p", { class: "ft-sentence", role: "status", "aria-live": "polite" });
  const tryThis = h("div", { class: "ft-try" }, h("h4", {}, "Try this"), h("ul", {}, TRY.map((line) =>
    h("li", {}, line.map((part) => (typeof part === "string" ? part
      : h("button", { type: "button", class: "ft-link", onclick: act(() => change({ ...BASE, ...part[1] }, part[0])) }, part[0])))))));

  const root = h("section", { class: "ft ft-tiles", "aria-labelledby": `${uid}-title`, onkeydown: press },
    h("h3", { id: `${uid}-title`, class: "ft-title" }, "Which loop should be outside?"),
    controls, walking, pictures, parts, states, sentence, h("div", { class: "ft-under" }, table, figures), tryThis);

  function press(event) {
    const at = event.target;
    if (event.ctrlKey || event.metaKey || event.altKey || at.matches("input, select")) return;
    if (event.key === " " && at.matches("button")) return;
    const { position, visits } = numbers();
    const to = { " ": position + 1, ArrowRight: position + 1, ArrowLeft: position - 1, Home: 0, End: visits }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    act(() => go(to))();
  }

  // -- an array's name, its shape in both pictures, its share of the bar and its row light up together
  function light(part) {
    for (const own of root.querySelectorAll("[data-part]")) own.classList.toggle("ft-lit", own.dataset.part === part);
    for (const chip of parts.children) chip.setAttribute("aria-pressed", String(chip.dataset.part === pinned));
  }
  const pointed = (event) => event.target.closest?.("[data-part]")?.dataset.part;
  root.addEventListener("pointerover", (event) => light(pointed(event) ?? pinned));
  root.addEventListener("pointerleave", () => light(pinned));
  parts.addEventListener("focusin", (event) => light(pointed(event) ?? pinned));
  parts.addEventListener("focusout", () => light(pinned));

  function draw() {
    const now = view();
    const own = numbers();
    const chosen = options.cards[now.card];
    const { position, visits } = own;

    [n.value, headDim.value, dtype.value, stages.value, card.value] = [now.n, now.head_dim, now.dtype, now.stages, now.card];
    for (const { control, shown, what, name } of sliders) {
      control.value = options.tiles.indexOf(now[name]);
      control.setAttribute("aria-valuetext", `${now[name]} ${what}`);
      shown.textContent = `${now[name]} ${what}`;
    }
    place.max = visits;
    place.value = position;
    place.setAttribute("aria-valuetext", `${whole(position)} of ${whole(visits)} visits`);
    placeShown.textContent = `${whole(position)} of ${whole(visits)}`;
    // A disabled button would drop the keyboard's focus; these say so and do nothing.
    back.setAttribute("aria-disabled", String(position === 0));
    reset.setAttribute("aria-disabled", String(position === 0));
    next.setAttribute("aria-disabled", String(position === visits));
    play.textContent = timer ? "Pause" : "Run";

    const most = Math.max(own.queries.total, own.keys.total);
    pictures.setAttribute("aria-label", `Both loop orders, ${whole(visits)} visits. Space or right arrow steps, left arrow goes back, Home resets, End finishes.`);
    pictures.replaceChildren(...ORDERS.map((order) => panel(own, order, most, `${uid}-${order}`)));
    body.replaceChildren(...rows(own, chosen).map(([part, name, ...cells]) => h("tr", { "data-part": part || null },
      h("th", { scope: "row" }, part ? h("i", { class: "ft-part-mark", "data-part": part }) : [], name),
      cells.map((cell) => h("td", { class: cell.startsWith("⚠") ? "ft-warn" : null }, cell)))));

    facts.ratio.value.textContent = `${three(own.keys.total / own.queries.total)} to 1`;
    facts.ratio.note.textContent = "keys outside to queries outside";
    facts.once.value.textContent = size(own.once);
    facts.once.note.textContent = `${times(own.queries.total / own.once)} that with queries outside`;
    facts.registers.value.textContent = `${own.registers_fit ? "" : "⚠ too much: "}${kib(own.registers)} of ${kib(chosen.register_bytes_each)} KiB`;
    facts.registers.value.classList.toggle("ft-warn", !own.registers_fit);
    facts.registers.note.textContent = "a tile of scores and o, in float32";

    // While it runs by itself, a screen reader hears the last sentence only.
    sentence.setAttribute("aria-live", timer ? "off" : "polite");
    const words = said ?? story(own);
    if (sentence.textContent !== words) sentence.textContent = words;
    light(pinned);
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
