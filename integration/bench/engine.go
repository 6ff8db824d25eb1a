package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/docker"
)

// engine is the bare Docker Engine, which Boxfleet is compared with. It creates containers through the same adapter as
// the worker. Its execs use plain HTTP on kept connections.
type engine struct {
	host       string
	deployment string // label value of all containers of this engine
	docker     *docker.Engine
	http       *http.Client
	made       atomic.Int64
	subnets    chan netip.Prefix // subnets that no network uses
}

// connectEngine connects to the engine at DOCKER_HOST, which must be a unix socket, or to the default engine.
func connectEngine(ctx context.Context) (*engine, error) {
	host := os.Getenv("DOCKER_HOST")
	if host == "" {
		host = "unix:///var/run/docker.sock"
	}
	socket, ok := strings.CutPrefix(host, "unix://")
	if !ok {
		return nil, fmt.Errorf("DOCKER_HOST must be a unix socket, got %q", host)
	}
	e := &engine{host: host, deployment: "test-bench-" + strings.ToLower(ulid.Make().String()),
		subnets: make(chan netip.Prefix, 64)}
	e.http = &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 64,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	var err error
	if e.docker, err = docker.Connect(ctx,
		docker.Config{Host: host, Deployment: e.deployment, Fence: docker.Unfenced}); err != nil {
		return nil, err
	}
	if err := e.call(ctx, "GET", "/images/"+image+"/json", nil, nil); err != nil {
		return nil, fmt.Errorf("the bench needs the image %s: run `make image`: %w", image, err)
	}
	return e, e.findSubnets(ctx)
}

// findSubnets finds subnets that are outside the workers' pool and that no network uses.
func (e *engine) findSubnets(ctx context.Context) error {
	used, err := e.docker.UsedSubnets(ctx)
	if err != nil {
		return err
	}
	for i := range cap(e.subnets) {
		subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 202, byte(i), 0}), 24)
		free := true
		for _, u := range used {
			free = free && !u.Overlaps(subnet)
		}
		if free {
			e.subnets <- subnet
		}
	}
	if len(e.subnets) == 0 {
		return errors.New("no free subnet in 10.202.0.0/18")
	}
	return nil
}

func (e *engine) close() error {
	e.docker.Close()
	e.http.CloseIdleConnections()
	return sweep(e.host, e.deployment)
}

// box is a container on its own network.
type box struct {
	e       *engine
	id      string
	network string
	subnet  netip.Prefix
	took    map[string]float64 // duration of each step of create, in milliseconds
}

// create does what a user without Boxfleet would do: create a network and a container, and start the container. The
// container has the limits and hardening of a sandbox. An interrupt does not abort create: the Engine would still
// finish the request, and nothing would remove the container.
func (e *engine) create(ctx context.Context) (*box, error) {
	ctx = context.WithoutCancel(ctx)
	name := e.deployment + "-" + strconv.FormatInt(e.made.Add(1), 10)
	b := &box{e: e, network: name, subnet: <-e.subnets, took: map[string]float64{}}
	for _, step := range []struct {
		name string
		call func() error
	}{
		{"network", func() error {
			return e.docker.CreateNetwork(ctx, docker.NetworkSpec{Name: name, Subnet: b.subnet})
		}},
		{"container", func() (err error) { b.id, err = e.docker.CreateContainer(ctx, hardened(name)); return err }},
		{"start", func() error { return e.docker.StartContainer(ctx, b.id) }},
	} {
		var err error
		if b.took[step.name], err = timed(step.call); err != nil {
			return b, err
		}
	}
	return b, nil
}

// hardened returns a container on the network of the same name, with the limits of spec and the worker's hardening.
func hardened(name string) docker.ContainerSpec {
	return docker.ContainerSpec{
		Name: name, Image: image, Entrypoint: []string{"sleep", "1000000"}, User: "0:0", Cwd: "/", Network: name,
		CPU: float64(runtime.NumCPU()), Memory: 256 << 20, PIDs: int64(protocol.DefaultPIDs),
		CapDrop: []string{"ALL"}, CapAdd: []string{"SETUID", "SETGID", "KILL", "SETPCAP"}, NoNewPrivileges: true,
	}
}

// remove kills and removes the container, then removes its network.
func (b *box) remove(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	if err := b.e.docker.RemoveContainer(ctx, b.id); err != nil {
		return err
	}
	b.e.subnets <- b.subnet
	return b.e.docker.RemoveNetwork(ctx, b.network)
}

// exec runs a command with its output attached and returns the number of bytes on stdout. An exit code other than 0 is
// an error.
func (b *box) exec(ctx context.Context, command ...string) (int64, error) {
	var made struct{ ID string }
	err := b.e.call(ctx, "POST", "/containers/"+b.id+"/exec",
		map[string]any{"AttachStdout": true, "AttachStderr": true, "Cmd": command}, &made)
	if err != nil {
		return 0, err
	}
	stream, err := b.e.send(ctx, "POST", "/exec/"+made.ID+"/start", map[string]any{"Detach": false})
	if err != nil {
		return 0, err
	}
	n, err := countStdout(stream)
	if err = errors.Join(err, stream.Close()); err != nil {
		return n, err
	}
	var state struct {
		ExitCode int
		Running  bool
	}
	// The stream ends shortly before the Engine records the exit code.
	for range 1000 {
		if err = b.e.call(ctx, "GET", "/exec/"+made.ID+"/json", nil, &state); err != nil || !state.Running {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err == nil && (state.Running || state.ExitCode != 0) {
		err = fmt.Errorf("the engine's exec of %q: running %v, exit code %d", command, state.Running, state.ExitCode)
	}
	return n, err
}

// countStdout counts the bytes of stdout in the Engine's stream. Each frame of the stream has a kind, three zeros, a
// length and data.
func countStdout(stream io.Reader) (int64, error) {
	var n int64
	var header [8]byte
	for {
		if _, err := io.ReadFull(stream, header[:]); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return n, err
		}
		size, err := io.CopyN(io.Discard, stream, int64(binary.BigEndian.Uint32(header[4:])))
		if header[0] == 1 {
			n += size
		}
		if err != nil {
			return n, err
		}
	}
}

// call sends a request. It decodes the answer into out unless out is nil.
func (e *engine) call(ctx context.Context, method, path string, in, out any) error {
	body, err := e.send(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer body.Close()
	data, err := io.ReadAll(body)
	if err == nil && out != nil {
		err = json.Unmarshal(data, out)
	}
	return err
}

func (e *engine) send(ctx context.Context, method, path string, in any) (io.ReadCloser, error) {
	var body io.Reader
	if in != nil {
		encoded, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(encoded)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://engine"+path, body)
	if err != nil {
		return nil, err
	}
	if in != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := e.http.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= 400 {
		defer response.Body.Close()
		message, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10)) // the part that arrived before any error
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, response.Status, message)
	}
	return response.Body, nil
}
