# The NATS server that Boxfleet is tested with. scripts/images builds it.
FROM scratch
COPY nats-server /nats-server
# A new volume gets the owner of this directory.
COPY --chown=65532:65532 empty /var/lib/boxfleet-nats
USER 65532:65532
ENTRYPOINT ["/nats-server"]
