/** Two searches side by side: two models, or two ways to search with one, and how ranks change between them. */

import { Latest, ask } from "./api.js";
import { counted, h, hiddenText, moveFocus, number, put, sidChips, svg } from "./dom.js";
import { MODE_NAMES, modelName } from "./settings.js";
import { queryOf, searchOptions } from "./state.js";

/** @typedef {import("./app.js").App} App */

const ROW = 76;
const MIDDLE = 100;

/**
 * @param {App} app
 * @returns {{ root: HTMLElement, update: () => void }}
 */
export function compareView(app) {
  const latest = new Latest();
  const heads = h("div", { class: "compare-heads" });
  const body = h("div", { class: "compare-body", on: { keydown: move } });
  const root = h("section", { class: "compare-view", "aria-label": "Two searches side by side" }, heads, body);
  const choices = allChoices(app);
  let shown = "";

  /** Both sides as the address has them, or the most telling pair. */
  function sides() {
    const { left, right } = app.state;
    const known = choices.map((choice) => choice.value);
    const first = known.includes(left) ? left : usualLeft(known);
    return [
      first,
      known.includes(right)
        ? right
        : (known.find((value) => value === "main:hybrid" && value !== first) ??
          known.find((value) => value !== first) ??
          first),
    ];
  }

  function update() {
    const [left, right] = sides();
    put(
      heads,
      select("left", "Left", left),
      h("span", { class: "versus muted", "aria-hidden": "true" }, "to"),
      select("right", "Right", right),
    );
    const query = queryOf(app.state, app.task);
    if (!query) {
      latest.stop();
      shown = "";
      put(
        body,
        h(
          "div",
          { class: "empty" },
          h("h2", {}, "One query, two searches"),
          h("p", {}, "Type a query to see which items rise and which fall."),
        ),
      );
      return;
    }
    const requests = [left, right].map((side) => {
      const [model, mode] = side.split(":");
      return { ...query, ...searchOptions({ ...app.state, heads: "" }, { model, mode }) };
    });
    const key = JSON.stringify(requests);
    if (key === shown) return;
    shown = key;
    body.setAttribute("aria-busy", "true");
    latest.run(
      (signal) => Promise.all(requests.map((request) => ask(`/v1/${app.task}`, { body: request, signal }))),
      (answers) => draw(answers, [left, right]),
      (problem) => {
        shown = "";
        body.removeAttribute("aria-busy");
        put(body, app.problem(problem, update));
      },
    );
  }

  /** @param {"left" | "right"} side @param {string} label @param {string} chosen */
  function select(side, label, chosen) {
    const box = h(
      "select",
      { id: `compare-${side}`, on: { change: () => app.go({ [side]: box.value }) } },
      choices.map(({ value, text }) => h("option", { value, selected: value === chosen }, text)),
    );
    return h("label", { class: "field" }, hiddenText(label), box);
  }

  /** @param {any[]} answers @param {string[]} names */
  function draw(answers, names) {
    const [left, right] = answers.map((answer) => answer.results[0].hits);
    const rankIn = (/** @type {any[]} */ hits) => new Map(hits.map((hit, place) => [hit.item, place + 1]));
    const [inLeft, inRight] = [rankIn(left), rankIn(right)];
    const shared = left.filter((/** @type {any} */ hit) => inRight.has(hit.item)).length;
    const moved = left.filter(
      (/** @type {any} */ hit) => inRight.has(hit.item) && inRight.get(hit.item) !== inLeft.get(hit.item),
    ).length;
    const most = Math.max(left.length, right.length, 1);
    const fresh = right.length - shared;
    const text =
      `${number(shared)} of ${number(most)} items are in both lists, ${number(moved)} at another rank; ` +
      `${number(fresh)} ${fresh === 1 ? "is" : "are"} new on the right.`;
    body.removeAttribute("aria-busy");
    put(
      body,
      h("p", { class: "compare-summary" }, text),
      h(
        "div",
        { class: "slopes", vars: { "--rows": most, "--row": `${ROW}px` } },
        column(left, inRight, "left", names[0]),
        lines(left, inRight, most),
        column(right, inLeft, "right", names[1]),
      ),
    );
    app.announce(text);
  }

  /** @param {any[]} hits @param {Map<string, number>} others @param {"left" | "right"} side @param {string} name */
  function column(hits, others, side, name) {
    const [model, mode] = name.split(":");
    return h(
      "ol",
      { class: `slope-list ${side}`, "aria-label": choices.find((choice) => choice.value === name)?.text ?? side },
      hits.map((hit, place) => {
        const other = others.get(hit.item);
        const change =
          other === undefined
            ? side === "left"
              ? "not on the right"
              : "new"
            : moveText(side === "right" ? other - place - 1 : 0);
        const highlight = (/** @type {boolean} */ isOn) => () => mark(hit.item, isOn);
        return h(
          "li",
          {
            data: { item: hit.item },
            on: {
              mouseenter: highlight(true),
              mouseleave: highlight(false),
              focusin: highlight(true),
              focusout: highlight(false),
            },
          },
          h("span", { class: "rank", "aria-hidden": "true" }, String(place + 1)),
          h(
            "div",
            {},
            app.link(
              { view: "why", item: hit.item, model, mode, heads: "" },
              { class: "hit-title" },
              hit.title || hit.item,
              hiddenText(`, rank ${place + 1}, ${change || "same rank in both"}`),
            ),
            h(
              "p",
              { class: "ids" },
              sidChips(hit.sid),
              change && h("span", { class: `change ${kindOf(side, other, place + 1)}`, "aria-hidden": "true" }, change),
            ),
          ),
        );
      }),
    );
  }

  /** @param {any[]} left @param {Map<string, number>} inRight @param {number} most */
  function lines(left, inRight, most) {
    const middle = (/** @type {number} */ rank) => (rank - 0.5) * ROW;
    return svg(
      "svg",
      {
        class: "slope-lines",
        viewBox: `0 0 ${MIDDLE} ${most * ROW}`,
        preserveAspectRatio: "none",
        "aria-hidden": "true",
      },
      left.map((hit, place) => {
        const [from, to] = [place + 1, inRight.get(hit.item)];
        const kind = kindOf("right", from, to ?? 0);
        const d =
          to === undefined
            ? `M0 ${middle(from)} H14`
            : `M0 ${middle(from)} C${MIDDLE / 2} ${middle(from)} ${MIDDLE / 2} ${middle(to)} ${MIDDLE} ${middle(to)}`;
        return svg("path", { d, class: to === undefined ? "gone" : kind, "data-item": hit.item });
      }),
    );
  }

  /** @param {string} item @param {boolean} isOn */
  function mark(item, isOn) {
    for (const element of body.querySelectorAll("[data-item]")) {
      if (/** @type {HTMLElement} */ (element).dataset.item === item) element.classList.toggle("marked", isOn);
    }
  }

  /** @param {KeyboardEvent} event */
  function move(event) {
    const list = /** @type {HTMLElement} */ (event.target).closest("ol");
    if (!list) return;
    const links = /** @type {HTMLElement[]} */ ([...list.querySelectorAll(".hit-title")]);
    if (moveFocus(event, links) || (event.key !== "ArrowLeft" && event.key !== "ArrowRight")) return;
    const place = links.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    const side = body.querySelector(event.key === "ArrowLeft" ? ".left" : ".right");
    const others = [...(side?.querySelectorAll(".hit-title") ?? [])];
    /** @type {HTMLElement | undefined} */ (others[Math.min(place, others.length - 1)])?.focus();
  }

  return { root, update };
}

/** @param {App} app @returns {{ value: string, text: string }[]} */
function allChoices(app) {
  return Object.entries(app.info.models).flatMap(([name, model]) =>
    model.modes.map((/** @type {"hybrid"} */ mode) => ({
      value: `${name}:${mode}`,
      text: `${modelName(app, name)} · ${MODE_NAMES[mode]}`,
    })),
  );
}

/** What is compared with the best search by default: the other model, or the plain beam. @param {string[]} known */
const usualLeft = (known) =>
  known.find((value) => value === "beside:hybrid") ??
  known.find((value) => value.startsWith("beside")) ??
  "main:generative";

/** @param {number} by */
const moveText = (by) => (by > 0 ? `▲ ${counted(by, "place")}` : by < 0 ? `▼ ${counted(-by, "place")}` : "");

/** @param {string} side @param {number | undefined} from @param {number} to */
function kindOf(side, from, to) {
  if (from === undefined) return side === "left" ? "gone" : "new";
  return to < from ? "up" : to > from ? "down" : "same";
}
