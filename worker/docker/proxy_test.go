package docker_test

import (
	"io"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"

	"github.com/boxfleet/boxfleet/worker/docker/dockertest"
)

// An attach request turns its connection into a plain stream in both directions. The proxy must forward that stream.
func TestTheProxyForwardsAnAttachedStream(t *testing.T) {
	t.Parallel()
	b, ctx := newBench(t), t.Context()
	bare, err := client.NewClientWithOpts(client.WithHost(b.host), client.WithAPIVersionNegotiation())
	check(t, err)
	defer bare.Close()
	made, err := bare.ContainerCreate(ctx, &container.Config{
		Image: dockertest.Image, Cmd: []string{"cat"}, OpenStdin: true, StdinOnce: true, AttachStdin: true,
		AttachStdout: true,
		Labels:       map[string]string{"boxfleet.deployment": b.deployment},
	}, &container.HostConfig{NetworkMode: "none"}, nil, nil, b.name("cat"))
	check(t, err)
	stream, err := bare.ContainerAttach(ctx, made.ID, container.AttachOptions{Stream: true, Stdin: true, Stdout: true})
	check(t, err)
	defer stream.Close()
	check(t, bare.ContainerStart(ctx, made.ID, container.StartOptions{}))
	_, err = io.WriteString(stream.Conn, "there and back")
	check(t, err)
	check(t, stream.CloseWrite())
	got, err := io.ReadAll(stream.Reader)
	check(t, err)
	// The first eight bytes are a header with the number of the stream, here stdout, and the length of the text.
	if want := "\x01\x00\x00\x00\x00\x00\x00\x0ethere and back"; string(got) != want {
		t.Errorf("got %q from the attached stream, want %q", got, want)
	}
	if n := len(b.proxy.Mutations()); n != 3 {
		t.Errorf("the proxy recorded %d changes, want create, attach and start", n)
	}
}
