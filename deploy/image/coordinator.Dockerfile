# The coordinator alone. scripts/images builds it.
FROM scratch
COPY boxfleet /boxfleet
USER 65532:65532
ENTRYPOINT ["/boxfleet"]
CMD ["coordinator"]
