// What a shard has in the store: bytes by folder, batches and runs, and who holds its history.
import { chart } from "./chart.js";
import { folded, h, muted, number, orAlert, section, table } from "./dom.js";
import { bytes, count, time } from "./words.js";

export async function storageParts({ shard, commits }, ask) {
  const [batches, storage] = await Promise.all([ask("batches"), ask("storage")]);
  return [
    section("stored", "In the store", orAlert(storage, storedTable)),
    section("state", "In the state", orAlert(commits, stateChart)),
    section("batches", "Batches", orAlert(batches, (page) => batchesPart(shard, page))),
    holders(shard),
  ];
}

function storedTable(page) {
  const columns = [{ name: "Folder", head: true }, number("Objects"), number("Bytes"), number("Needed by the newest state")];
  const rows = page.folders.map((each) => [each.folder, count(each.objects), bytes(each.size_bytes), each.needed_bytes === null ? "" : bytes(each.needed_bytes)]);
  return [
    h("p", {}, `${page.is_partial ? "At least " : ""}${bytes(page.size_bytes)} in ${count(page.objects)} objects. What the newest state does not need is kept for older states, checkpoints and forks, or waits for GC.`),
    table("Bytes by folder, counted in the store", columns, rows, { empty: "Nothing is stored." }),
  ];
}

// The newest state by the commits that led to it. A merge shows in the next commit.
function stateChart(page) {
  const known = page.commits.filter((c) => c.upper !== null);
  if (!known.length) return muted("Nothing has been committed yet.");
  const series = [{ name: "bytes", color: "--c2", values: known.map((c) => c.state_bytes) }];
  return h("div", { class: "charts" }, chart("Bytes in the state after each commit", known.map((c) => c.upper), series, { shape: "line", show: bytes }));
}

function batchesPart(shard, page) {
  const columns = [{ name: "From", head: true }, { name: "Up to" }, { name: "Kind" }, number("Insertions"), number("Retractions"), number("Errors", "Insertions less retractions of errors"), number("History", "Rows that only reads of the past open"), number("Size")];
  const rows = [...page.batches].reverse().map((b) => [
    h("time", {}, time(b.lower)), h("time", {}, time(b.upper)), [b.is_run ? "run" : "batch", b.owner !== shard.shard && ` of ${b.owner}`],
    count(b.insertions), count(b.retractions), count(b.err_insertions - b.err_retractions), count(b.history), bytes(b.size_bytes),
  ]);
  const shown = page.batches.length < page.total ? `The newest ${page.batches.length} of ${count(page.total)} batches` : `${count(page.total)} batches`;
  const whole = table(`${shown}, newest first`, columns, rows, { empty: "No batches." });
  return [page.batches.length > 1 && batchesChart(page.batches), folded(shown, rows, whole)];
}

// What a read opens: runs are few and large, batches many and small, and merges turn these into those.
function batchesChart(batches) {
  const known = batches.filter((b) => b.upper !== null);
  const sizes = (isRun) => known.map((b) => (b.is_run === isRun ? b.size_bytes : 0));
  const series = [{ name: "runs", color: "--c3", values: sizes(true) }, { name: "batches", color: "--c2", values: sizes(false) }];
  return h("div", { class: "charts" }, chart("Bytes of batches and runs", known.map((b) => b.upper), series, { show: bytes }));
}

function holders(shard) {
  const rows = shard.held.map((each) => [each.holder, each.kind, each.kind === "fork" ? "" : time(each.since), each.expires_ms ? time(each.expires_ms) : "", each.about, each.remedy]);
  const columns = [{ name: "Holder", head: true }, { name: "Kind" }, { name: "Holds since at" }, { name: "Until" }, { name: "What it is" }, { name: "What ends it" }];
  return section("holders", "Holders", table("Who keeps history and files", columns, rows, { kind: "cards" }));
}
