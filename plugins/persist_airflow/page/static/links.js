// Links to this page and to Airflow's pages. All are relative to this page, which lies one level below Airflow's UI.
import { h } from "./dom.js";

export function shardLink(connId, shard) {
  return h("a", { href: `?${new URLSearchParams({ conn_id: connId, shard })}` }, shard);
}

export function dagLink(dagId) {
  return airflowLink(`../dags/${encodeURIComponent(dagId)}`, dagId);
}

function airflowLink(href, text) {
  return h("a", { href, "data-airflow": true, target: "_top" }, text);
}

// The list of assets, filtered by the shard's: its own page has a number that only Airflow knows.
export function assetLink(connId, shard) {
  const uri = `persist://${connId.replaceAll("/", "%2F").replaceAll("#", "%23")}/${shard}`;
  return airflowLink(`../assets?${new URLSearchParams({ name_pattern: uri })}`, uri);
}

export function runLink(dagId, runId, text) {
  return airflowLink(`../dags/${encodeURIComponent(dagId)}/runs/${encodeURIComponent(runId)}`, text);
}

// A commit's writer is `dag_id/run_id` if a DAG of Airflow wrote it, else the name of a program.
export function writerLink(shard, writer) {
  const at = writer.indexOf("/"), dagId = writer.slice(0, at);
  return at > 0 && shard.airflow.dags.some((dag) => dag.dag_id === dagId) ? runLink(dagId, writer.slice(at + 1), writer) : writer;
}

// Airflow shows this page in a sandboxed frame, which may not navigate the window around it. So a link to another page
// of Airflow is followed by a link in Airflow's own document.
export function keepLinksInAirflow() {
  if (window.parent === window) return;
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[data-airflow]");
    if (!link || event.defaultPrevented || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey) return;
    try {
      const outside = window.parent.document.createElement("a");
      outside.href = link.href;
      event.preventDefault();
      outside.click();
    } catch { /* a frame of another origin: the browser decides */ }
  });
}
