/** Details of an item: its columns, how many items share each part of its Semantic ID, and its neighbours. */

import { Latest, ask } from "./api.js";
import { counted, h, put, sidChips } from "./dom.js";
import { valueText } from "./results.js";
import { queryOf } from "./state.js";

/** @typedef {import("./app.js").App} App */

/**
 * @param {App} app
 * @returns {{ root: HTMLDialogElement, update: () => void }}
 */
export function itemDialog(app) {
  const latest = new Latest();
  const body = h("div", { class: "item-body" });
  const close = h(
    "button",
    { type: "button", class: "icon-button close", "aria-label": "Close", on: { click: () => root.close() } },
    "×",
  );
  /** @type {HTMLDialogElement} */
  const root = h("dialog", { class: "item-dialog", "aria-label": "Details of an item" }, close, body);
  root.addEventListener("close", () => app.state.show && app.go({ show: "" }, { replace: true }));
  root.addEventListener("click", (event) => event.target === root && root.close());
  let shown = "";

  function update() {
    const { show, model } = app.state;
    if (!show) {
      shown = "";
      if (root.open) root.close();
      return;
    }
    if (!root.open) root.showModal();
    if (shown === model + show) return;
    shown = model + show;
    put(body, h("div", { class: "waiting tall" }, h("i"), h("i"), h("i")));
    latest.run(
      (signal) => ask(`/v1/items/${encodeURIComponent(show)}`, { query: { model }, signal }),
      draw,
      (problem) => {
        shown = "";
        put(body, app.problem(problem, update));
      },
    );
  }

  /** @param {any} item */
  function draw(item) {
    const fields = Object.entries(item.fields).filter(([, value]) => valueText(value));
    const canExplain = queryOf(app.state, app.task) !== null;
    put(
      body,
      h("h2", {}, item.title || item.item),
      h(
        "p",
        { class: "ids" },
        sidChips(item.sid),
        h("code", {}, item.item),
        item.new && h("span", { class: "tag" }, "newer than the model"),
      ),
      h(
        "p",
        { class: "actions" },
        canExplain &&
          app.link({ view: "why", item: item.item, show: "" }, { class: "button" }, "Why is it found, or not?"),
        app.link(
          { view: "catalogue", prefix: item.sid.slice(0, -1).join("-"), show: "" },
          { class: "button" },
          "Show in the catalogue",
        ),
        app.task === "recommend" &&
          h(
            "button",
            {
              type: "button",
              on: { click: () => app.go({ history: [...app.state.history, item.item], show: "", view: "search" }) },
            },
            "Add to the history",
          ),
      ),
      fields.length > 0 &&
        h(
          "dl",
          { class: "fields" },
          fields.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, valueText(value)))),
        ),
      h("h3", {}, "Its Semantic ID, code by code"),
      h(
        "ul",
        { class: "prefixes" },
        item.prefixes.map((/** @type {any} */ one) =>
          h(
            "li",
            {},
            app.link({ view: "catalogue", prefix: one.prefix.join("-"), show: "" }, {}, sidChips(one.prefix)),
            h("span", {}, one.items === 1 ? "this item alone" : `${counted(one.items, "item")} share it`),
          ),
        ),
      ),
      item.neighbours.length > 0 && h("h3", {}, "Nearest in the tree"),
      h(
        "ul",
        { class: "neighbours" },
        item.neighbours.map((/** @type {any} */ one) =>
          h(
            "li",
            {},
            app.link({ show: one.item }, {}, one.title || one.item),
            h("span", { class: "muted small" }, `${counted(one.shared_levels, "code")} in common`),
          ),
        ),
      ),
    );
    body.parentElement?.scrollTo(0, 0);
  }

  return { root, update };
}
