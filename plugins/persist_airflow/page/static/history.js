// The history of a shard: its commits as a table, the conflicts, and the checkpoints with what can be done with each.
import { actionButton } from "./actions.js";
import { get } from "./api.js";
import { badge, folded, h, muted, number, orAlert, section, table } from "./dom.js";
import { writerLink } from "./links.js";
import { bytes, count, duration, time, timeElement } from "./words.js";

export async function historyParts({ shard, commits }, ask, pick) {
  const [checkpoints, conflicts] = await Promise.all([ask("checkpoints"), ask("conflicts")]);
  return [
    section("commits", "Commits", orAlert(commits, (page) => commitsPart(shard, page, pick))),
    section("conflicts", "Conflicts", orAlert(conflicts, (body) => conflictsTable(shard, body.conflicts))),
    section("checkpoints", "Checkpoints", orAlert(checkpoints, (body) => checkpointsTable(shard, body.checkpoints))),
  ];
}

function commitsPart(shard, page, pick) {
  if (!page.commits.length) return muted("Nothing has been committed yet.");
  const part = h("div");
  const draw = (shown) => {
    part.toggleAttribute("data-used", shown !== page);
    part.replaceChildren(
      commitsTable(shard, shown.commits, pick),
      h("div", { class: "controls" },
        h("button", { type: "button", disabled: page === shown, onclick: () => draw(page) }, "Newest commits"),
        h("button", { type: "button", disabled: shown.older === null, title: shown.older === null ? "No older commit is kept: see Storage" : null, onclick: (event) => older(event.target, shown) }, "Older commits")));
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
  const columns = [{ name: "Upper", head: true }, { name: "Committed" }, number("Inserts"), number("Updates"), number("Deletes"), number("Errors"), number("Warnings", "Rows that a check or a column warns of"), number("Rows", "Rows after the commit"),
    number("Stash", "Records left in the stash"), number("Size"), number("Lag", "From the upper to the commit"), { name: "Writer" }, { name: "Read" }];
  const rows = [...commits].reverse().map((c) => [
    h("time", {}, time(c.upper)), timeElement(c.committed_ms, shard.now_ms),
    ...(c.inserts === null ? [c.error ? h("span", { class: "bad", title: c.error }, "unreadable") : "no longer known", "", "", "", ""] : [count(c.inserts), count(c.updates), count(c.deletes), count(c.errors), count(c.stats.warnings ?? 0)]),
    c.rows === null ? "" : count(c.rows), c.stash === null ? "" : count(c.stash), c.size_bytes === null ? "" : bytes(c.size_bytes), c.lag_ms === null ? "" : duration(c.lag_ms),
    [writerLink(shard, c.writer), marks(shard, c)],
    pick && c.upper !== null && c.upper - 1 >= (shard.since ?? 0) ? h("button", { type: "button", "aria-label": `Rows as of ${time(c.upper - 1)}`, onclick: () => pick(c.upper - 1) }, "Rows") : "",
  ]);
  return table("Commits, newest first", columns, rows, { empty: "no commits" });
}

// What a commit is, if it is more than new input.
function marks(shard, c) {
  return [
    c.correction ? ["correction", c.correction.reason] : c.swapped_in ? ["another generation", `persist generations ${shard.shard}`] : c.restored_from && [`restored from ${c.restored_from}`],
    ...c.schema_changes.map((text) => [`schema: ${text}`, `persist schema ${shard.shard}`]),
  ].filter(Boolean).map(([text, title]) => h("span", { class: "mark", title }, ` ${text}`));
}

function conflictsTable(shard, conflicts) {
  const columns = [{ name: "Detected" }, { name: "Expected upper" }, { name: "Found upper" }, { name: "Lost" }, { name: "Won" }];
  const rows = [...conflicts].reverse().map((c) => [
    timeElement(c.detected_ms, shard.now_ms), time(c.expected_upper), time(c.found_upper), writerLink(shard, c.loser),
    c.winner ? [writerLink(shard, c.winner), c.winner_committed_ms ? [" at ", timeElement(c.winner_committed_ms, shard.now_ms)] : ""] : "an older commit",
  ]);
  return table("Appends that lost a race, newest first; their input was read again", columns, rows, { empty: "No conflicts." });
}

function checkpointsTable(shard, checkpoints) {
  const columns = [{ name: "Checkpoint", head: true }, { name: "Made" }, { name: "Upper" }, { name: "Kept by" }, { name: "Kept until", title: "At the latest: the collection's retention may delete it before" }, { name: "State", number: true }, { name: "Restored from" }, { name: "Actions" }];
  const rows = [...checkpoints].reverse().map((c) => c.error ? [h("code", {}, c.checkpoint_id), h("span", { class: "bad" }, c.error), "", "", "", "", "", ""] : [
    h("code", {}, c.checkpoint_id), timeElement(c.timestamp_ms, shard.now_ms), time(c.upper),
    c.kept_by.length ? c.kept_by.map((reason) => badge(reason)) : "the collection's retention", keptUntil(c), bytes(c.total_size_bytes), c.restored_from ?? "", checkpointActions(shard, c),
  ]);
  return folded(`${count(rows.length)} checkpoints`, rows, table("Checkpoints, newest first", columns, rows, { empty: "No checkpoints." }));
}

function checkpointActions(shard, checkpoint) {
  const named = { checkpoint_id: checkpoint.checkpoint_id };
  return [
    checkpoint.is_pinned ? actionButton(shard, "Unpin", "unpin", named) : actionButton(shard, "Pin", "pin", named),
    actionButton(shard, "Restore", "restore", { ...named, dry_run: true }, "With dry_run the action only reports what would change."),
    actionButton(shard, "Fork", "restore", { ...named, new_shard: `${shard.shard}-fork` }, "Makes a new shard that shares the files."),
  ];
}

function keptUntil(checkpoint) {
  if (checkpoint.is_pinned) return "it is unpinned";
  if (checkpoint.is_latest) return "a newer one is made";
  return checkpoint.kept_until === null ? "its turn in the retention" : `the upper passes ${time(checkpoint.kept_until)}`;
}
