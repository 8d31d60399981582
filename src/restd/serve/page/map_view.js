/** The catalogue as a map: items where their latents are, the query among them, results as rings. */

import { Latest, ask } from "./api.js";
import { counted, h, hue, number, percent, put, sidChips } from "./dom.js";
import { MapCanvas } from "./map_canvas.js";
import { queryOf, searchOptions } from "./state.js";
import { onTheme } from "./theme.js";

/** @typedef {import("./app.js").App} App */

const POINTS = 5000;
const LISTED = 8;
const CODES = 40;

/**
 * @param {App} app
 * @returns {{ root: HTMLElement, update: () => void }}
 */
export function mapView(app) {
  const mapping = new Latest();
  const searching = new Latest();
  const canvas = h("canvas", { class: "map", tabindex: "0", role: "img", "aria-label": "Map of the items" });
  const tip = h("div", { class: "map-tip", hidden: true, "aria-hidden": "true" });
  const caption = h("p", { class: "muted small", id: "map-caption" });
  const side = h("div", { class: "map-side" });
  const map = new MapCanvas(canvas);
  const button = (/** @type {string} */ sign, /** @type {string} */ label, /** @type {() => void} */ click) =>
    h("button", { type: "button", class: "icon-button", "aria-label": label, title: label, on: { click } }, sign);
  const tools = h(
    "div",
    { class: "map-tools" },
    button("+", "Zoom in", () => map.zoomAt(1.5)),
    button("−", "Zoom out", () => map.zoomAt(1 / 1.5)),
    button("⤢", "Show everything", () => map.reset()),
  );
  const figure = h(
    "figure",
    { class: "map-figure" },
    h("div", { class: "map-box" }, canvas, tip, tools),
    h("figcaption", {}, caption),
  );
  const box = h("div", { class: "map-body" }, figure, side);
  const notice = h("div", { class: "map-notice" });
  const root = h(
    "section",
    { class: "map-view", "aria-label": "Map" },
    h("h2", { class: "visually-hidden" }, "Map"),
    notice,
    box,
  );
  let shown = "";
  let asked = "";
  /** @type {any[]} */
  let branches = [];
  /** @type {{ hits: any[], text: string }} */
  let results = { hits: [], text: "" };

  onTheme(() => map.draw());
  listen();

  function update() {
    const { model } = app.state;
    if (shown !== model) {
      shown = model;
      asked = "";
      const both = (/** @type {AbortSignal} */ signal) =>
        Promise.all([
          ask("/v1/map", { query: { model, points: POINTS }, signal }),
          ask("/v1/tree", { query: { model, limit: 256, examples: 1 }, signal }),
        ]);
      mapping.run(both, draw, (problem) => {
        shown = "";
        put(notice, app.problem(problem, update));
      });
    }
    updateQuery();
  }

  function updateQuery() {
    const query = queryOf(app.state, app.task);
    const body = query && { ...query, ...searchOptions(app.state) };
    const key = JSON.stringify(body);
    if (key === asked) return;
    asked = key;
    if (!query) {
      searching.stop();
      setResults([], null, "");
      return;
    }
    const place = { ...query, model: app.state.model };
    searching.run(
      (signal) =>
        Promise.all([ask("/v1/map/query", { body: place, signal }), ask(`/v1/${app.task}`, { body, signal })]),
      ([point, answer]) => {
        const text = point.absent ?? `The cross is the query: ${point.source}.`;
        setResults(answer.results[0].hits, point.absent ? null : point, text);
      },
      (problem) => {
        asked = "";
        setResults([], null, `${problem.title}. ${problem.message}`);
      },
    );
  }

  /** @param {any[]} hits @param {{ x: number, y: number } | null} point @param {string} text */
  function setResults(hits, point, text) {
    results = { hits, text };
    map.query = point;
    map.ranks = new Map(hits.slice(0, 20).map((hit, place) => [hit.item, place + 1]));
    map.draw();
    drawSide();
  }

  /** @param {any[]} answers */
  function draw([answer, root]) {
    branches = root.children;
    put(notice, answer.absent && h("p", { class: "notice" }, `There is no map: ${answer.absent}`));
    box.hidden = Boolean(answer.absent);
    map.show(
      answer.points.map((/** @type {number[]} */ [x, y, code], /** @type {number} */ place) => ({
        x,
        y,
        code,
        item: answer.items[place],
        title: answer.titles[place],
      })),
    );
    const sampled = answer.sampled ? ", a sample of the catalogue" : "";
    const [across, up] = answer.shares;
    caption.textContent =
      `${counted(answer.points.length, "item")}${sampled}, on the ${answer.axes} ` +
      `(${percent(across, 0)} and ${percent(up, 0)} of their variance). ` +
      "Equal colours share the first code. Scroll or use + and − to zoom, drag or use the arrow keys to move.";
    canvas.setAttribute(
      "aria-label",
      `Map of ${counted(answer.points.length, "item")}. Lists beside it have the same.`,
    );
    drawSide();
  }

  function drawSide() {
    put(
      side,
      results.text && h("p", { class: "small" }, results.text),
      results.hits.length > 0 && h("h3", {}, "Results"),
      results.hits.length > 0 &&
        h(
          "ol",
          { class: "map-list" },
          results.hits
            .slice(0, LISTED)
            .map((hit) =>
              h(
                "li",
                { on: hover(hit.item) },
                app.link({ show: hit.item }, {}, hit.title || hit.item),
                sidChips(hit.sid),
              ),
            ),
        ),
      h("h3", {}, "First codes"),
      h(
        "ul",
        { class: "code-list" },
        branches.slice(0, CODES).map(({ code, items, words, examples }) => {
          const name = words.slice(0, 3).join(", ") || examples[0]?.title || "";
          const press = () => {
            map.code = map.code === code ? null : code;
            map.draw();
            for (const other of side.querySelectorAll("[aria-pressed]"))
              other.setAttribute(
                "aria-pressed",
                String(Number(/** @type {HTMLElement} */ (other).dataset.code) === map.code),
              );
          };
          return h(
            "li",
            {},
            h(
              "button",
              {
                type: "button",
                class: "value",
                "aria-pressed": String(map.code === code),
                data: { code },
                title: name,
                on: { click: press },
              },
              h("span", { class: "chip", vars: { "--hue": hue(code) } }, String(code)),
              h("span", { class: "value-name" }, name),
              h("span", { class: "count" }, number(items)),
            ),
          );
        }),
      ),
      branches.length > CODES && h("p", { class: "muted small" }, `The largest of ${number(branches.length)}.`),
    );
  }

  /** @param {string} item */
  function hover(item) {
    const set = (/** @type {boolean} */ isOn) => () => {
      map.meant = isOn ? (map.points.find((point) => point.item === item) ?? null) : null;
      map.draw();
    };
    return { mouseenter: set(true), mouseleave: set(false), focusin: set(true), focusout: set(false) };
  }

  function listen() {
    /** @type {{ x: number, y: number, moved: boolean } | null} */
    let drag = null;
    canvas.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => {
      drag = { x: event.offsetX, y: event.offsetY, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
      const { offsetX: x, offsetY: y } = event;
      if (drag && (drag.moved || Math.hypot(x - drag.x, y - drag.y) > 4)) {
        map.shift = { x: map.shift.x + x - drag.x, y: map.shift.y + y - drag.y };
        drag = { x, y, moved: true };
        map.draw();
        return;
      }
      point(x, y);
    });
    canvas.addEventListener("pointerup", () => {
      if (drag && !drag.moved && map.meant) app.go({ show: map.meant.item });
      drag = null;
    });
    canvas.addEventListener("pointerleave", () => point(-99, -99));
    canvas.addEventListener(
      "wheel",
      (/** @type {WheelEvent} */ event) => {
        event.preventDefault();
        map.zoomAt(event.deltaY < 0 ? 1.2 : 1 / 1.2, event.offsetX, event.offsetY);
      },
      { passive: false },
    );
    canvas.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      const step = { ArrowLeft: [40, 0], ArrowRight: [-40, 0], ArrowUp: [0, 40], ArrowDown: [0, -40] }[event.key];
      if (step) {
        map.shift = { x: map.shift.x + step[0], y: map.shift.y + step[1] };
        map.draw();
      } else if (event.key === "+" || event.key === "=") map.zoomAt(1.5);
      else if (event.key === "-") map.zoomAt(1 / 1.5);
      else if (event.key === "0") map.reset();
      else return;
      event.preventDefault();
    });
  }

  /** Show what is under the pointer. @param {number} x @param {number} y */
  function point(x, y) {
    const near = map.near(x, y);
    tip.hidden = !near;
    canvas.classList.toggle("pointing", Boolean(near));
    if (near) {
      put(
        tip,
        h("span", { class: "chip", vars: { "--hue": hue(near.code) } }, String(near.code)),
        near.title || near.item,
      );
      const [px, py] = map.place(near);
      tip.style.setProperty("--x", `${Math.min(px, canvas.clientWidth - 220)}px`);
      tip.style.setProperty("--y", `${py}px`);
    }
    if (near === map.meant) return;
    map.meant = near;
    map.draw();
  }

  return { root, update };
}
