/** The beam as a tree: a column for every level, the item's path highlighted, pruned prefixes grey. */

import { chooseColumns } from "./beam_nodes.js";
import { counted, h, hue, number, put, svg } from "./dom.js";

/** @typedef {import("./app.js").App} App */
/** @typedef {import("./beam_nodes.js").BeamNode} BeamNode */

const ROW = 48;
const NODE = 40;
const HEAD = 52;
const ROOT = 18;
const NARROWEST = 184;
const FEW = { survivors: 8, pruned: 2 };
const MANY = { survivors: 45, pruned: 15 };

/**
 * @param {App} app
 * @param {any} tree as the service has it
 * @param {number[]} sid of the item
 * @returns {HTMLElement}
 */
export function beamTree(app, tree, sid) {
  const detail = h(
    "p",
    { class: "beam-detail", "aria-hidden": "true" },
    "Point at a prefix, or move with the arrow keys, to read more. Click to open it in the catalogue.",
  );
  const drawing = h("div", { class: "beam-drawing", on: { keydown: move } });
  const scroll = h(
    "div",
    { class: "beam scroll", role: "region", "aria-label": "Beam, level by level", tabindex: "0" },
    drawing,
  );
  const more = h(
    "button",
    { type: "button", class: "quiet", "aria-expanded": "false", on: { click: toggle } },
    "Show more prefixes",
  );
  const root = h("div", { class: "beam-box" }, scroll, h("div", { class: "beam-foot" }, detail, more));
  const byId = new Map(
    tree.levels
      .flatMap((/** @type {any} */ level) => level.nodes)
      .map((/** @type {BeamNode} */ node) => [node.id, node]),
  );
  let amount = FEW;
  let width = 0;

  function toggle() {
    amount = amount === FEW ? MANY : FEW;
    more.setAttribute("aria-expanded", String(amount === MANY));
    more.textContent = amount === MANY ? "Show fewer prefixes" : "Show more prefixes";
    draw();
  }

  function draw() {
    const columns = chooseColumns(tree.levels, amount.survivors, amount.pruned);
    const gap = width < 720 ? 58 : 76;
    const column = Math.max(NARROWEST, Math.floor((width - ROOT - gap * columns.length - 2) / columns.length));
    const left = (/** @type {number} */ place) => ROOT + gap + place * (column + gap);
    const rows = Math.max(...columns.map((one) => one.nodes.length), 1);
    const height = HEAD + rows * ROW;
    /** @type {Map<number | null, number>} */
    const heights = new Map([[null, HEAD + NODE / 2]]);
    for (const one of columns) one.nodes.forEach((node, row) => heights.set(node.id, HEAD + row * ROW + NODE / 2));
    const edges = columns.flatMap((one, place) =>
      one.nodes.map((node) => edge(node, place ? left(place - 1) + column : ROOT - 4, left(place), heights)),
    );
    edges.sort((one, other) => Number(one.dataset.path) - Number(other.dataset.path));
    const whole = left(columns.length) - gap + 1;
    put(
      drawing,
      svg(
        "svg",
        { width: whole, height, viewBox: `0 0 ${whole} ${height}`, class: "beam-edges", "aria-hidden": "true" },
        svg("circle", { cx: ROOT - 9, cy: HEAD + NODE / 2, r: 5, class: "beam-root" }),
        edges,
      ),
      columns.map((one, place) =>
        h(
          "section",
          {
            class: "beam-column",
            vars: { "--left": `${left(place)}px`, "--column": `${column}px` },
            "aria-label": `Level ${one.level}`,
          },
          heading(one),
          h(
            "ol",
            {},
            one.nodes.map((node) => h("li", {}, box(node, place === columns.length - 1))),
          ),
        ),
      ),
    );
    drawing.style.setProperty("--height", `${height}px`);
    drawing.style.setProperty("--whole", `${whole}px`);
  }

  /** @param {BeamNode} node @param {number} from @param {number} to @param {Map<number | null, number>} heights */
  function edge(node, from, to, heights) {
    const [y1, y2] = [heights.get(node.parent) ?? 0, heights.get(node.id) ?? 0];
    const bend = (to - from) / 2;
    const parent = /** @type {BeamNode | undefined} */ (byId.get(node.parent));
    const step = node.score - (parent?.score ?? 0);
    const kind = node.on_path ? (node.kept ? "path" : "path lost") : node.kept ? "kept" : "pruned";
    return svg(
      "g",
      { class: `edge ${kind}`, data: { path: node.on_path ? 1 : 0 } },
      svg("path", { d: `M${from} ${y1} C${from + bend} ${y1} ${to - bend} ${y2} ${to} ${y2}` }),
      svg("text", { x: to - 5, y: y2 - 5, "text-anchor": "end" }, number(step, 2)),
    );
  }

  /** @param {import("./beam_nodes.js").BeamColumn} one */
  function heading(one) {
    const hidden = [
      one.keptHidden > 0 && `${number(one.keptHidden)} kept`,
      one.prunedHidden > 0 && `${number(one.prunedHidden)} pruned`,
    ].filter(Boolean);
    return h(
      "header",
      {},
      h("h4", {}, `Level ${one.level}`),
      h(
        "p",
        {},
        `${number(one.survivors)} of ${number(one.candidates)} kept`,
        hidden.length > 0 &&
          h(
            "span",
            { title: `Not drawn: ${hidden.join(", ")}` },
            ` · ${number(one.keptHidden + one.prunedHidden)} not drawn`,
          ),
      ),
    );
  }

  /** @param {BeamNode} node @param {boolean} isLeaf */
  function box(node, isLeaf) {
    const status = node.kept ? "kept" : "pruned";
    const text =
      `Prefix ${node.prefix.join("-")}, ${status}: number ${number(node.rank)} of its level, ` +
      `score ${number(node.score, 3)}, ` +
      `${counted(node.items, "item")} below it, such as ${node.example}.`;
    const isMine = node.on_path && node.prefix.every((code, level) => code === (sid[level] ?? 0));
    const tell = () => (detail.textContent = text);
    return app.link(
      { view: "catalogue", prefix: node.prefix.join("-") },
      {
        class: `node ${status}${isMine ? " path" : ""}`,
        "aria-label": `${isMine ? "The item's path. " : ""}${text}`,
        data: { id: node.id, parent: node.parent ?? "" },
        on: { focus: tell, mouseenter: tell },
      },
      h("span", { class: "chip", vars: { "--hue": hue(node.code) } }, String(node.code)),
      h("span", { class: "node-title" }, node.example),
      h(
        "span",
        { class: "node-note" },
        isLeaf && node.items === 1 ? `rank ${number(node.rank)}` : counted(node.items, "item"),
      ),
      h("span", { class: "node-score" }, number(node.score, 2)),
    );
  }

  /** Up and down within a level, left to the parent, right to the first child. @param {KeyboardEvent} event */
  function move(event) {
    const active = /** @type {HTMLElement} */ (document.activeElement);
    if (!active?.classList.contains("node")) return;
    const column = [...(active.closest("ol")?.querySelectorAll(".node") ?? [])];
    const place = column.indexOf(active);
    const next = {
      ArrowUp: () => column[place - 1],
      ArrowDown: () => column[place + 1],
      ArrowLeft: () => drawing.querySelector(`.node[data-id="${active.dataset.parent}"]`),
      ArrowRight: () =>
        drawing.querySelector(`.node.path[data-parent="${active.dataset.id}"]`) ??
        drawing.querySelector(`.node[data-parent="${active.dataset.id}"]`),
    }[event.key];
    if (!next) return;
    event.preventDefault();
    /** @type {HTMLElement | null | undefined} */ (next())?.focus();
  }

  new ResizeObserver(([entry]) => {
    if (Math.abs(entry.contentRect.width - width) < 2) return;
    width = entry.contentRect.width;
    draw();
  }).observe(scroll);
  return root;
}
