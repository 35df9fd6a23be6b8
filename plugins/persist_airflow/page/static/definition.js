// The definition of a shard: its plan in words, its file as YAML with the defaults that apply, and its schema.
import { h, muted, section, table } from "./dom.js";

export function definition(shard) {
  const text = shard.airflow.document ?? "", blocks = [...text.matchAll(/```yaml\n([\s\S]*?)\n```/g)].map((found) => found[1]);
  const plan = [...text.split("```")[0].matchAll(/^\| (\w[^|]*) \| (.+) \|$/gm)].map(([, name, value]) => [name, value.replaceAll("`", "")]);
  const pre = (content) => h("pre", { tabindex: "0" }, content);
  const look = shard.kind === "collection" && muted("To see what a run would make of new input, and what does not fit: ", h("code", {}, `persist preview ${shard.shard}`));
  const query = shard.definition && section("query", "Query of the newest refresh", pre(shard.definition));
  const columns = shard.schema ? [...shard.schema.key.map((c) => [c.name, c.type, "key"]), ...shard.schema.values.map((c) => [c.name, c.type, c.nullable ? "" : "not null"])] : [];
  return [
    plan.length > 0 && section("plan", "The plan", table("In words", [{ name: "What", head: true }, { name: "How" }], plan, { hasCaption: false })),
    section("file", "The file", blocks.length ? pre(blocks[0]) : text ? pre(text) : muted("No DAG of this Airflow defines this shard."), look),
    blocks.length > 1 && section("defaults", "Defaults that apply", pre(blocks[1])),
    query,
    section("schema", "Schema", table("Columns", [{ name: "Column", head: true }, { name: "Type" }, { name: "Rule" }], columns, { empty: "Nothing has been committed yet." })),
  ].filter(Boolean);
}
