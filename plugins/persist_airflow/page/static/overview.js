// The overview of a shard: facts, charts over its commits, the calendar of days, actions.
import { actionButton } from "./actions.js";
import { calendar } from "./calendar.js";
import { chart, chartGroup } from "./chart.js";
import { alertBox, h, muted, orAlert, section, table } from "./dom.js";
import { assetLink, dagLink, shardLink, writerLink } from "./links.js";
import { bytes, count, duration, seconds, time, timeElement } from "./words.js";

const STAGES = [["mint_batch_descriptions", "--c1"], ["write_batches", "--c2"], ["append_batches", "--c3"], ["checkpoint_manifest", "--c5"]];

// `update` shows newer facts. A part is made again only if what it shows has changed, so that a zoom stays. One that cannot
// be made shows the error, and the others are made.
export function overview() {
  const element = h("div"), shown = [], view = {};
  const update = ({ shard, commits, days }, pick) => {
    const parts = [
      [shard, () => [factsOf(shard), shard.warned.length > 0 && section("warnings", "Warnings of the newest run", warningsOf(shard))]],
      [[shard.commits, shard.airflow.limits, commits], () => section("charts", "Over time", orAlert(commits, (page) => charts(shard, page, pick)))],
      [[shard.commits, shard.upper, shard.since, days], () => section("days", "Days", orAlert(days, (body) => calendar(shard, body, pick, view)))],
      [shard.airflow.action_dags, () => section("actions", "Actions", actions(shard))],
    ];
    if (!shown.length) element.append(...parts.map(() => h("div")));
    for (const [i, [given, make]] of parts.entries()) {
      const text = JSON.stringify(given);
      if (shown[i] === text) continue;
      shown[i] = text;
      let made;
      try {
        made = make();
      } catch (error) {
        made = orAlert({ failed: error.message });
      }
      element.children[i].replaceChildren(...[made].flat().filter(Boolean));
    }
  };
  return { element, update };
}

function factsOf(shard) {
  const now = shard.now_ms, dags = shard.airflow.dags, commit = shard.newest_commit;
  const facts = [
    ...(shard.moved_to ? [["moved to", `${shard.moved_to}; it accepts no commits here`]] : []),
    ["rows", count(shard.rows)],
    ["errors alive", count(shard.errors)],
    ["upper", [timeElement(shard.upper, now), shard.lag_ms === null ? "" : `, ${duration(shard.lag_ms)} ago`,
      shard.airflow.behind_ms > 0 && h("strong", {}, `, ${duration(shard.airflow.behind_ms)} behind its schedule`)]],
    ["since", [timeElement(shard.since, now), shard.held_back_by && `, held back by ${shard.held_back_by}`]],
    ["stash", `${count(shard.stash)} records`],
    ["size", `${bytes(shard.size_bytes)} in ${count(shard.batches)} batches, ${count(shard.updates)} updates`],
    ["commits", count(shard.commits)],
    ["last commit", commit ? [timeElement(commit.committed_ms, now), " by ", writerLink(shard, commit.writer), commit.restored_from && ` (restored from ${commit.restored_from})`] : "never"],
    ["history", shard.history === "all" ? "all is kept" : `${shard.history} before the upper`],
    ["conflicts, 7 days", count(shard.conflicts_7d)],
    ["maintenance", shard.due_merge ? `a merge of ${shard.due_merge.batches} batches, ${count(shard.due_merge.rows)} rows, is due` : "nothing is due"],
    ["written by", dags.length ? dags.map((dag) => h("div", {}, dagLink(dag.dag_id), dag.is_paused && " (paused: switch it on in Airflow to start it)",
      dag.last_run_state && ` last run ${dag.last_run_state}`, dag.next_run_ms && !dag.is_paused && `, next ${time(dag.next_run_ms)}`)) : "no DAG of this Airflow"],
    ...Object.entries(shard.sources).map(([name, progress]) => [`source ${name}`, progressText(progress)]),
    ["lineage", lineage(shard)],
    ["asset", assetLink(shard.conn_id, shard.shard)],
    ["state", `version ${shard.seqno}`],
  ];
  return section("facts", "Facts", h("dl", {}, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
}

// The rows are in the table: a check does not hold for them, or a bad value of a column became null. A warning without
// rows names fields of the feed.
function warningsOf(shard) {
  const columns = [{ name: "Check or column", head: true }, { name: "Rows", number: true }, { name: "For example" }];
  const hidden = "your roles do not show rows";
  return table("Rows that a check or a column warns of", columns, shard.warned.map((each) => [each.name, count(each.count), shard.shows_rows || each.count === 0 ? each.samples.map((text) => h("code", {}, text)) : hidden]), { hasCaption: false });
}

function progressText(progress) {
  return Object.entries(progress).filter(([name]) => name !== "input").map(([name, value]) => {
    const text = name === "as_of" ? time(value) : name === "size_bytes" ? bytes(value)
      : value !== null && typeof value === "object" ? Object.entries(value).map(([k, v]) => `${k} ${time(v)}`).join(", ") : String(value);
    return h("div", {}, `${name}: ${text}`);
  });
}

function lineage(shard) {
  const held = (kind) => shard.held.filter((each) => each.kind === kind).map((each) => each.holder.replace(/^view\//, ""));
  const views = held("view"), forks = held("fork");
  const list = (names) => names.map((name, i) => [i > 0 && ", ", shardLink(shard.conn_id, name)]);
  const lines = [
    shard.inputs.length > 0 && h("div", {}, "inputs: ", list(shard.inputs)),
    views.length > 0 && h("div", {}, "views: ", list(views)),
    shard.forked_from && h("div", {}, "fork of: ", list([shard.forked_from])),
    forks.length > 0 && h("div", {}, "forks: ", list(forks)),
  ];
  return lines.some(Boolean) ? lines : "no other shard";
}

function charts(shard, page, pick) {
  const commits = page.commits.filter((c) => c.upper !== null);
  if (!commits.length) return muted("Nothing has been committed yet.");
  const at = commits.map((c) => c.upper), group = chartGroup(), of = (field) => commits.map((c) => c[field]);
  const choose = pick && ((i) => pick(commits[i].upper - 1));
  const stages = page.airflow.stage_seconds, stageOf = (name) => commits.map((c) => stages[c.writer]?.[name] ?? null);
  const limits = Object.entries(shard.airflow.limits.freshness ?? {}).filter(([, value]) => value !== null)
    .map(([level, value]) => ({ name: `${level} from`, value, color: level === "fail" ? "--c4" : "--c3" }));
  const wanted = [
    ["Rows in total", [{ name: "rows", color: "--c2", values: of("rows") }], { shape: "line", show: count }],
    ["Changes", [["inserts", "--c1"], ["updates", "--c2"], ["deletes", "--c3"]].map(([name, color]) => ({ name, color, values: of(name) })), { show: count }],
    ["Errors alive", [{ name: "errors", color: "--c4", values: of("living_errors") }], { shape: "step", show: count }],
    ["Bytes written", [{ name: "bytes", color: "--c2", values: of("size_bytes") }], { show: bytes }],
    commits.some((c) => c.lag_ms !== null) && ["Freshness: from the upper to the commit", [{ name: "lag", color: "--c3", values: of("lag_ms") }], { shape: "step", show: duration, limits }],
    STAGES.some(([name]) => stageOf(name).some((value) => value !== null)) && ["Seconds by stage, waiting not counted", STAGES.map(([name, color]) => ({ name: name.split("_")[0], color, values: stageOf(name) })), { show: seconds }],
  ].filter(Boolean);
  const broken = commits.filter((c) => c.error);
  return [
    broken.length > 0 && alertBox(`${count(broken.length)} of ${count(commits.length)} commits cannot be read: ${broken.at(-1).error}`),
    muted(`${commits.length < shard.commits ? `The newest ${count(commits.length)} of ${count(shard.commits)}` : count(commits.length)} commits. Drag to zoom, double-click to see all${pick ? ", click for the rows of that time" : ""}. The table of the same numbers is under History.`),
    h("div", { class: "charts" }, wanted.map(([title, series, options]) => chart(title, at, series, { ...options, pick: choose, group }))),
  ];
}

function actions(shard) {
  const dags = shard.airflow.action_dags;
  if (!dags.length) return muted("No DAG of actions that you may see.");
  return [
    h("div", { class: "controls" },
      actionButton(shard, "Run", "run"), actionButton(shard, "Maintain", "maintain"), actionButton(shard, "Check (fsck)", "fsck"),
      actionButton(shard, "Check and repair", "fsck", { repair: true }, "Repairs derived objects. Data is never changed.")),
    muted("Pin, restore and fork are at each checkpoint under History. Airflow starts every action, with its roles and its audit log: ", dags.map(({ dag_id }, i) => [i > 0 && ", ", dagLink(dag_id)])),
  ];
}
