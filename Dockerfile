# kedge in a container, for CI. It is built in the folder of a release:
#
#   make release && docker build -t kedge -f Dockerfile build/release
#   docker run -d --name kedge --privileged --tmpfs /run -p 6443:6443 kedge
#   docker exec kedge kubectl get nodes
FROM debian:bookworm-slim
# For images from registries, and for volumes.
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates e2fsprogs && rm -rf /var/lib/apt/lists/*
RUN --mount=type=bind,target=/release sh /release/install.sh
# overlayfs cannot lie on the container's own.
VOLUME ["/var/lib/kedge", "/var/lib/kubelet"]
ENTRYPOINT ["/usr/local/bin/kedge"]
CMD ["server"]
