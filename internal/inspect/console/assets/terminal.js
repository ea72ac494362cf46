// The terminal: kedge console draws the lines of the screen, and this script shows them and sends what the user types.
"use strict";
{
  for (const form of document.querySelectorAll("form[data-script]")) form.hidden = false;
  const terminal = document.getElementById("terminal");
  if (terminal) run(terminal, document.getElementById("lines"), document.getElementById("keys"), document.getElementById("ended"));

  function run(terminal, lines, keys, ended) {
    const at = terminal.dataset.at;
    const mostPast = 500;

    // Lines have numbers. A line that moves up keeps its element, so that a screen reader reads only what is new.
    let known = new Map();
    let past = null; // the last line that has left the screen
    function show(frame) {
      const atEnd = lines.scrollTop + lines.clientHeight > lines.scrollHeight - 20;
      if (frame.clear) {
        lines.replaceChildren();
        known = new Map();
        past = null;
      }
      let before = past;
      const put = (row) => {
        const line = known.get(row.id) || document.createElement("div");
        if (row.html !== undefined) line.innerHTML = row.html; // kedge console has escaped it
        const next = before ? before.nextSibling : lines.firstChild;
        if (line !== next) lines.insertBefore(line, next);
        before = line;
        return [row.id, line];
      };
      frame.past.forEach(put);
      past = before;
      known = new Map(frame.lines.map(put));
      while (before.nextSibling) before.nextSibling.remove();
      while (lines.childElementCount > frame.lines.length + mostPast) lines.firstChild.remove();
      if (atEnd) lines.scrollTop = lines.scrollHeight;
    }

    function end(words, source) {
      source.close();
      over = true;
      const here = document.activeElement === keys;
      keys.disabled = true;
      ended.firstElementChild.textContent = words;
      ended.hidden = false;
      if (here) ended.querySelector("a").focus();
    }

    // One request at a time, so that what is typed arrives in its order.
    let over = false, sending = false, size = null, typed = [];
    async function send() {
      if (sending) return;
      sending = true;
      while (!over && (size || typed.length)) {
        const now = size;
        let count = 0, length = 0;
        while (count < typed.length && length < 50000) length += JSON.stringify(typed[count++]).length;
        size = null;
        try {
          await (now ? post("/size", now) : post("/keys", typed.splice(0, count)));
        } catch {
          typed = []; // they may have arrived, and typing them twice could do harm
          say("The link to kedge console was lost: what you have typed last may be missing.");
        }
      }
      sending = false;
    }
    function post(path, body) {
      return fetch(at + path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
    }
    function type(key) {
      lines.scrollTop = lines.scrollHeight;
      typed.push(key);
      send();
    }

    const named = /^(Enter|Backspace|Tab|Escape|Arrow\w+|Home|End|Insert|Delete|PageUp|PageDown|F[1-9]|F10)$/;
    // theBrowsers tells of a key that the browser has a use for: typing text, copying, pasting, going elsewhere.
    function theBrowsers(e) {
      const character = [...e.key].length === 1;
      const apple = /Mac|iP/.test(navigator.platform);
      if (e.isComposing || e.metaKey || e.getModifierState("AltGraph") || (e.key === "Tab" && e.shiftKey)) return true;
      if (!character) return !named.test(e.key) || (e.key === "Insert" && e.shiftKey) || (e.key === "Enter" && !e.altKey && !e.ctrlKey);
      if (!e.ctrlKey) return !e.altKey || apple;
      return e.shiftKey || e.key === "v" || (e.key === "c" && !document.getSelection().isCollapsed);
    }
    keys.addEventListener("keydown", (e) => {
      if (theBrowsers(e)) return;
      e.preventDefault();
      if (e.shiftKey && /^Page/.test(e.key)) {
        lines.scrollBy(0, (e.key === "PageUp" ? -0.9 : 0.9) * lines.clientHeight);
        return;
      }
      type({ name: e.key, shift: e.shiftKey, alt: e.altKey, control: e.ctrlKey });
    });
    function take() {
      if (keys.value) type({ text: keys.value });
      keys.value = "";
    }
    keys.addEventListener("input", (e) => { if (!e.isComposing) take(); });
    keys.addEventListener("compositionend", take);
    keys.addEventListener("paste", (e) => {
      e.preventDefault();
      const all = [...e.clipboardData.getData("text/plain")];
      for (let i = 0; i < all.length; i += 10000) type({ paste: all.slice(i, i + 10000).join("") });
    });
    lines.addEventListener("click", () => { if (document.getSelection().isCollapsed) keys.focus({ preventScroll: true }); });

    // The program learns how many rows and columns there is room for.
    const probe = terminal.querySelector(".probe");
    let told = "";
    function measure() {
      const style = getComputedStyle(lines), one = probe.getBoundingClientRect();
      const room = (all, first, last) => all - parseFloat(style[first]) - parseFloat(style[last]);
      const now = {
        rows: Math.floor(room(lines.clientHeight, "paddingTop", "paddingBottom") / one.height),
        columns: Math.floor(room(lines.clientWidth, "paddingLeft", "paddingRight") / (one.width / probe.textContent.length)),
      };
      if (told === JSON.stringify(now)) return;
      told = JSON.stringify(now);
      size = now;
      send();
    }
    let later;
    new ResizeObserver(() => { clearTimeout(later); later = setTimeout(measure, 100); }).observe(lines);

    measure();
    keys.focus({ preventScroll: true });
    open(at + "/screen", { screen: (frame) => show(JSON.parse(frame)), end });
  }
}
