"""A session of every kind of entry, recorded through the command line."""

from __future__ import annotations

import json
import random
import string
from typing import Any

from tests.app.running import Place, call

KEY = f"ghp_{''.join(random.Random(3).choices(string.ascii_letters + string.digits, k=36))}"
HOSTILE = "</pre></details><script>alert(1)</script><img src=x onerror=alert(2)> \u202e\x1b[31m"


def says(text: str, *calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"text": text, "tool_calls": list(calls), **more}


def session(place: Place, prompt: str, *replies: dict[str, Any], flags: tuple[str, ...] = ()) -> str:
    """Record a session, or with `-c` one more turn of it; gives its id."""
    ran = place.run("-p", prompt, "-m", place.script(*replies), "--output-format", "json", *flags)
    assert ran.code == 0, (ran.out, ran.err)
    return str(json.loads(ran.out)["session_id"])


EDITS = ("--permission-mode", "acceptEdits")


def rich_session(place: Place) -> str:
    """Edits, commands, a failed and a denied call, a subagent, another model; hostile texts everywhere."""
    (place.folder / "a.py").write_text("def add(a, b):\n    return a - b\n")
    (place.folder / "<b>.txt").write_text(f"{HOSTILE}\n")
    child = place.script(says("", call("file_write", path="made.txt", content="by a subagent\n")), {"text": "Made it."})
    session(
        place,
        f"Mend add {HOSTILE}; the key is {KEY}",
        says(
            f"I look {HOSTILE} [x](javascript:alert(3)) [data](data:text/html,x) ![i](https://evil.example/i.png)",
            call("file_read", path="a.py"),
            call("bash", command="cat '<b>.txt'; ls"),
            usage={"input_tokens": 1000, "output_tokens": 50},
        ),
        says("```python\nopen fence", call("file_edit", path="a.py", old_string="a - b", new_string="a + b")),
        says(
            "Check.",
            call("bash", command="python3 -c 'import a; print(a.add(1, 2))'; touch new.txt"),
            call("file_edit", path="none.py", old_string="a", new_string="b"),
            call("bash", command="curl https://example.org"),
            call("create_subagent", task="Make made.txt", model=child),
            call("bash", command="cat made.txt"),
        ),
        {"text": "# Done\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nSee [docs](https://example.org/a)."},
        flags=EDITS,
    )
    again = says("", call("bash", command="cat a.py"))
    return session(place, "Once more", again, {"text": "Still right."}, flags=("-c", *EDITS))


def compacted_session(place: Place, *, turns: int) -> str:
    """Turns that each read a file, with a window that few of them fill; a compaction by hand stands before the last."""
    told: list[dict[str, Any]] = []
    for number in range(turns):
        told += (
            says("I look.", call("file_read", path=f"f{number % 9}.txt")),
            {"text": f"Decision {number}: keep it."},
        )
    model = place.script(*told)
    provider, _, name = model.partition("/")
    place.home.mkdir(exist_ok=True)
    (place.home / "config.toml").write_text(f'[models.{provider}."{name}"]\nwindow = 50_000\n')
    for number in range(9):
        (place.folder / f"f{number}.txt").write_text("".join(f"{n} lines of file {number}\n" for n in range(600)))
    flags = ("-m", model, "--output-format", "stream-json", "--input-format", "stream-json")
    with place.start(*flags, stdin=True) as running:
        for number in range(turns):
            if number == turns - 1:
                running.control("command", text="/compact")
            running.say(f"Step {number}")
            running.wait_for(lambda line, wanted=f"Decision {number}:": wanted in str(line.get("result", "")))
        return str(running.ended().result["session_id"])
