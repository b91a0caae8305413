# The static program of `make dist`, with a shell for CI jobs.
FROM debian:13-slim
COPY target/dist/mqq /usr/local/bin/mqq
WORKDIR /work
USER 65534:65534
ENTRYPOINT ["mqq"]
