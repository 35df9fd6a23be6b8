// The list of shards: sortable, filterable, what is wrong first.
import { DAMAGED, alertsOfAll, problemBadges } from "./alerts.js";
import { alertBox, badge, h, muted, replaceMain } from "./dom.js";
import { runLink, shardLink, writerLink } from "./links.js";
import { bytes, count, duration, time, timeElement } from "./words.js";

const MAX_OPEN = 6; // alerts that are shown without being asked
const WEIGHTS = { fail: 100, warn: 10, note: 1 };
const COLUMNS = [
  { name: "Shard", key: (s) => s.shard.toLowerCase() },
  { name: "Attention", key: (s) => -s.problems.reduce((sum, problem) => sum + WEIGHTS[problem.urgency], 0) },
  { name: "Upper", key: (s) => s.upper ?? Infinity },
  { name: "Lag", key: (s) => s.lag_ms ?? -1, number: true, show: (s) => (s.lag_ms === null ? "" : duration(s.lag_ms)), title: "How far the upper is behind the clock" },
  { name: "Rows", key: (s) => s.rows ?? -1, number: true, show: (s) => count(s.rows) },
  { name: "Errors", key: (s) => s.errors ?? -1, number: true, show: (s) => count(s.errors), title: "Errors that are alive" },
  { name: "Stash", key: (s) => s.stash ?? -1, number: true, show: (s) => count(s.stash), title: "Records that wait for their time" },
  { name: "Conflicts", key: (s) => s.conflicts_7d ?? Infinity, number: true, show: (s) => count(s.conflicts_7d), title: "Lost appends of the last 7 days" },
  { name: "Size", key: (s) => s.size_bytes, number: true, show: (s) => bytes(s.size_bytes) },
  { name: "Batches", key: (s) => s.batches, number: true, show: (s) => count(s.batches) },
  { name: "Last commit", key: (s) => s.newest_commit?.committed_ms ?? -1 },
  { name: "Next", key: (s) => nextRun(s) ?? Infinity, title: "The next dag run, and maintenance that is due" },
];

const GROUP = { name: "Group", key: (s) => groupOf(s)?.group ?? "", title: "The group whose DAG writes it, and the last run of it there" };

function groupOf(shard) {
  return shard.airflow.dags.find((dag) => dag.group !== null);
}

function nextRun(shard) {
  const runs = shard.airflow.dags.filter((dag) => dag.next_run_ms !== null && !dag.is_paused).map((dag) => dag.next_run_ms);
  return runs.length ? Math.min(...runs) : null;
}

// Shows the list; returns a function that shows newer facts in it and leaves the view as the user has set it.
export function showList(body) {
  const of = (facts) => facts.locations.flatMap((place) => place.shards.map((shard) => ({ ...shard, conn_id: place.conn_id })));
  let shards = of(body);
  const columns = shards.some(groupOf) ? [...COLUMNS, GROUP] : COLUMNS;
  const view = readView(), places = h("div");
  const tbody = h("tbody"), status = h("p", { role: "status", class: "muted" });
  const draw = () => {
    const shown = shards.filter((shard) => isShown(shard, view));
    const { key } = columns[view.sort] ?? COLUMNS[1];
    shown.sort((a, b) => compare(key(a), key(b)) * (view.descending ? -1 : 1) || compare(a.shard, b.shard));
    tbody.replaceChildren(...shown.map((shard) => row(shard, body, columns.includes(GROUP))));
    for (const line of tbody.rows) for (const [i, each] of [...line.cells].entries()) each.dataset.label = columns[i].name;
    status.textContent = `${shown.length} of ${shards.length} shards; ${shards.filter(isUrgent).length} need attention`;
    for (const [i, cell] of heads.entries()) {
      cell.setAttribute("aria-sort", i === view.sort ? (view.descending ? "descending" : "ascending") : "none");
    }
    writeView(view);
  };
  const heads = columns.map((column, i) => {
    const sort = () => { view.descending = view.sort === i && !view.descending; view.sort = i; draw(); };
    return h("th", { scope: "col", class: column.number && "number", title: column.title }, h("button", { type: "button", onclick: sort }, column.name));
  });
  const kinds = ["all kinds", ...new Set(shards.map((shard) => shard.kind))];
  const controls = h("div", { class: "controls", role: "search" },
    h("label", {}, "Filter ", h("input", { type: "search", value: view.text, placeholder: "name, DAG or kind", oninput: (e) => { view.text = e.target.value; draw(); } })),
    h("label", {}, "Kind ", h("select", { onchange: (e) => { view.kind = e.target.selectedIndex ? e.target.value : ""; draw(); } },
      kinds.map((kind) => h("option", { selected: kind === view.kind }, kind)))),
    h("label", {}, h("input", { type: "checkbox", checked: view.attention, onchange: (e) => { view.attention = e.target.checked; draw(); } }), " Needs attention"));
  replaceMain(
    h("h1", {}, "Shards"),
    places,
    shards.length ? [controls, status] : h("p", { class: "empty" }, "No shards yet. A shard appears with the first run of its DAG, which starts paused: unpause it when persist run has shown the rows that you expect."),
    shards.length > 0 && h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Shards" },
      h("table", { class: "list cards" }, h("caption", { class: "hidden" }, "Shards"), h("thead", {}, h("tr", {}, heads)), tbody)),
  );
  const drawAll = (facts) => {
    if (of(facts).length > 0 !== shards.length > 0) location.reload(); // the first shard brings the table
    [body, shards] = [facts, of(facts)];
    const isOpen = places.querySelector("details")?.open;
    places.replaceChildren(...body.locations.flatMap((place) => placeLine(place, body.now_ms)).filter(Boolean));
    if (isOpen !== undefined && places.querySelector("details")) places.querySelector("details").open = isOpen;
    if (shards.length) draw();
  };
  drawAll(body);
  return drawAll;
}

function placeLine(place, now) {
  const where = place.location ? `: ${place.location}` : "";
  return [
    muted("Connection ", h("code", {}, place.conn_id), where),
    place.error && alertBox(`${place.error.kind}: ${place.error.message}`),
    place.alerts === null ? alertBox(DAMAGED) : place.alerts.length > 0 && openAlerts(place, now),
  ];
}

// Many alerts are folded: the list below shows each at its shard.
function openAlerts(place, now) {
  const known = new Set(place.shards.map((shard) => shard.shard));
  const silent = place.alerts.filter((alert) => alert.acknowledged_by !== null).length;
  const said = `${place.alerts.length} open alerts${silent ? `, ${silent} acknowledged` : ""}`;
  return h("details", { open: place.alerts.length <= MAX_OPEN }, h("summary", {}, said), alertsOfAll(place, known, now));
}

function row(shard, body, hasGroup) {
  const now = body.now_ms, commit = shard.newest_commit;
  const place = body.locations.length > 1 && h("span", { class: "muted" }, ` ${shard.conn_id}`);
  return h("tr", { class: isUrgent(shard) && `attention ${shard.problems[0].urgency}` },
    h("th", { scope: "row", class: "name" }, shardLink(shard.conn_id, shard.shard), " ", shard.kind !== "other" && badge(shard.kind),
      shard.forked_from && h("span", { class: "muted" }, ` fork of ${shard.forked_from}`), place),
    h("td", {}, problemBadges(shard.problems), shard.error && h("span", { class: "muted cut", title: shard.error }, ` ${shard.error}`)),
    h("td", {}, shard.seqno < 0 ? "" : timeElement(shard.upper, now),
      shard.airflow.behind_ms > 0 && h("div", { class: "muted" }, `${duration(shard.airflow.behind_ms)} behind its schedule`)),
    COLUMNS.filter((column) => column.number).map((column) => h("td", { class: "number" }, column.show(shard))),
    h("td", {}, commit ? [timeElement(commit.committed_ms, now), h("div", { class: "muted cut", title: commit.writer }, writerLink(shard, commit.writer))] : "never"),
    h("td", {}, next(shard, now)),
    hasGroup && h("td", {}, lastInGroup(groupOf(shard))));
}

function lastInGroup(dag) {
  return dag && [dag.group, dag.last_run_state && h("div", { class: "muted" },
    runLink(dag.dag_id, dag.last_run_id, dag.last_run_state), dag.seconds !== null && `, ${duration(dag.seconds * 1000)}`)];
}

function next(shard, now) {
  const at = nextRun(shard), failed = shard.airflow.dags.find((dag) => dag.last_run_state === "failed");
  return [
    at !== null && h("div", {}, at <= now ? "run due" : `run in ${duration(at - now)}`),
    failed && h("div", {}, runLink(failed.dag_id, failed.last_run_id, "failed run")),
    shard.due_merge && h("div", { class: "muted", title: `of ${shard.due_merge.batches} batches, ${count(shard.due_merge.rows)} rows` }, "merge due"),
  ];
}

// Of a shard's problems the most urgent one is first. What users know already is a note.
function isUrgent(shard) {
  return shard.problems.length > 0 && shard.problems[0].urgency !== "note";
}

function isShown(shard, view) {
  const text = [shard.shard, shard.kind, shard.forked_from ?? "", ...shard.airflow.dags.map((dag) => dag.dag_id), time(shard.upper)].join(" ").toLowerCase();
  return text.includes(view.text.toLowerCase()) && (!view.kind || view.kind === shard.kind) && (!view.attention || isUrgent(shard));
}

function compare(a, b) {
  return a < b ? -1 : a > b ? 1 : 0;
}

function readView() {
  const asked = new URLSearchParams(location.search);
  const sort = Number.parseInt(asked.get("sort") ?? "1", 10);
  return {
    text: asked.get("text") ?? "", kind: asked.get("kind") ?? "", attention: asked.get("attention") === "1",
    sort: [...COLUMNS, GROUP][sort] ? sort : 1, descending: asked.get("descending") === "1",
  };
}

function writeView(view) {
  const asked = new URLSearchParams();
  if (view.text) asked.set("text", view.text);
  if (view.kind) asked.set("kind", view.kind);
  if (view.attention) asked.set("attention", "1");
  if (view.sort !== 1) asked.set("sort", view.sort);
  if (view.descending) asked.set("descending", "1");
  history.replaceState(null, "", asked.size ? `?${asked}` : location.pathname);
}
