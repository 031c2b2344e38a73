// The script of every page: a classic script with no dependency, so that it also runs from file://. It hydrates the
// page's widgets, lets the keyboard scroll a formula that is too wide for the screen, and marks the boxes that hold more
// than is seen.
//
// myst-nb embeds the state of every widget model in the page, and a small JSON script where each one is shown. This
// script reads both, imports the model's ES module from a Blob URL, and calls its `initialize` and `render` with a
// model that has anywidget's interface but no kernel behind it.
(function () {
  "use strict";
  const STATE = 'script[type="application/vnd.jupyter.widget-state+json"]';
  const VIEW = 'script[type="application/vnd.jupyter.widget-view+json"]';

  // Binary traits travel beside the state as base64; put each one back at its path.
  function decodeBuffers(state, buffers) {
    for (const { path, data } of buffers || []) {
      const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
      const owner = path.slice(0, -1).reduce((node, key) => node[key], state);
      owner[path[path.length - 1]] = new DataView(bytes.buffer);
    }
    return state;
  }

  class Model {
    #state;
    #listeners = new Map();
    constructor(state) { this.#state = state; }
    get(name) { return this.#state[name]; }
    set(name, value) {
      const changes = typeof name === "object" ? name : { [name]: value };
      let changed = false;
      for (const [key, item] of Object.entries(changes)) {
        if (Object.is(this.#state[key], item)) continue;
        this.#state[key] = item;
        changed = true;
        this.#emit(`change:${key}`, item);
      }
      if (changed) this.#emit("change");
    }
    on(event, callback) {
      if (!this.#listeners.has(event)) this.#listeners.set(event, new Set());
      this.#listeners.get(event).add(callback);
    }
    off(event, callback) {
      if (event == null) this.#listeners.clear();
      else if (callback == null) this.#listeners.delete(event);
      else this.#listeners.get(event)?.delete(callback);
    }
    #emit(event, value) {
      for (const callback of [...(this.#listeners.get(event) || [])]) callback(this, value);
    }
    save_changes() {} // there is no kernel to tell
    send() {}
  }

  const loaded = new Map(); // source text -> its module, and style sheet -> its element: once a page

  function importText(source) {
    if (!loaded.has(source)) {
      const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
      loaded.set(source, import(url).finally(() => URL.revokeObjectURL(url)));
    }
    return loaded.get(source);
  }

  function addStyle(text) {
    if (!text || loaded.has(text)) return;
    const element = document.createElement("style");
    element.textContent = text;
    document.head.append(element);
    loaded.set(text, element);
  }

  const started = new Map(); // model id -> promise of { model, definition }

  function start(id, entry) {
    if (!started.has(id)) {
      started.set(id, (async () => {
        if (!entry) throw new Error("its state is not in this page");
        const state = decodeBuffers(entry.state, entry.buffers);
        if (!state._esm) throw new Error("it brings no script");
        const model = new Model(state);
        let definition = (await importText(state._esm)).default;
        if (typeof definition === "function") definition = await definition();
        if (!definition?.render) throw new Error("its script exports no render function");
        addStyle(state._css);
        await definition.initialize?.({ model, signal: new AbortController().signal });
        return { model, definition };
      })());
    }
    return started.get(id);
  }

  async function show(script, states) {
    const host = script.closest(".ft-widget") || script.parentElement;
    try {
      const id = JSON.parse(script.textContent).model_id;
      const { model, definition } = await start(id, states[id]);
      const el = document.createElement("div");
      await definition.render({ model, el, signal: new AbortController().signal });
      host.querySelector(".ft-fallback")?.remove();
      host.append(el);
      host.dataset.state = "live";
    } catch (error) {
      // The fallback stays; say in place that and why nothing moves, and let the console have the details.
      const note = document.createElement("p");
      note.className = "ft-failed";
      note.setAttribute("role", "status");
      note.textContent = `⚠ This part of the page could not start: ${error.message || error}. `
        + (host.querySelector(".ft-fallback") ? "What follows is its opening state, as a still." : "");
      host.prepend(note);
      host.dataset.state = "failed";
      console.error("flash-tiles: a widget could not start", error);
    }
  }

  // A formula that overflows scrolls in its own box; a keyboard can scroll a box only if it can stop there. The theme
  // does the same for code and tables.
  function reachFormulas() {
    for (const box of document.querySelectorAll("div.math")) {
      const wide = box.scrollWidth > box.clientWidth;
      box.tabIndex = wide ? 0 : -1;
      if (wide) {
        box.setAttribute("role", "group");
        box.setAttribute("aria-label", "Formula, wider than the screen");
      } else {
        box.removeAttribute("role");
        box.removeAttribute("aria-label");
      }
    }
  }

  // Phones show no scroll bars, so a box that goes on to the right says so: the style sheet lets it fade out there.
  const SCROLLING = ".bd-article :is(pre, div.math, .pst-scrollable-table-container, .text_html)";

  function markBoxes() {
    const mark = (box) => box.toggleAttribute("data-more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
    // Called at once for each, and when a screen turns, a fold or a tab opens, or a formula is set.
    const sizes = new ResizeObserver((changes) => changes.forEach(({ target }) => mark(target)));
    for (const box of document.querySelectorAll(SCROLLING)) {
      sizes.observe(box);
      box.addEventListener("scroll", () => mark(box));
    }
  }

  async function main() {
    // MathJax's script is deferred, too; it may come after this one.
    addEventListener("load", () => window.MathJax?.startup?.promise?.then(reachFormulas));
    addEventListener("resize", reachFormulas);
    markBoxes();
    const states = {};
    for (const script of document.querySelectorAll(STATE)) {
      Object.assign(states, JSON.parse(script.textContent).state);
    }
    await Promise.all([...document.querySelectorAll(VIEW)].map((script) => show(script, states)));
    document.documentElement.dataset.widgets = "ready";
    // A link to something inside a widget had no target when the page opened.
    if (location.hash) document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", main);
  else main();
})();
