"""The documentation sites that are read without asking: whole host names, each kept by the project it documents."""

from __future__ import annotations

DOCUMENTATION_SITES = frozenset(
    """
    docs.python.org peps.python.org packaging.python.org pypi.org wiki.python.org devguide.python.org typing.python.org
    pip.pypa.io setuptools.pypa.io virtualenv.pypa.io hatch.pypa.io python-poetry.org docs.astral.sh mypy-lang.org
    mypy.readthedocs.io docs.pytest.org tox.wiki hypothesis.readthedocs.io coverage.readthedocs.io
    www.python-httpx.org requests.readthedocs.io urllib3.readthedocs.io docs.aiohttp.org anyio.readthedocs.io
    trio.readthedocs.io flask.palletsprojects.com jinja.palletsprojects.com click.palletsprojects.com
    werkzeug.palletsprojects.com docs.djangoproject.com www.django-rest-framework.org fastapi.tiangolo.com
    sqlmodel.tiangolo.com typer.tiangolo.com www.starlette.io www.uvicorn.org docs.sqlalchemy.org
    alembic.sqlalchemy.org docs.pydantic.dev pydantic.dev docs.celeryq.dev www.attrs.org rich.readthedocs.io
    textual.textualize.io python-prompt-toolkit.readthedocs.io numpy.org docs.scipy.org scipy.org
    pandas.pydata.org docs.pola.rs matplotlib.org seaborn.pydata.org scikit-learn.org pytorch.org docs.pytorch.org
    www.tensorflow.org keras.io docs.jax.dev jax.readthedocs.io docs.jupyter.org jupyter.org docs.streamlit.io
    docs.dask.org docs.ray.io spark.apache.org arrow.apache.org airflow.apache.org kafka.apache.org
    www.sphinx-doc.org www.mkdocs.org docs.readthedocs.io docs.readthedocs.com

    developer.mozilla.org www.w3.org html.spec.whatwg.org url.spec.whatwg.org fetch.spec.whatwg.org
    dom.spec.whatwg.org encoding.spec.whatwg.org drafts.csswg.org tc39.es webassembly.org web.dev caniuse.com
    developer.chrome.com webkit.org nodejs.org docs.npmjs.com www.npmjs.com deno.com docs.deno.com bun.sh bun.com
    yarnpkg.com pnpm.io www.typescriptlang.org react.dev legacy.reactjs.org reactnative.dev reactrouter.com
    redux.js.org nextjs.org vuejs.org router.vuejs.org pinia.vuejs.org nuxt.com angular.dev angular.io svelte.dev
    www.solidjs.com astro.build docs.astro.build remix.run expressjs.com fastify.dev nestjs.com docs.nestjs.com
    vite.dev vitejs.dev vitest.dev webpack.js.org rollupjs.org esbuild.github.io babeljs.io eslint.org prettier.io
    biomejs.dev jestjs.io mochajs.org playwright.dev docs.cypress.io www.cypress.io pptr.dev testing-library.com
    tailwindcss.com getbootstrap.com sass-lang.com mui.com storybook.js.org jquery.com api.jquery.com lodash.com
    d3js.org threejs.org zod.dev trpc.io www.electronjs.org tauri.app

    doc.rust-lang.org www.rust-lang.org rust-lang.org docs.rs crates.io tokio.rs serde.rs go.dev pkg.go.dev
    golang.org en.cppreference.com isocpp.org gcc.gnu.org clang.llvm.org llvm.org cmake.org mesonbuild.com
    www.boost.org doc.qt.io docs.oracle.com docs.spring.io spring.io kotlinlang.org docs.gradle.org gradle.org
    maven.apache.org tomcat.apache.org hibernate.org junit.org www.scala-lang.org docs.scala-lang.org
    learn.microsoft.com docs.microsoft.com dotnet.microsoft.com www.nuget.org www.swift.org docs.swift.org swift.org
    developer.apple.com developer.android.com dart.dev docs.flutter.dev flutter.dev pub.dev www.php.net
    getcomposer.org packagist.org laravel.com symfony.com developer.wordpress.org www.ruby-lang.org ruby-doc.org
    docs.ruby-lang.org rubygems.org guides.rubyonrails.org api.rubyonrails.org elixir-lang.org hexdocs.pm
    hex.pm www.erlang.org www.phoenixframework.org www.haskell.org hackage.haskell.org ocaml.org clojure.org
    clojuredocs.org www.lua.org ziglang.org nim-lang.org julialang.org docs.julialang.org www.r-project.org
    cran.r-project.org perldoc.perl.org metacpan.org

    git-scm.com docs.github.com docs.gitlab.com pre-commit.com www.gnu.org man7.org manpages.debian.org www.debian.org
    wiki.debian.org help.ubuntu.com ubuntu.com wiki.archlinux.org man.archlinux.org docs.fedoraproject.org
    www.freebsd.org man.openbsd.org www.kernel.org docs.kernel.org nixos.org brew.sh docs.brew.sh curl.se
    www.openssl.org docs.openssl.org www.openssh.com nginx.org docs.nginx.com httpd.apache.org caddyserver.com
    docs.docker.com www.docker.com kubernetes.io helm.sh podman.io docs.podman.io developer.hashicorp.com
    www.terraform.io registry.terraform.io docs.ansible.com www.ansible.com prometheus.io grafana.com
    opentelemetry.io docs.aws.amazon.com cloud.google.com docs.cloud.google.com developers.google.com
    developers.cloudflare.com docs.netlify.com vercel.com devcenter.heroku.com

    www.postgresql.org dev.mysql.com mariadb.com mariadb.org www.sqlite.org sqlite.org duckdb.org redis.io
    valkey.io www.mongodb.com www.elastic.co docs.opensearch.org clickhouse.com neo4j.com cassandra.apache.org
    graphql.org grpc.io protobuf.dev www.prisma.io orm.drizzle.team json-schema.org www.json.org yaml.org toml.io
    www.openapis.org spec.openapis.org swagger.io semver.org keepachangelog.com commonmark.org spec.commonmark.org
    editorconfig.org www.rfc-editor.org rfc-editor.org datatracker.ietf.org www.ietf.org www.iana.org
    www.unicode.org unicode.org owasp.org cheatsheetseries.owasp.org cve.mitre.org www.cve.org nvd.nist.gov

    modelcontextprotocol.io agentskills.io agentclientprotocol.com docs.anthropic.com docs.claude.com
    platform.claude.com code.claude.com platform.openai.com developers.openai.com ai.google.dev
    docs.mistral.ai docs.ollama.com ollama.com huggingface.co python.langchain.com docs.langchain.com
    docs.llamaindex.ai docs.vllm.ai lmstudio.ai docs.tavily.com

    stackoverflow.com serverfault.com superuser.com askubuntu.com unix.stackexchange.com en.wikipedia.org
    tldp.org tree-sitter.github.io msgspec.dev
    """.split()
)
