// Dark mode as in Airflow: inside its UI the class of its document, else its stored choice, else the system's.
const dark = matchMedia("(prefers-color-scheme: dark)");

function airflowDocument() {
  try {
    return window.parent !== window ? window.parent.document.documentElement : null;
  } catch {
    return null; // the page is in a frame of another origin
  }
}

function isDark(root) {
  if (root?.classList.contains("dark")) return true;
  if (root?.classList.contains("light")) return false;
  let stored = null;
  try { stored = localStorage.getItem("theme"); } catch { /* storage is switched off */ }
  return stored === "dark" || (stored !== "light" && dark.matches);
}

export function followTheme(changed) {
  const root = airflowDocument();
  const apply = () => { document.documentElement.dataset.theme = isDark(root) ? "dark" : "light"; changed(); };
  apply();
  dark.addEventListener("change", apply);
  window.addEventListener("storage", apply);
  if (root) new MutationObserver(apply).observe(root, { attributes: true, attributeFilter: ["class"] });
}
