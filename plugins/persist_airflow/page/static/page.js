// The entry: what the URL asks for, and the theme. Facts come as JSON from api/; nothing is written.
import { get } from "./api.js";
import { alertBox, h, replaceMain } from "./dom.js";
import { showList } from "./list.js";
import { showShard } from "./shard.js";
import { drawAgain } from "./chart.js";
import { every } from "./refresh.js";
import { followTheme } from "./theme.js";
import { keepLinksInAirflow } from "./links.js";

async function show() {
  const asked = new URLSearchParams(location.search);
  const connId = asked.get("conn_id"), shard = asked.get("shard");
  if (connId && shard) {
    document.title = `${shard} - Shards`;
    await showShard(connId, shard);
  } else {
    const list = showList(await get("shards"));
    every(async () => list(await get("shards")));
  }
}

function failed(error) {
  const again = h("button", { type: "button", onclick: () => location.reload() }, "Load again");
  replaceMain(h("h1", {}, "Shards"), alertBox(h("p", {}, error.message), again));
}

followTheme(drawAgain);
keepLinksInAirflow();
show().catch(failed);
