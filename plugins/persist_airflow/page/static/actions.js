// What `persist_actions` can do: a dialog with the conf. Airflow's own form starts it, with its roles and its audit log.
// Airflow 3.3 has no address for a form that is filled in, so the conf goes over the clipboard.
import { h } from "./dom.js";
import { dagLink } from "./links.js";

export const ACTIONS = "persist_actions";

export function canAct(shard) {
  return shard.airflow.action_dags.includes(ACTIONS);
}

// A button for an action on this shard; nothing for users who do not see the DAG.
export function actionButton(shard, text, action, fields = {}, note = "") {
  if (!canAct(shard)) return null;
  return h("button", { type: "button", class: "action", onclick: () => ask(text, { action, shard: shard.shard, ...fields }, note) }, text);
}

function ask(title, conf, note) {
  const text = h("textarea", { rows: Object.keys(conf).length + 3, spellcheck: "false", "aria-label": "Configuration JSON" });
  text.value = JSON.stringify(conf, null, 2);
  const said = h("p", { role: "status", class: "muted" });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text.value);
      said.textContent = "Copied.";
    } catch {
      text.select(); // a browser that does not let a frame write: the user presses Ctrl+C
      said.textContent = "Press Ctrl+C to copy.";
    }
  };
  const dialog = h("dialog", { "aria-label": title },
    h("h2", {}, title), note && h("p", {}, note), text,
    h("p", {}, "Copy it, open ", dagLink(ACTIONS), ", press Trigger there, and paste it into “Configuration JSON” under the advanced options. Airflow's roles decide who may."),
    said,
    h("div", { class: "controls" }, h("button", { type: "button", onclick: copy }, "Copy"), h("button", { type: "button", onclick: () => dialog.close() }, "Close")));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
