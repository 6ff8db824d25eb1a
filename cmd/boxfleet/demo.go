package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

const (
	demoImage = "boxfleet/demo:busybox"
	module    = "module github.com/boxfleet/boxfleet"
)

func demoCommand(srv *servers, cmds runCommands) *cobra.Command {
	return &cobra.Command{
		Use: "demo", Short: "Run a real build in a sandbox and show what happened", Args: takes(),
		Long: `Start a fleet in a temporary directory, copy Boxfleet's own source into a sandbox, mount this machine's Go
toolchain and module cache read-only, build and test package protocol there, print the sandbox's history, and remove
everything. boxfleet exits with the exit code of the build.`,
		Example: "  boxfleet demo",
		RunE:    func(cmd *cobra.Command, _ []string) error { return runDemo(cmd.Context(), srv, cmds) },
	}
}

// demo is one run of the demo.
type demo struct {
	*console
	cmds                    runCommands
	source, goroot, modules string
	took                    []string
}

// runDemo starts a fleet, runs the build, and prints how long each step took.
func runDemo(ctx context.Context, srv *servers, cmds runCommands) (err error) {
	d := &demo{console: srv.console, cmds: cmds}
	if err := d.find(ctx); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "boxfleet-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	srv.config.DataDir = dir
	srv.config.Worker.AllowMounts = []string{d.goroot, d.modules}
	var fleet *local
	err = d.step("start NATS, a coordinator and a worker", func() (err error) {
		fleet, err = srv.startLocal(ctx, dir, embedded.Config{Name: "demo"}, nil, true, &health{})
		return err
	})
	if err != nil {
		return err
	}
	defer func() {
		if endErr := fleet.end(); err == nil {
			err = endErr
		}
	}()
	where := fleet.connection()
	c, err := sdk.Connect(ctx, sdk.Options{URL: where.URL, Token: where.Token, Creds: where.Creds,
		Name: "boxfleet-demo"})
	if err != nil {
		return err
	}
	defer c.Close()
	err = d.build(ctx, c)
	srv.say("\n== how long it took")
	for _, line := range d.took {
		srv.say("   %s", line)
	}
	return err
}

// step runs one part of the demo and records how long it took.
func (d *demo) step(what string, do func() error) error {
	started := time.Now()
	err := do()
	d.took = append(d.took, fmt.Sprintf("%8s  %s", time.Since(started).Round(time.Millisecond), what))
	return err
}

// find locates the source, the toolchain and the module cache. It downloads the modules of the build to the cache,
// because the build in the sandbox runs offline.
func (d *demo) find(ctx context.Context) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	for d.source = dir; ; d.source = filepath.Dir(d.source) {
		data, err := os.ReadFile(filepath.Join(d.source, "go.mod"))
		if err == nil && strings.HasPrefix(string(data), module+"\n") {
			break
		}
		if d.source == filepath.Dir(d.source) {
			return protocol.Errorf(protocol.FailedPrecondition, "",
				"the demo builds Boxfleet's source, but %s is not in its source tree", dir)
		}
	}
	out, err := d.goCommand(ctx, "env", "GOROOT", "GOMODCACHE")
	if err != nil {
		return err
	}
	lines := strings.Fields(out)
	if len(lines) != 2 {
		return protocol.Errorf(protocol.Internal, "", "unexpected output of go env: %q", out)
	}
	d.goroot, d.modules = lines[0], lines[1]
	_, err = d.goCommand(ctx, "list", "-deps", "-test", "./protocol")
	return err
}

func (d *demo) goCommand(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = d.source
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", protocol.Errorf(protocol.FailedPrecondition, "", "go %s: %v %s", strings.Join(args, " "), err,
			stderr.String())
	}
	return string(out), nil
}

// build runs the build in a sandbox and always deletes the sandbox.
func (d *demo) build(ctx context.Context, c *sdk.Client) (err error) {
	var source protocol.Copy
	if err := d.step("upload the source", func() (err error) {
		source, err = c.Upload(ctx, d.source, "/src", sdk.WithExclude("/.git", "/bin"))
		return err
	}); err != nil {
		return err
	}
	id := "demo"
	defer func() {
		deleteErr := d.step("delete the sandbox", func() error { return d.cmds.deleteAfter(ctx, c.Sandbox(id), err) })
		d.history(context.WithoutCancel(ctx), c, id)
		if err == nil {
			err = deleteErr
		}
	}()
	spec := protocol.SandboxSpec{
		Image: demoImage, Cwd: "/src", CPU: float64(runtime.NumCPU()), Memory: 2 << 30, Copies: []protocol.Copy{source},
		Mounts: []protocol.Mount{{Source: d.goroot, Target: "/usr/local/go"}, {Source: d.modules, Target: "/modules"}},
		Env: map[string]string{
			"PATH": "/usr/local/go/bin:/bin", "HOME": "/tmp", "GOROOT": "/usr/local/go", "GOMODCACHE": "/modules",
			"GOCACHE": "/tmp/cache",
			"GOPATH":  "/tmp/gopath", "CGO_ENABLED": "0", "GOPROXY": "off", "GOSUMDB": "off", "GOTOOLCHAIN": "local",
			"GOFLAGS": "-mod=mod -buildvcs=false",
		},
	}
	var box *sdk.Sandbox
	if err := d.step("create the sandbox", func() (err error) {
		box, err = c.Create(ctx, spec, sdk.WithID(id))
		return err
	}); err != nil {
		return err
	}
	for _, command := range [][]string{{"go", "version"}, {"go", "build", "-v", "./protocol"},
		{"go", "test", "./protocol"}} {
		line := strings.Join(command, " ")
		d.say("\n== %s", line)
		err := d.step(line, func() error {
			return d.cmds.exec(ctx, box, sdk.NewID(), "", &protocol.ExecSpec{Command: command}, nil)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// history prints the sandbox's history.
func (d *demo) history(ctx context.Context, c *sdk.Client, id string) {
	d.say("\n== history of sandbox %s", id)
	for e, err := range c.Sandbox(id).Events(ctx) {
		if err != nil {
			d.say("   %v", err)
			return
		}
		printEvent(d.plain(d.stdout), &e)
	}
}
