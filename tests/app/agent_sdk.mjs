// A program that uses the Agent SDK of npm: it plays three short sessions and prints what it was told, a line each.
import { createSdkMcpServer, query, tool } from "@anthropic-ai/claude-agent-sdk";
import { z } from "zod";

const [executable, cwd, ...models] = process.argv.slice(2);
const add = tool("add", "Adds", { a: z.number(), b: z.number() }, async ({ a, b }) => ({
  content: [{ type: "text", text: String(a + b) }],
}));
const deny = async () => ({
  hookSpecificOutput: { hookEventName: "PreToolUse", permissionDecision: "deny", permissionDecisionReason: "not here" },
});
const sessions = [
  { canUseTool: async (name, input) => (say({ asked: name, input }), { behavior: "allow", updatedInput: input }) },
  { mcpServers: { calc: createSdkMcpServer({ name: "calc", tools: [add] }) }, allowedTools: ["mcp__calc__add"] },
  { hooks: { PreToolUse: [{ matcher: "Bash", hooks: [deny] }] }, agents: { rev: { description: "d", prompt: "p" } } },
];

function say(value) {
  console.log(JSON.stringify(value));
}

for (const [index, options] of sessions.entries()) {
  const common = { pathToClaudeCodeExecutable: executable, cwd, model: models[index], stderr: (text) => console.error(text) };
  for await (const message of query({ prompt: "go", options: { ...common, ...options } })) {
    if (message.type === "result") say({ result: message.result, subtype: message.subtype });
  }
}
