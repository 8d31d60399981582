/** The dialog that asks for a key, where the service needs one. */

import { key } from "./api.js";
import { h } from "./dom.js";

/**
 * Ask for a key and keep it for this tab.
 * @param {string} message why one is needed
 * @param {() => void} done called once there is a key
 */
export function openKeyDialog(message, done) {
  if (document.querySelector("dialog.key-dialog")) return;
  const input = h("input", { type: "password", id: "key", autocomplete: "off", spellcheck: "false", required: true });
  const form = h(
    "form",
    {
      method: "dialog",
      on: {
        submit: (/** @type {Event} */ event) => {
          event.preventDefault();
          if (!input.value.trim()) return;
          key.set(input.value.trim());
          dialog.close();
          done();
        },
      },
    },
    h("h2", { id: "key-title" }, "This service needs a key"),
    h("p", { class: "muted" }, message),
    h("label", { for: "key" }, "Key"),
    input,
    h(
      "p",
      { class: "small muted" },
      "It stays in this tab: it is not part of any address, and gone when you close the tab.",
    ),
    h("div", { class: "actions" }, h("button", { type: "submit", class: "primary" }, "Continue")),
  );
  const dialog = h("dialog", { class: "key-dialog", "aria-labelledby": "key-title" }, form);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  input.focus();
}
