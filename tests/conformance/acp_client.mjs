// A client made with the protocol's own SDK. It writes one line of JSON for each step: what the agent answered.
import { spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";
import { pathToFileURL } from "node:url";

const [sdk, cwd, ...command] = process.argv.slice(2);
const acp = await import(pathToFileURL(sdk).href);
const agent = spawn(command[0], command.slice(1), { stdio: ["pipe", "pipe", "inherit"] });
const say = (step, value) => console.log(JSON.stringify({ step, value }));
const failure = (error) => ({ code: error.code, message: error.message });

const app = acp
  .client({ name: "test" })
  .onRequest(acp.methods.client.session.requestPermission, ({ params }) => ({
    outcome: { outcome: "selected", optionId: params.options[0].optionId },
  }))
  .onNotification(acp.methods.client.session.update, ({ params }) => say("update", params));

const stream = acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout));
await app.connectWith(stream, async (ctx) => {
  const ask = async (step, method, params) => {
    const answer = await ctx.request(method, params).catch(failure);
    say(step, answer);
    return answer;
  };
  const clientCapabilities = { auth: { terminal: true }, session: { notices: {} } };
  await ask("initialize", "initialize", { protocolVersion: 1, clientCapabilities });
  await ask("authenticate", "authenticate", { methodId: "login" });
  const { sessionId } = await ask("new", "session/new", { cwd, mcpServers: [] });
  if (sessionId === undefined) return;
  const prompt = (sessionId, text) => ({ sessionId, prompt: [{ type: "text", text }] });
  await ask("prompt", "session/prompt", prompt(sessionId, "go"));
  const fork = await ask("fork", "session/fork", { sessionId, cwd, mcpServers: [] });
  await ask("prompt fork", "session/prompt", prompt(fork.sessionId, "in the copy"));
  await ask("mode", "session/set_config_option", { sessionId, configId: "mode", value: "plan" });
  await ask("close", "session/close", { sessionId });
  await ask("resume", "session/resume", { sessionId, cwd, mcpServers: [] });
  await ask("list", "session/list", { cwd });
  await ask("delete", "session/delete", { sessionId });
  await ask("list again", "session/list", { cwd });
});
agent.kill();
