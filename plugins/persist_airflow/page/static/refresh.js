// Facts are read again while somebody looks at the page, and not while it is hidden or a dialog is open.
const EVERY_MS = 30000;

export function every(read) {
  let isReading = false;
  setInterval(async () => {
    if (isReading || document.hidden || document.querySelector("dialog[open]")) return;
    isReading = true;
    try {
      await read();
    } catch { /* the facts on the page stay, with the time at which they were read; the next turn tries again */ }
    isReading = false;
  }, EVERY_MS);
}
