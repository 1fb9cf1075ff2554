# agentcli in a container: docker build -t agentcli . && docker run -it --rm -v "$PWD":/work -e ANTHROPIC_API_KEY agentcli
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
