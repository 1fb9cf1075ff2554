# agentcli in a container: docker build -t agentcli . && docker run -it --rm -v "$PWD":/work -e ANTHROPIC_API_KEY agentcli
#
# Its sandbox, bubblewrap, makes a user namespace and mounts a /proc of its own, which engines forbid by default. To let it:
#   docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined …
#   podman run --security-opt unmask=ALL …
# Without these, Landlock confines commands, which is weaker and has no dry runs (docs/ci.md#containers). Adding
# SYS_ADMIN does not help: bubblewrap refuses to run with it as a user.
FROM python:3.13-slim

RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap git \
    && rm -rf /var/lib/apt/lists/*

COPY . /usr/src/agentcli
RUN pip install --no-cache-dir "/usr/src/agentcli[cloud,mcp]" && rm -rf /usr/src/agentcli

# Sessions and settings are in /home/agent: mount a volume there to keep them.
RUN useradd --create-home agent
USER agent
WORKDIR /work
ENTRYPOINT ["agentcli"]
