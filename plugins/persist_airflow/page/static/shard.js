// One shard: what is wrong first, then tabs. Facts are read again every half minute while the page is looked at.
import { DAMAGED, alertsOfShard, problemBadges } from "./alerts.js";
import { get } from "./api.js";
import { alertBox, badge, h, muted, replaceMain, section } from "./dom.js";
import { definition } from "./definition.js";
import { historyParts } from "./history.js";
import { overview } from "./overview.js";
import { every } from "./refresh.js";
import { rowsPanel } from "./rows.js";
import { storageParts } from "./storage.js";
import { tabs } from "./tabs.js";
import { clock, count } from "./words.js";

// A shard with less than this shows its rows without being asked. 1,000 batches cost the server a second.
const AUTOMATIC_ROWS = 200000, AUTOMATIC_BATCHES = 500;
const READS = ["rows", "changes", "differences", "errors"];

export async function showShard(connId, name) {
  const asked = { conn_id: connId, shard: name };
  const ask = (what) => get(what, asked).catch((error) => ({ failed: error.message }));
  const load = async () => {
    const [shard, commits, days] = await Promise.all([get("shard", asked), ask("commits"), ask("days")]);
    return { shard, commits, days };
  };
  let facts = await load();
  const header = h("div");
  const panels = {}; // those that show newer facts by themselves, once they are made
  const showRows = (what) => {
    const { shard, commits } = facts;
    if (!shard.schema) return muted("Nothing has been committed yet.");
    if (!shard.shows_rows) return muted("Your roles, or the setting [persist] page_rows, do not show rows.");
    const panel = rowsPanel(shard, commits.commits ?? [], what);
    panels[what] = panel;
    if (wanted !== null) panel.pick(wanted);
    else if (shard.updates <= AUTOMATIC_ROWS && shard.batches <= AUTOMATIC_BATCHES) panel.load();
    wanted = null;
    return panel.element;
  };
  let wanted = null; // the time of the rows that a chart or the calendar has asked for
  const pick = (asOf) => {
    wanted = asOf;
    open("rows"); // makes the panel if there is none, or if it is older than the newest commit
    if (wanted !== null) panels.rows?.pick(wanted);
    wanted = null;
  };
  const pickOrNull = () => (facts.shard.shows_rows && facts.shard.schema ? pick : null);
  const showOverview = () => {
    panels.overview = overview();
    panels.overview.update(facts, pickOrNull());
    return panels.overview.element;
  };
  const { element, open, refresh, drawNotes } = tabs("Facts about the shard", [
    { id: "overview", name: "Overview", make: showOverview },
    { id: "rows", name: "Rows", note: () => count(facts.shard.rows), make: () => showRows("rows") },
    { id: "changes", name: "Changes", make: () => showRows("changes") },
    { id: "differences", name: "Differences", make: () => showRows("differences") },
    { id: "errors", name: "Errors", note: () => facts.shard.errors && count(facts.shard.errors), make: () => showRows("errors") },
    { id: "history", name: "History", make: () => historyParts(facts, ask, pickOrNull()) },
    { id: "storage", name: "Storage", make: () => storageParts(facts, ask) },
    { id: "definition", name: "Definition", make: () => definition(facts.shard) },
  ]);
  drawHeader(header, facts.shard);
  replaceMain(header, element);
  await open(location.hash.slice(1) || "overview");
  every(async () => {
    const seqno = facts.shard.seqno;
    facts = await load();
    const isNew = facts.shard.seqno !== seqno;
    drawHeader(header, facts.shard);
    drawNotes();
    panels.overview?.update(facts, pickOrNull());
    for (const what of READS) {
      if (panels[what]?.isUsed()) panels[what].update(facts.shard, facts.commits.commits);
      else if (isNew) refresh(what, true);
    }
    for (const what of ["history", "storage", "definition"]) refresh(what, isNew);
  });
}

function drawHeader(header, shard) {
  const parts = [
    h("nav", { "aria-label": "Breadcrumb" }, h("a", { href: "./" }, "Shards"), " / ", h("span", { "aria-current": "page" }, shard.shard)),
    h("h1", {}, shard.shard, " ", shard.kind !== "other" && badge(shard.kind), " ", problemBadges(shard.problems)),
    h("p", { class: "muted seen" }, `Read at ${clock(shard.now_ms)}Z`),
    shard.error && alertBox(shard.error),
    shard.alerts === null ? section("alerts", "Alerts", alertBox(DAMAGED))
      : shard.alerts.length > 0 && section("alerts", "Alerts", alertsOfShard(shard)),
  ];
  header.replaceChildren(...parts.filter(Boolean));
}

