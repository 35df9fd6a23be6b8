// One GET below api/. Throws an Error whose message is for users.
export async function get(endpoint, given = {}) {
  const asked = new URLSearchParams();
  for (const [name, value] of Object.entries(given)) {
    for (const each of [value].flat()) {
      if (each !== null && each !== undefined && each !== "") asked.append(name, each);
    }
  }
  let response;
  try {
    response = await fetch(`api/${endpoint}?${asked}`, { headers: { Accept: "application/json" }, credentials: "same-origin" });
  } catch {
    throw new Error("Airflow did not answer. Check that the API server runs, then load the page again.");
  }
  let body = {};
  try {
    body = await response.json();
  } catch { /* an answer that is not JSON has no message of ours */ }
  if (response.ok) return body;
  if (response.status === 401) throw new Error("Your session has ended. Log in to Airflow, then load the page again.");
  throw new Error(body.error ? `${body.error.kind}: ${body.error.message}` : `Airflow answered with status ${response.status}.`);
}
