// Follows an event stream over fetch, since EventSource can send no Authorization header.
// https://html.spec.whatwg.org/multipage/server-sent-events.html

const SILENT_MS = 40000; // the server says something every 15 s

// `heard` gets each event's object once, in order; after a lost connection the stream goes on behind the last one.
export function follow(path, { token, heard, link, refused }) {
  let last = 0;
  let isStopped = false;
  let connection = null;
  let wake = () => {};

  async function once() {
    connection = new AbortController();
    let watchdog = setTimeout(() => connection.abort(), SILENT_MS);
    try {
      const headers = { Authorization: `Bearer ${token()}`, Accept: "text/event-stream" };
      if (last) headers["Last-Event-ID"] = String(last);
      const answer = await fetch(path, { headers, signal: connection.signal, cache: "no-store" });
      if (!answer.ok) return answer.status;
      link("connected", false);
      const decoder = new TextDecoder();
      const reader = answer.body.getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return 0;
        clearTimeout(watchdog);
        watchdog = setTimeout(() => connection.abort(), SILENT_MS);
        const lines = (rest + decoder.decode(value, { stream: true })).split("\n\n");
        rest = lines.pop();
        for (const event of lines) take(event);
      }
    } finally {
      clearTimeout(watchdog);
    }
  }

  function take(event) {
    let id = 0;
    const data = [];
    for (const line of event.split("\n")) {
      if (line.startsWith("id: ")) id = Number(line.slice(4));
      else if (line.startsWith("data: ")) data.push(line.slice(6));
    }
    if (isStopped || !data.length) return;
    const one = JSON.parse(data.join("\n"));
    if (one.subtype !== "reset" && id <= last) return; // it was heard before
    last = id;
    heard(one);
  }

  async function run() {
    for (let wait = 300; !isStopped; wait = Math.min(wait * 2, 5000)) {
      const before = last;
      const status = await once().catch(() => 0);
      if (isStopped) return;
      if (status >= 400 && status < 500 && status !== 429) {
        link("", true);
        return refused(status);
      }
      if (last !== before) wait = 300;
      link("no connection: trying again", true);
      await new Promise((done) => {
        wake = done;
        setTimeout(done, wait);
      });
    }
  }

  link("connecting", false);
  run();
  return {
    again: () => wake(),
    stop: () => {
      isStopped = true;
      connection?.abort();
      wake();
    },
  };
}
