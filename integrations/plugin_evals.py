"""Converts the evals of a Claude Code plugin (https://code.claude.com/docs/en/plugin-evals) for `agentcli eval skill`.

    python integrations/plugin_evals.py PLUGIN FOLDER && agentcli eval skill FOLDER

Graders that a program can check become commands, which run in the agent's copy after each attempt. Of the plugin only
its skills are taken. Limits, weights, and graders that only an attempt with the plugin can meet are left out, with a
note on stderr; cases with mocks, a case.yaml or a reference transcript are an error.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from agentcli.extensions.claude_code_names import ARGUMENTS, CLAUDE_CODE_NAMES
from agentcli.extensions.skills.skill import split_frontmatter

# It runs beside the helpers of checks. Exit code 0: the grader is met.
GRADE = """
import json, os, re, sys
from fnmatch import fnmatch
from pathlib import Path
from eval_check import TASK, record
grader, names, arguments = map(json.loads, sys.argv[1:4])
calls, trace = [], [json.dumps({"answer": record()["answer"]})]
for call in reversed(record()["calls"]):
    given = dict(call["input"])
    for theirs, ours in arguments.get(call["name"], {}).items():
        if ours in given:
            given[theirs] = os.path.abspath(given[ours]) if theirs == "file_path" else given[ours]
    calls.insert(0, (names.get(call["name"], call["name"]), json.dumps(given, separators=(",", ":"))))
    trace.insert(0, json.dumps({**call, "name": calls[0][0], "input": given}))
def positions(tool, input_match=""):
    return [n for n, (name, input) in enumerate(calls) if name == tool and re.search(input_match, input)]
def side(given):
    return positions(given) if isinstance(given, str) else positions(**given)
paths = (Path(folder, name) for folder, _, names in os.walk(".") for name in names)
created = [str(path) for path in paths if not (TASK / "start" / path).exists()]
kind = grader["type"]
if kind == "regex":
    target, how = grader.get("target", "last_message"), grader.get("match", "contains")
    texts = {"last_message": record()["answer"], "files": "\\n".join(created), "trace": "\\n".join(trace)}
    if isinstance(target, dict):
        if not Path(target["path"]).is_file():
            sys.exit("the file is missing")
        text = Path(target["path"]).read_text("utf-8", "replace")
    else:
        text = texts[target]
    flags = "".join(letter for letter in grader.get("flags", "") if letter in "ims")
    count = len(re.findall((f"(?{flags})" if flags else "") + grader["pattern"], text))
    met = count == int(how[6:]) if how.startswith("count:") else (count > 0) == (how == "contains")
elif kind == "tool_used":
    count = len(positions(grader["tool"], grader.get("input_match", "")))
    met = grader.get("min", 1) <= count <= grader.get("max", count)
elif kind == "tool_order":
    first, second = side(grader["before"]), side(grader["after"])
    met = bool(first and second) and first[0] < second[0]
else:
    globs = (grader["path"], grader["path"].replace("**/", ""))
    met = any(fnmatch(path, glob) for path in created for glob in globs) == grader.get("exists", True)
sys.exit(0 if met else "not met")
"""
OPTIONS = {
    "regex": {"pattern", "flags", "match", "target"},
    "tool_used": {"tool", "input_match", "min", "max"},
    "tool_order": {"before", "after"},
    "file_exists": {"path", "exists"},
    "llm": {"criteria", "focus"},
}


def assertion(file: Path) -> dict[str, Any] | None:
    """Return a grader's file as an assertion of evals.json; None if it is left out."""
    options, body = split_frontmatter(file.read_bytes())
    kind = options.get("type")
    if kind not in OPTIONS or options.keys() - {"type", "weight", "arm"} - OPTIONS[kind]:
        sys.exit(f"{file}: not a grader of {', '.join(OPTIONS)}, or an unknown option.")
    is_indicator = kind == "tool_used" and options.get("tool") == "Skill" and options.get("arm") != "both"
    if is_indicator or options.get("arm") == "with-only" or options.get("target") == "mock_calls":
        print(f"{file}: left out, because no attempt without the plugin could meet it.", file=sys.stderr)
        return None
    if "weight" in options:
        print(f"{file}: counts as much as the others.", file=sys.stderr)
    if kind == "llm":
        return {"name": file.stem, "type": "llm", "criteria": options.get("criteria", body)}
    re.compile(str(options.get("pattern", "")))
    arguments = [json.dumps(one) for one in (options, CLAUDE_CODE_NAMES, ARGUMENTS)]
    return {"name": file.stem, "type": "command", "command": shlex.join(["python3", "-c", GRADE, *arguments])}


def main(plugin: Path, folder: Path) -> None:
    if folder.exists():
        sys.exit(f"{folder} exists already.")
    cases = []
    for file in sorted(plugin.glob("evals/**/prompt.md")):
        if any(plugin.glob("evals/**/mocks")) or (file.parent / "case.yaml").exists():
            sys.exit(f"{file.parent}: mocks and case.yaml are not supported.")
        keys, prompt = split_frontmatter(file.read_bytes())
        if unused := sorted(
            keys.keys() & {"max_turns", "timeout_seconds", "model", "runs", "append_system_prompt", "env"}
        ):
            print(f"{file}: not used: {', '.join(unused)}.", file=sys.stderr)
        graders = [found for path in sorted(file.parent.glob("graders/*.md")) if (found := assertion(path))]
        if not graders:
            sys.exit(f"{file.parent}: no grader is left.")
        name = file.parent.relative_to(plugin / "evals").as_posix()
        cases.append({"id": name, "prompt": prompt, "assertions": graders})
    if not cases:
        sys.exit(f"{plugin} has no evals/NAME/prompt.md.")
    shutil.copytree(plugin / "skills", folder / "skills")
    (folder / "evals").mkdir()
    (folder / "evals/evals.json").write_text(json.dumps({"skill_name": plugin.name, "evals": cases}, indent=2), "utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
