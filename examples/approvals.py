"""Decides in the program which calls may run, where the command line would ask a person."""

from pathlib import Path
from tempfile import mkdtemp

from scripted import scripted

from agentcli import Agent, Allow, Deny
from agentcli.events import AnyQuestion

CALLS = [{"name": "file_write", "input": {"path": name, "content": "milk"}} for name in ("a.txt", "b.txt")]


def decide(request: AnyQuestion) -> Allow | Deny:
    if request.call.input["path"] == "a.txt":
        return Allow(input={"path": "a.txt", "content": "oat milk"})  # checked like the model's own
    return Deny("Only a.txt may be written.")


folder = mkdtemp()
print(Agent(scripted({"tool_calls": CALLS}, {"text": "Done."}), cwd=folder, approve=decide).run_sync("Go.").text)
print(Path(folder, "a.txt").read_text(), [path.name for path in Path(folder).iterdir()])
