"""Gets the answer as an instance of a class; the first one does not fit, so it is asked for again."""

from dataclasses import dataclass

from scripted import scripted

from agentcli import Agent

MODEL = scripted({"text": '{"name": "Lima", "people": "many"}'}, {"text": '{"name": "Lima", "people": 10000000}'})


@dataclass
class City:
    name: str
    people: int


done = Agent(MODEL, output_type=City).run_sync("Which city is the capital of Peru?")
print(f"{done.output.name} has {done.output.people:,} inhabitants.")
