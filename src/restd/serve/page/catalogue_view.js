/** The catalogue as its Semantic IDs arrange it: walk down prefixes, see what is below each and what tells it apart. */

import { Latest, ask } from "./api.js";
import { counted, h, hiddenText, hue, moveFocus, number, percent, put } from "./dom.js";
import { itemPicker } from "./item_picker.js";

/** @typedef {import("./app.js").App} App */

const LIMIT = 256;

/**
 * @param {App} app
 * @returns {{ root: HTMLElement, update: () => void }}
 */
export function catalogueView(app) {
  const latest = new Latest();
  const path = h("nav", { class: "crumbs", "aria-label": "Prefix" });
  const body = h("div", { class: "branches", on: { keydown: move } });
  const picker = itemPicker(app, {
    label: "Find an item in the tree",
    placeholder: "Title or id",
    pick: (item) => app.go({ prefix: item.sid.slice(0, -1).join("-"), show: item.item }),
  });
  const root = h(
    "section",
    { class: "catalogue-view", "aria-label": "Catalogue" },
    h("div", { class: "catalogue-top" }, h("div", {}, h("h2", {}, "Catalogue"), path), picker),
    body,
  );
  let shown = "";

  function update() {
    const { prefix, model } = app.state;
    const key = JSON.stringify([prefix, model]);
    if (key === shown) return;
    shown = key;
    drawPath(prefix);
    body.setAttribute("aria-busy", "true");
    latest.run(
      (signal) => ask("/v1/tree", { query: { prefix, model, limit: LIMIT }, signal }),
      draw,
      (problem) => {
        shown = "";
        body.removeAttribute("aria-busy");
        put(body, app.problem(problem, update));
      },
    );
  }

  /** @param {string} prefix */
  function drawPath(prefix) {
    const codes = prefix ? prefix.split("-") : [];
    put(
      path,
      h(
        "ol",
        {},
        h("li", {}, app.link({ prefix: "" }, codes.length ? {} : { "aria-current": "page" }, "All items")),
        codes.map((code, place) =>
          h(
            "li",
            {},
            app.link(
              { prefix: codes.slice(0, place + 1).join("-") },
              {
                class: "chip",
                vars: { "--hue": hue(Number(code)) },
                "aria-label": `Code ${code} at level ${place + 1}`,
                "aria-current": place === codes.length - 1 ? "page" : null,
              },
              code,
            ),
          ),
        ),
      ),
    );
  }

  /** @param {any} node */
  function draw(node) {
    const levels = app.model.layout.sizes.length;
    const hadFocus = body.contains(document.activeElement);
    const most = Math.max(...node.children.map((/** @type {any} */ child) => child.items), 1);
    const where = node.level ? `Below this prefix: ${counted(node.items, "item")}` : counted(node.items, "item");
    const branches = node.children.length + node.hidden;
    const ways = node.children.length
      ? `, in ${counted(branches, "branch", "branches")} at level ${node.level + 1} of ${levels}`
      : "";
    body.removeAttribute("aria-busy");
    put(
      body,
      h("p", { class: "muted" }, `${where}${ways}.`),
      node.children.length > 1 && strip(node),
      node.children.length > 0 &&
        h(
          "ol",
          { class: "branch-list" },
          node.children.map((/** @type {any} */ child) => branch(child, most, node.items)),
        ),
      node.members.length > 0 &&
        h(
          "ul",
          { class: "members" },
          node.members.map((/** @type {any} */ member) =>
            h("li", {}, app.link({ show: member.item }, {}, member.title || member.item), h("code", {}, member.item)),
          ),
        ),
      node.hidden > 0 && h("p", { class: "muted small" }, `${number(node.hidden)} more, smaller, are not listed.`),
    );
    app.announce(`${where}${ways}`);
    if (hadFocus) /** @type {HTMLElement | null} */ (body.querySelector("a"))?.focus();
  }

  /** @param {any} node */
  function strip(node) {
    const pieces = node.children.map((/** @type {any} */ child) =>
      h("span", {
        data: { code: child.code },
        title: `${child.code}: ${counted(child.items, "item")}`,
        vars: { "--share": child.items, "--hue": hue(child.code) },
      }),
    );
    return h("div", { class: "share-strip", "aria-hidden": "true" }, pieces);
  }

  /** Mark a branch in the strip above; null for none. @param {number | null} code */
  function mark(code) {
    const strip = body.querySelector(".share-strip");
    strip?.classList.toggle("one", code !== null);
    for (const piece of /** @type {HTMLElement[]} */ ([...(strip?.children ?? [])])) {
      piece.classList.toggle("marked", Number(piece.dataset.code) === code);
    }
  }

  /** @param {any} child @param {number} most @param {number} all */
  function branch(child, most, all) {
    const isItem = child.items === 1 && child.examples.length === 1;
    const [example] = child.examples;
    const target = isItem ? { show: example.item } : { prefix: child.prefix.join("-") };
    return h(
      "li",
      {
        class: "branch",
        on: {
          mouseenter: () => mark(child.code),
          mouseleave: () => mark(null),
          focusin: () => mark(child.code),
          focusout: () => mark(null),
        },
      },
      h("span", { class: "chip", vars: { "--hue": hue(child.code) }, "aria-hidden": "true" }, String(child.code)),
      h(
        "div",
        { class: "branch-body" },
        app.link(
          target,
          { class: "branch-link" },
          hiddenText(`Code ${child.code}: `),
          isItem
            ? example.title || example.item
            : child.words.slice(0, 4).join(", ") || example?.title || "no words of its own",
        ),
        !isItem &&
          h(
            "p",
            { class: "examples" },
            child.examples.map((/** @type {any} */ one) => h("span", {}, one.title || one.item)),
          ),
      ),
      h(
        "div",
        { class: "branch-count" },
        h("span", { class: "count" }, counted(child.items, "item")),
        h("span", {
          class: "count-bar",
          "aria-hidden": "true",
          title: percent(child.items / all),
          vars: { "--width": `${(100 * child.items) / most}%`, "--hue": hue(child.code) },
        }),
      ),
    );
  }

  /** Up and down among the branches, left to the prefix above. @param {KeyboardEvent} event */
  function move(event) {
    const links = /** @type {HTMLElement[]} */ ([...body.querySelectorAll(".branch-link, .members a")]);
    if (moveFocus(event, links)) return;
    if (event.key === "ArrowLeft" && app.state.prefix)
      app.go({ prefix: app.state.prefix.split("-").slice(0, -1).join("-") });
    else if (event.key === "ArrowRight" && links.includes(/** @type {HTMLElement} */ (document.activeElement)))
      /** @type {HTMLElement} */ (document.activeElement).click();
  }

  return { root, update };
}
