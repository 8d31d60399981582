/** A box that finds items by their title or id: type, choose from the list. */

import { Latest, ask } from "./api.js";
import { debounced, h, number, put } from "./dom.js";

/** @typedef {{ item: string, title: string, sid: number[] }} PickedItem */

let pickers = 0;

/**
 * @param {import("./app.js").App} app
 * @param {{ label: string, placeholder: string, pick: (item: PickedItem) => void }} options
 * @returns {HTMLElement}
 */
export function itemPicker(app, { label, placeholder, pick }) {
  const id = `picker-${++pickers}`;
  const latest = new Latest();
  /** @type {any[]} */
  let items = [];
  let active = -1;

  const input = h("input", {
    id,
    type: "search",
    placeholder,
    role: "combobox",
    autocomplete: "off",
    spellcheck: "false",
    "aria-expanded": "false",
    "aria-controls": `${id}-list`,
    "aria-autocomplete": "list",
    on: { input: () => (close(), look()), keydown, blur: () => window.setTimeout(close, 150) },
  });
  const list = h("ul", {
    id: `${id}-list`,
    role: "listbox",
    class: "options",
    hidden: true,
    "aria-label": "Items that match",
  });
  const note = h("p", { class: "options note", hidden: true });

  const look = debounced(() => {
    const text = input.value.trim();
    if (!text) return;
    const query = { contains: text, limit: 8, model: app.state.model };
    latest.run(
      (signal) => ask("/v1/items", { query, signal }),
      (answer) => open(answer.items, answer.total),
      (problem) => say(problem.message),
    );
  }, 160);

  /** @param {any[]} listed @param {number} total */
  function open(listed, total) {
    items = listed;
    active = -1;
    if (!items.length) {
      say("No item has this in its title or id.");
      return;
    }
    put(
      list,
      items.map((item, place) =>
        h(
          "li",
          { role: "option", id: `${id}-${place}`, "aria-selected": "false", on: { mousedown: () => choose(place) } },
          h("span", {}, item.title || item.item),
          h("code", {}, item.item),
        ),
      ),
    );
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
    note.hidden = true;
    app.announce(`${number(total)} items; ${items.length} are listed. Arrow keys choose.`);
  }

  /** @param {string} text */
  function say(text) {
    close();
    note.textContent = text;
    note.hidden = false;
    app.announce(text);
  }

  function close() {
    list.hidden = note.hidden = true;
    items = [];
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }

  /** @param {number} place */
  function choose(place) {
    const item = items[place];
    look.cancel();
    latest.stop();
    input.value = "";
    close();
    pick(item);
  }

  /** @param {KeyboardEvent} event */
  function keydown(event) {
    if (event.key === "Escape" && (items.length || !note.hidden)) {
      event.stopPropagation();
      close();
    } else if (event.key === "Enter" && items.length) {
      event.preventDefault();
      choose(Math.max(active, 0));
    } else if (items.length && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      active = (active + (event.key === "ArrowDown" ? 1 : -1) + items.length) % items.length;
      [...list.children].forEach((row, place) => row.setAttribute("aria-selected", String(place === active)));
      input.setAttribute("aria-activedescendant", `${id}-${active}`);
    }
  }

  return h(
    "div",
    { class: "picker" },
    h("label", { for: id }, label),
    h("div", { class: "picker-box" }, input, list, note),
  );
}
