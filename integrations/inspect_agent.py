"""agentcli as an agent of Inspect (https://inspect.aisi.org.uk), so that any of its tasks can evaluate it.

    pip install agentcli inspect-ai
    inspect eval inspect_evals/gaia --solver integrations/inspect_agent.py@agentcli --model anthropic/claude-sonnet-5-5

The command line runs in the sample's sandbox, where agentcli must be installed. Its requests go to Inspect's model,
which counts, limits and logs them.
"""

from inspect_ai.agent import Agent, AgentState, agent, sandbox_agent_bridge
from inspect_ai.model import ChatMessageSystem, ChatMessageUser
from inspect_ai.util import sandbox

START_S = 60
LIMITS = (53, 54)  # exit codes of a turn that met a limit, whose answer is scored as it is


@agent(name="agentcli")
def agentcli(
    program: str = "agentcli", arguments: str = "--permission-mode auto --max-turns 100", cwd: str | None = None
) -> Agent:
    """Return an agent that runs `program` with these arguments, which spaces separate, in a folder of the sandbox.

    In a container that forbids user namespaces and has no Landlock, commands would ask, and be denied: add
    `--sandbox danger-full-access` to the arguments, if the container is the sandbox.
    """

    async def execute(state: AgentState) -> AgentState:
        system = "\n\n".join(one.text for one in state.messages if isinstance(one, ChatMessageSystem))
        prompt = "\n\n".join(one.text for one in state.messages if isinstance(one, ChatMessageUser))
        command = [program, "-p", "--no-session", "-m", "anthropic/inspect", *arguments.split()]
        command += ["--append-system-prompt", system] if system else []
        async with sandbox_agent_bridge(state) as bridge:
            address = {"ANTHROPIC_BASE_URL": f"http://localhost:{bridge.port}", "ANTHROPIC_API_KEY": "inspect"}
            # The bridge does not wait until its proxy listens.
            listens = f"until (exec 3<>/dev/tcp/localhost/{bridge.port}) 2>/dev/null; do sleep 0.1; done"
            await sandbox().exec(["bash", "-c", listens], timeout=START_S)
            ran = await sandbox().exec(command, input=prompt, cwd=cwd, env=address)
        if ran.returncode not in (0, *LIMITS):
            raise RuntimeError(f"agentcli ended with {ran.returncode}: {ran.stderr or ran.stdout}")
        return bridge.state

    return execute
