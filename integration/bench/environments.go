package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"

	"github.com/boxfleet/boxfleet/sdk/environment"
	"github.com/boxfleet/boxfleet/sdk/environment/docker"
	"github.com/boxfleet/boxfleet/sdk/environment/fleet"
	"github.com/boxfleet/boxfleet/sdk/environment/local"
	"github.com/boxfleet/boxfleet/sdk/environment/shell"
	"github.com/boxfleet/boxfleet/sdk/environment/ssh"
	"github.com/boxfleet/boxfleet/sdk/environment/ssh/sshtest"
)

// place is an environment, with a directory that it may write to.
type place struct {
	name, dir string
	env       environment.Environment
}

// measureEnvironments measures commands and calls for files in each environment of the SDK, side by side. The samples
// of the environments alternate.
func measureEnvironments(ctx context.Context, b *bench) (err error) {
	var places []place
	var end []func() error
	defer func() {
		for _, f := range end {
			err = errors.Join(err, f())
		}
	}()
	for _, open := range []func(context.Context, *bench) (place, func() error, error){
		openFleet, openDocker, openSSH, openShell, openLocal,
	} {
		p, stop, err := open(ctx, b)
		if errors.Is(err, sshtest.ErrNoServer) {
			fmt.Fprintln(b.stderr, "the environment ssh is left out:", err)
			continue
		}
		if err != nil {
			return err
		}
		places, end = append(places, p), append(end, stop)
	}
	for _, call := range environmentCalls {
		if err := inEach(ctx, b, places, call); err != nil {
			return fmt.Errorf("%s: %w", call.name, err)
		}
	}
	return nil
}

// environmentCall is a call that is measured in each environment.
type environmentCall struct {
	name string
	do   func(ctx context.Context, p place) error
}

var environmentCalls = []environmentCall{
	{"execute `true`", func(ctx context.Context, p place) error {
		r, err := environment.Execute(ctx, p.env, "true", environment.Options{})
		if err == nil && r.ExitCode != 0 {
			err = fmt.Errorf("exit code %d: %s", r.ExitCode, r.Stderr)
		}
		return err
	}},
	{"write 64 KiB", func(ctx context.Context, p place) error {
		return p.env.WriteFile(ctx, p.file(), make([]byte, 64<<10))
	}},
	{"read 64 KiB", func(ctx context.Context, p place) error {
		data, err := p.env.ReadFile(ctx, p.file())
		if err == nil && len(data) != 64<<10 {
			err = fmt.Errorf("read %d bytes", len(data))
		}
		return err
	}},
	{"list a directory", func(ctx context.Context, p place) error {
		_, err := p.env.ListFiles(ctx, p.dir)
		return err
	}},
}

func (p place) file() string { return filepath.Join(p.dir, "boxfleet-bench") }

func inEach(ctx context.Context, b *bench, places []place, call environmentCall) error {
	rows := make([]*measurement, len(places))
	for i, p := range places {
		rows[i] = &measurement{Name: call.name + ", environment " + p.name, Unit: unitMilliseconds}
		b.add(rows[i])
	}
	for range b.pick(30, 3) {
		for i, p := range places {
			took, err := timed(func() error { return call.do(ctx, p) })
			if err != nil {
				return fmt.Errorf("environment %s: %w", p.name, err)
			}
			rows[i].Ours = append(rows[i].Ours, took)
		}
	}
	return nil
}

func openFleet(ctx context.Context, b *bench) (place, func() error, error) {
	d, err := b.deployed(ctx)
	if err != nil {
		return place{}, nil, err
	}
	boxes, err := d.sandboxes(ctx, 1, spec())
	if err != nil {
		return place{}, nil, err
	}
	return place{"fleet", "/tmp", fleet.New(boxes[0])}, func() error { return deleteAll(ctx, boxes) }, nil
}

func openDocker(ctx context.Context, _ *bench) (place, func() error, error) {
	env, err := docker.Start(ctx, docker.Config{Image: image})
	if err != nil {
		return place{}, nil, err
	}
	return place{"docker", "/tmp", env}, env.Close, nil
}

func openSSH(ctx context.Context, b *bench) (place, func() error, error) {
	dir, err := ownDir(b, "sshd")
	if err != nil {
		return place{}, nil, err
	}
	server, err := sshtest.Start(ctx, dir, "")
	if err != nil {
		return place{}, nil, err
	}
	env, err := ssh.New(server.Config)
	if err != nil {
		server.Close()
		return place{}, nil, err
	}
	return place{"ssh", dir, env}, func() error { defer server.Close(); return env.Close() }, nil
}

func openShell(_ context.Context, b *bench) (place, func() error, error) {
	dir, err := ownDir(b, "shell")
	if err != nil {
		return place{}, nil, err
	}
	env, err := shell.New(shell.Config{
		Description: environment.Description{Backend: "shell", Isolation: environment.IsolationNone},
		Run: func(ctx context.Context, script shell.Script) iter.Seq2[environment.Event, error] {
			return shell.Process(ctx, dir, script.Text, script.Argv()...)
		},
	})
	return place{"shell", dir, env}, func() error { return nil }, err
}

func openLocal(_ context.Context, b *bench) (place, func() error, error) {
	dir, err := ownDir(b, "local")
	if err != nil {
		return place{}, nil, err
	}
	env, err := local.New(local.Config{Dir: dir})
	return place{"local", dir, env}, func() error { return nil }, err
}

// ownDir makes a directory below that of the bench.
func ownDir(b *bench, name string) (string, error) {
	dir := filepath.Join(b.dir, name)
	return dir, os.MkdirAll(dir, 0o700)
}
