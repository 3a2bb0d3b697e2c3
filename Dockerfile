# One image for every part: webserver, daemon, code location, runs, tracking server and `xc serve`.
#   docker build -t xc-platform:0.3.0 .          docs/production.md
FROM python:3.11.14-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY xc_core xc_core
COPY assets assets
COPY pipelines pipelines
RUN python -m venv /opt/xc && /opt/xc/bin/pip install -c constraints.txt '.[cpu,kubernetes,lexical,lightgbm,minilm,s3]'

FROM python:3.11.14-slim-bookworm
# git: xc records the commit of the project, and DVC needs it; libgomp1: torch and faiss
RUN apt-get update && apt-get install -y --no-install-recommends git libgomp1 && rm -rf /var/lib/apt/lists/* \
  && groupadd --gid 10001 xc && useradd --uid 10001 --gid xc --create-home xc
COPY --from=build /opt/xc /opt/xc
COPY constraints.txt /opt/xc/constraints.txt
ENV PATH=/opt/xc/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 XC_ROOT=/project
USER 10001:10001
WORKDIR /project
VOLUME /project
EXPOSE 8080
# for `xc serve --host 0.0.0.0`; Kubernetes has probes of its own. Docker may set http_proxy, which is not for 127.0.0.1
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
  CMD ["python", "-c", "import urllib.request as u; u.build_opener(u.ProxyHandler({})).open('http://127.0.0.1:8080/health')"]
CMD ["xc", "--help"]
