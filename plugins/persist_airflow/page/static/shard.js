// One shard: overview, charts and table of commits, rows, conflicts, checkpoints, batches, holders, schema, definition.
import { DAMAGED, alertsOfShard, problemBadges } from "./alerts.js";
import { get } from "./api.js";
import { bars } from "./chart.js";
import { badge, h, replaceMain, section, table } from "./dom.js";
import { assetLink, dagLink, shardLink, writerLink } from "./links.js";
import { rowsSection } from "./rows.js";
import { bytes, count, duration, seconds, time, timeElement } from "./words.js";

// A shard with less than this shows its rows without being asked. 1,000 batches cost the server a second.
const AUTOMATIC_ROWS = 200000, AUTOMATIC_BATCHES = 500;
const STAGES = ["mint_batch_descriptions", "write_batches", "append_batches", "checkpoint_manifest"];

export async function showShard(connId, name) {
  const asked = { conn_id: connId, shard: name };
  const failure = (error) => ({ failed: error.message });
  const [shard, commits, checkpoints, conflicts, batches] = await Promise.all([
    get("shard", asked), ...["commits", "checkpoints", "conflicts", "batches"].map((each) => get(each, asked).catch(failure)),
  ]);
  const rows = shard.shows_rows && shard.schema ? rowsSection(shard, commits.commits ?? []) : null;
  const parts = [
    ...alerts(shard),
    overview(shard),
    section("commits", "Commits", orAlert(commits, (page) => commitsPart(shard, page, rows?.pick))),
    rows ? rows.element : section("rows", "Rows", h("p", { class: "muted" }, shard.schema ? "Your roles, or the setting [persist] page_rows, do not show rows." : "Nothing was committed yet.")),
    section("conflicts", "Conflicts", orAlert(conflicts, (body) => conflictsTable(shard, body.conflicts))),
    section("checkpoints", "Checkpoints", orAlert(checkpoints, (body) => checkpointsTable(shard, body.checkpoints))),
    section("batches", "Batches", orAlert(batches, (page) => batchesTable(shard, page))),
    holders(shard),
    schemaSection(shard),
    definition(shard),
  ];
  const contents = parts.map((part) => h("li", {}, h("a", { href: `#${part.id}` }, part.querySelector("h2").textContent)));
  replaceMain(
    h("nav", { "aria-label": "Breadcrumb" }, h("a", { href: "./" }, "Shards"), " / ", h("span", { "aria-current": "page" }, shard.shard)),
    h("h1", {}, shard.shard, " ", shard.kind !== "other" && badge(shard.kind), " ", problemBadges(shard.problems)),
    shard.error && h("div", { class: "alert", role: "alert" }, shard.error),
    h("nav", { "aria-label": "Sections" }, h("ul", { class: "sections" }, contents)),
    parts);
  if (rows && shard.updates <= AUTOMATIC_ROWS && shard.batches <= AUTOMATIC_BATCHES) rows.load();
}

function orAlert(body, show) {
  return body.failed ? h("div", { class: "alert", role: "alert" }, body.failed) : show(body);
}

function alerts(shard) {
  if (shard.alerts === null) return [section("alerts", "Alerts", h("div", { class: "alert", role: "alert" }, DAMAGED))];
  return shard.alerts.length ? [section("alerts", "Alerts", alertsOfShard(shard))] : [];
}

function overview(shard) {
  const now = shard.now_ms, dags = shard.airflow.dags, commit = shard.newest_commit;
  const facts = [
    ["since", [timeElement(shard.since, now), shard.held_back_by && `, held back by ${shard.held_back_by}`]],
    ["upper", [timeElement(shard.upper, now), shard.lag_ms === null ? "" : `, ${duration(shard.lag_ms)} ago`,
      shard.airflow.behind_ms > 0 && h("strong", {}, `, ${duration(shard.airflow.behind_ms)} behind its schedule`)]],
    ["rows", count(shard.rows)],
    ["errors alive", count(shard.errors)],
    ["stash", `${count(shard.stash)} records`],
    ["size", `${bytes(shard.size_bytes)} in ${count(shard.batches)} batches, ${count(shard.updates)} updates`],
    ["commits", count(shard.commits)],
    ["last commit", commit ? [timeElement(commit.committed_ms, now), " by ", writerLink(commit.writer, dags.map((dag) => dag.dag_id)), commit.restored_from && ` (restored from ${commit.restored_from})`] : "never"],
    ["history", shard.history === "all" ? "all is kept" : `${shard.history} before the upper`],
    ["conflicts, 7 days", count(shard.conflicts_7d)],
    ["maintenance", shard.due_merge ? `a merge of ${shard.due_merge.batches} batches, ${count(shard.due_merge.rows)} rows, is due` : "nothing is due"],
    ["written by", dags.length ? dags.map((dag) => h("div", {}, dagLink(dag.dag_id), dag.is_paused && " (paused)",
      dag.last_run_state && ` last run ${dag.last_run_state}`, dag.next_run_ms && !dag.is_paused && `, next ${time(dag.next_run_ms)}`)) : "no DAG of this Airflow"],
    ...Object.entries(shard.sources).map(([name, progress]) => [`source ${name}`, progressText(progress)]),
    ["lineage", lineage(shard)],
    ["asset", assetLink(shard.conn_id, shard.shard)],
    ["actions", actions(shard)],
    ["state", `version ${shard.seqno}`],
  ];
  return section("overview", "Overview", h("dl", {}, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
}

function progressText(progress) {
  return Object.entries(progress).filter(([name]) => name !== "input").map(([name, value]) => {
    const text = name === "as_of" ? time(value) : name === "size_bytes" ? bytes(value)
      : value !== null && typeof value === "object" ? Object.entries(value).map(([k, v]) => `${k} ${time(v)}`).join(", ") : String(value);
    return h("div", {}, `${name}: ${text}`);
  });
}

function lineage(shard) {
  const list = (names) => names.map((name, i) => [i > 0 && ", ", shardLink(shard.conn_id, name)]);
  const lines = [
    shard.inputs.length > 0 && h("div", {}, "inputs: ", list(shard.inputs)),
    shard.views.length > 0 && h("div", {}, "views: ", list(shard.views)),
    shard.forked_from && h("div", {}, "fork of: ", list([shard.forked_from])),
    shard.forks.length > 0 && h("div", {}, "forks: ", list(shard.forks.map((fork) => fork.shard))),
  ];
  return lines.some(Boolean) ? lines : "no other shard";
}

function actions(shard) {
  const ids = shard.airflow.action_dags;
  if (!ids.length) return "no DAG that you may see";
  return [h("span", {}, "trigger in Airflow, with its roles and audit log: "), ids.map((id, i) => [i > 0 && ", ", dagLink(id)])];
}

function commitsPart(shard, page, pick) {
  if (!page.commits.length) return h("p", { class: "muted" }, "Nothing was committed yet.");
  const part = h("div");
  const draw = (shown) => {
    const commits = shown.commits, labels = commits.map((c) => time(c.upper));
    const of = (field) => commits.map((c) => c[field] ?? 0);
    const stages = shown.airflow.stage_seconds;
    const stageOf = (name) => commits.map((c) => stages[c.writer]?.[name] ?? 0);
    const choose = (i) => pick?.(commits[i]);
    part.replaceChildren(h("div", {},
      h("div", { class: "charts" },
        bars("Changes", [["inserts", "inserts"], ["updates", "updates"], ["deletes", "deletes"], ["errors", "errors"]].map(([field, kind]) => ({ name: field, kind, values: of(field) })), labels, count, choose),
        STAGES.some((name) => stageOf(name).some(Boolean)) && bars("Seconds by stage", STAGES.map((name, i) => ({ name: name.split("_")[0], kind: `stage-${i}`, values: stageOf(name) })), labels, seconds, choose),
        bars("Bytes", [{ name: "bytes", kind: "bytes", values: of("size_bytes") }], labels, bytes, choose),
        commits.some((c) => c.lag_ms !== null) && bars("Lag at commit", [{ name: "lag", kind: "lag", values: of("lag_ms") }], labels, duration, choose)),
      commitsTable(shard, commits, pick),
      h("div", { class: "controls" },
        page !== shown && h("button", { type: "button", onclick: () => draw(page) }, "Newest commits"),
        h("button", { type: "button", disabled: shown.older === null, title: shown.older === null ? "No older commit is kept: see Batches" : null, onclick: (event) => older(event.target, shown) }, "Older commits"))));
  };
  const older = async (button, shown) => {
    button.disabled = true;
    try {
      draw(await get("commits", { conn_id: shard.conn_id, shard: shard.shard, before: shown.older }));
    } catch (error) {
      button.after(h("span", { role: "alert" }, ` ${error.message}`));
    }
  };
  draw(page);
  return part;
}

function commitsTable(shard, commits, pick) {
  const dagIds = shard.airflow.dags.map((dag) => dag.dag_id);
  const number = (name, title) => ({ name, number: true, title });
  const columns = [{ name: "Upper", head: true }, { name: "Committed" }, number("Inserts"), number("Updates"), number("Deletes"), number("Errors"),
    number("Stash", "Records left in the stash"), number("Size"), number("Lag", "From the upper to the commit"), { name: "Writer" }, { name: "" }];
  const rows = [...commits].reverse().map((c) => [
    time(c.upper), timeElement(c.committed_ms, shard.now_ms),
    ...(c.error ? [h("span", { class: "bad", title: c.error }, "unreadable"), "", "", ""] : [count(c.inserts), count(c.updates), count(c.deletes), count(c.errors)]),
    c.stash === null ? "" : count(c.stash), c.size_bytes === null ? "" : bytes(c.size_bytes), c.lag_ms === null ? "" : duration(c.lag_ms),
    [writerLink(c.writer, dagIds), c.restored_from && ` restored from ${c.restored_from}`],
    pick && c.upper !== null ? h("button", { type: "button", "aria-label": `Rows as of ${time(c.upper - 1)}`, onclick: () => pick(c) }, "Rows") : "",
  ]);
  return h("details", {}, h("summary", {}, `Table of ${commits.length} commits`), table("Commits, newest first", columns, rows, { empty: "no commits" }));
}

function conflictsTable(shard, conflicts) {
  const dagIds = shard.airflow.dags.map((dag) => dag.dag_id);
  const columns = [{ name: "Detected" }, { name: "Expected upper" }, { name: "Found upper" }, { name: "Lost" }, { name: "Won" }];
  const rows = [...conflicts].reverse().map((c) => [
    timeElement(c.detected_ms, shard.now_ms), time(c.expected_upper), time(c.found_upper), writerLink(c.loser, dagIds),
    c.winner ? [writerLink(c.winner, dagIds), c.winner_committed_ms ? [" at ", timeElement(c.winner_committed_ms, shard.now_ms)] : ""] : "an older commit",
  ]);
  return table("Appends that lost a race, newest first; their input was read again", columns, rows, { empty: "No conflicts." });
}

function checkpointsTable(shard, checkpoints) {
  const columns = [{ name: "Checkpoint", head: true }, { name: "Made" }, { name: "Upper" }, { name: "Kept by" }, { name: "Kept until", title: "At the latest: the collection's retention may delete it before" }, { name: "State", number: true }, { name: "Restored from" }];
  const rows = [...checkpoints].reverse().map((c) => c.error ? [h("code", {}, c.checkpoint_id), h("span", { class: "bad" }, c.error), "", "", "", "", ""] : [
    h("code", {}, c.checkpoint_id), timeElement(c.timestamp_ms, shard.now_ms), time(c.upper),
    c.kept_by.length ? c.kept_by.map((reason) => badge(reason)) : "the collection's retention", keptUntil(c), bytes(c.total_size_bytes), c.restored_from ?? "",
  ]);
  return folded(`${count(rows.length)} checkpoints`, rows, table("Checkpoints, newest first", columns, rows, { empty: "No checkpoints." }));
}

function keptUntil(checkpoint) {
  if (checkpoint.is_pinned) return "it is unpinned";
  if (checkpoint.is_latest) return "a newer one is made";
  return checkpoint.kept_until === null ? "its turn in the retention" : `the upper passes ${time(checkpoint.kept_until)}`;
}

function batchesTable(shard, page) {
  const number = (name, title) => ({ name, number: true, title });
  const columns = [{ name: "From", head: true }, { name: "Up to" }, { name: "Kind" }, number("Insertions"), number("Retractions"), number("Errors", "Insertions less retractions of errors"), number("History", "Rows that only reads of the past open"), number("Size")];
  const rows = [...page.batches].reverse().map((b) => [
    time(b.lower), time(b.upper), [b.is_run ? "run" : "batch", b.owner !== shard.shard && ` of ${b.owner}`],
    count(b.insertions), count(b.retractions), count(b.err_insertions - b.err_retractions), count(b.history), bytes(b.size_bytes),
  ]);
  const shown = page.batches.length < page.total ? `The newest ${page.batches.length} of ${count(page.total)} batches` : `${count(page.total)} batches`;
  const whole = table(`${shown}, newest first`, columns, rows, { empty: "No batches." });
  return h("div", {}, page.batches.length > 1 && batchesChart(page.batches), folded(shown, rows, whole));
}

// What a read opens: runs are few and large, batches many and small, and merges turn these into those.
function batchesChart(batches) {
  const labels = batches.map((b) => `${time(b.lower)} to ${time(b.upper)}`);
  const sizes = (isRun) => batches.map((b) => (b.is_run === isRun ? b.size_bytes : 0));
  const series = [{ name: "runs", kind: "runs", values: sizes(true) }, { name: "batches", kind: "bytes", values: sizes(false) }];
  return h("div", { class: "charts" }, bars("Bytes of batches and runs", series, labels, bytes, null, "batches and runs"));
}

// A long table opens on demand.
function folded(summary, rows, whole) {
  return rows.length > 12 ? h("details", {}, h("summary", {}, summary), whole) : whole;
}

function holders(shard) {
  const rows = [
    ...shard.holds.map((hold) => [hold.holder, "hold", time(hold.since), "until it is released"]),
    ...shard.leases.map((lease) => [lease.reader, "lease", time(lease.since), time(lease.expires_ms)]),
  ];
  const columns = [{ name: "Holder", head: true }, { name: "Kind" }, { name: "Holds since at" }, { name: "Until" }];
  return section("holders", "Holds and leases", table("What holds since back", columns, rows, { empty: "Nothing holds since back." }));
}

function schemaSection(shard) {
  const columns = shard.schema ? [...shard.schema.key.map((c) => [c.name, c.type, "key"]), ...shard.schema.values.map((c) => [c.name, c.type, c.nullable ? "" : "not null"])] : [];
  return section("schema", "Schema", table("Columns", [{ name: "Column", head: true }, { name: "Type" }, { name: "" }], columns, { empty: "Nothing was committed yet." }));
}

function definition(shard) {
  const text = shard.definition ?? shard.airflow.document;
  return section("definition", "Definition", text ? h("pre", { tabindex: "0" }, text) : h("p", { class: "muted" }, "No DAG of this Airflow defines this shard."));
}
