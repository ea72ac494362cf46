// A page stays open as a stream, and takes in its main part whenever that has changed. Without this script, a page is
// what it was when it was opened.
"use strict";

const main = document.getElementById("main");
const link = document.getElementById("link");
const log = document.getElementById("log");

// text reads what the server has encoded.
function text(data) {
  return new TextDecoder().decode(Uint8Array.from(atob(data), (c) => c.charCodeAt(0)));
}

// say tells of a lost link, or hides that.
function say(words) {
  if (link.textContent !== words) link.textContent = words;
  link.hidden = words === "";
}

// place describes where the focus is, so that it can be found again in the new content.
function place(element) {
  if (!main.contains(element) || element === main) return null;
  const same = [...main.querySelectorAll("a, button, input, [tabindex]")];
  return { href: element.getAttribute("href"), index: same.indexOf(element) };
}

function focus(where) {
  const all = [...main.querySelectorAll("a, button, input, [tabindex]")];
  const found = where.href ? all.find((e) => e.getAttribute("href") === where.href) : all[where.index];
  (found || main).focus({ preventScroll: true });
}

// take shows the new content, unless the user is at something that it would take away.
function take(content) {
  if (main.querySelector("form") || !document.getSelection().isCollapsed) return;
  const where = place(document.activeElement);
  const scrolled = [...main.querySelectorAll(".wide, pre")].map((e) => [e.scrollLeft, e.scrollTop]);
  main.innerHTML = content; // the server has escaped every text of the cluster
  main.querySelectorAll(".wide, pre").forEach((e, i) => scrolled[i] && e.scrollTo(...scrolled[i]));
  if (where) focus(where);
}

function open(address, events) {
  // EventSource asks with Accept: text/event-stream, and comes back by itself.
  const source = new EventSource(address);
  for (const [name, take] of Object.entries(events)) {
    source.addEventListener(name, (event) => { say(""); take(text(event.data), source); });
  }
  source.addEventListener("error", () => {
    say(source.readyState === EventSource.CLOSED
      ? "kedge console has ended. Run it again, and open its new link."
      : "The link to kedge console is lost. Trying again.");
  });
}

if (log) {
  log.scrollTop = log.scrollHeight;
  if (log.dataset.lines) {
    const add = (line) => {
      const atEnd = log.scrollTop + log.clientHeight > log.scrollHeight - 20;
      log.append(line + "\n");
      while (log.childNodes.length > 5000) log.firstChild.remove();
      if (atEnd) log.scrollTop = log.scrollHeight;
    };
    const clear = () => { log.textContent = ""; };
    open(log.dataset.lines, { begin: clear, line: add, end: (words, source) => { source.close(); add("— " + words); } });
  }
} else if (!main.querySelector("form")) {
  open(location.href, { main: take, same: () => {} });
}
