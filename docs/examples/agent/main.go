// Command agent shows how a program gives tools to a model: shell, read, write, edit, glob and grep, over any
// environment. A script takes the part of the model. It writes a program with a mistake, runs it, finds the mistake and
// mends it.
//
//	go run ./docs/examples/agent --backend local /tmp/work
//	go run ./docs/examples/agent --backend docker boxfleet/demo:busybox
//	go run ./docs/examples/agent --backend ssh --known-hosts /home/me/.ssh/known_hosts box@build1
//	go run ./docs/examples/agent --backend fleet my-sandbox
//
// With local the commands run on this machine without isolation, in a directory that must exist. For a real model,
// replace [script] by a type that asks it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/sdk/environment"
	"github.com/boxfleet/boxfleet/sdk/environment/docker"
	"github.com/boxfleet/boxfleet/sdk/environment/fleet"
	"github.com/boxfleet/boxfleet/sdk/environment/local"
	"github.com/boxfleet/boxfleet/sdk/environment/ssh"
	"github.com/boxfleet/boxfleet/sdk/environment/tools"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

// run opens the environment of the arguments and lets the model work in it.
func run(ctx context.Context, args []string, out io.Writer) error {
	var s settings
	flags := flag.NewFlagSet("agent", flag.ContinueOnError)
	flags.StringVar(&s.backend, "backend", "local", "what TARGET is: local, docker, ssh or fleet")
	flags.StringVar(&s.knownHosts, "known-hosts", "", "file with the key of the SSH host, absolute")
	flags.StringVar(&s.identity, "identity", "", "file with the private key for SSH, absolute")
	flags.StringVar(&s.url, "url", os.Getenv("BOXFLEET_NATS"), "address of the fleet's NATS server")
	flags.StringVar(&s.creds, "creds", os.Getenv("BOXFLEET_CREDS"), "file with the credentials for the fleet")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("give one TARGET: a directory, an image, USER@HOST or the name of a sandbox")
	}
	s.target = flags.Arg(0)
	env, end, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer end()
	return work(ctx, tools.New(env, tools.Limits{}), &script{steps: repair}, out)
}

// settings says which environment to open.
type settings struct {
	backend, target      string
	knownHosts, identity string
	url, creds           string
}

// open opens the environment. The caller calls end.
func (s *settings) open(ctx context.Context) (env environment.Environment, end func(), err error) {
	nothing := func() {}
	switch s.backend {
	case "local":
		env, err = local.New(local.Config{Dir: s.target})
		return env, nothing, err
	case "docker":
		container, err := docker.Start(ctx, docker.Config{Image: s.target, Dir: "/tmp/agent"})
		if err != nil {
			return nil, nil, err
		}
		return container, func() {
			if err := container.Close(); err != nil {
				fmt.Fprintln(os.Stderr, "agent:", err)
			}
		}, nil
	case "ssh":
		user, host, ok := strings.Cut(s.target, "@")
		if !ok {
			return nil, nil, fmt.Errorf("TARGET must be USER@HOST, got %q", s.target)
		}
		machine, err := ssh.New(ssh.Config{Host: host, User: user, KnownHosts: s.knownHosts, Identity: s.identity})
		if err != nil {
			return nil, nil, err
		}
		return machine, func() { machine.Close() }, nil
	case "fleet":
		client, err := sdk.Connect(ctx, sdk.Options{URL: s.url, Creds: s.creds})
		if err != nil {
			return nil, nil, err
		}
		return fleet.New(client.Sandbox(s.target)), client.Close, nil
	}
	return nil, nil, fmt.Errorf("--backend must be local, docker, ssh or fleet, got %q", s.backend)
}
