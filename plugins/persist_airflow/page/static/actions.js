// What DAGs of actions can do: a dialog with the conf. Airflow's own form starts it, with its roles and its audit log.
// Airflow 3.3 has no address for a form that is filled in, so the conf goes over the clipboard.
import { h } from "./dom.js";
import { dagLink } from "./links.js";

// A button for an action on this shard; nothing for users who see no DAG that may do it.
export function actionButton(shard, text, action, fields = {}, note = "") {
  const dags = shard.airflow.action_dags.filter((each) => each.actions.includes(action));
  if (!dags.length) return null;
  return h("button", { type: "button", class: "action", onclick: () => ask(text, dags, { action, shard: shard.shard, ...fields }, note) }, text);
}

function ask(title, dags, conf, note) {
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
    h("p", {}, "Copy it, open ", dags.map(({ dag_id }, i) => [i > 0 && " or ", dagLink(dag_id)]), ", press Trigger there, and paste it into “Configuration JSON” under the advanced options. Airflow's roles decide who may."),
    said,
    h("div", { class: "controls" }, h("button", { type: "button", onclick: copy }, "Copy"), h("button", { type: "button", onclick: () => dialog.close() }, "Close")));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
