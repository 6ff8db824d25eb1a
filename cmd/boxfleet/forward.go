package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// forwardCommands are the commands that forward ports.
type forwardCommands struct{ *client }

func (cmds forwardCommands) forwardCommand() *cobra.Command {
	var service, address string
	cmd := &cobra.Command{
		Use: "forward SANDBOX [LOCAL:]PORT...", Short: "Forward ports of this machine to servers in a sandbox",
		Args: takesForwards, ValidArgsFunction: cmds.completeSandbox,
		Long: `Listen on ports of this machine, and forward each connection to a server in the sandbox. The sandbox needs
neither a published port nor a network.

PORT is the server's port in the sandbox, or the absolute path of a unix socket. LOCAL is the port on this machine:
by default the same as PORT, and 0 for any free port. boxfleet prints where it listens, and runs until Ctrl-C.

Every program that can connect to the local port reaches the server with your rights. --address 0.0.0.0 lets other
machines connect.`,
		Example: "  boxfleet forward web 8080\n  boxfleet forward web 9000:80 0:443\n" +
			"  boxfleet forward web 5432 --service db\n  boxfleet forward web 2375:/var/run/app.sock",
		RunE: func(cmd *cobra.Command, args []string) error {
			forwards, err := parseForwards(args[1:])
			if err != nil {
				return err
			}
			if service != "" {
				if err := protocol.ValidateID("--service", service); err != nil {
					return err
				}
			}
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				box := c.Sandbox(args[0])
				if err := box.Refresh(ctx); err != nil {
					return err
				}
				f := &forwarder{console: cmds.console, box: box, dial: box.Dialer(sdk.WithService(service))}
				return f.run(ctx, address, forwards)
			})
		},
	}
	cmd.Flags().StringVar(&service, "service", "", "`name` of the service whose container has the server")
	cmd.Flags().StringVar(&address, "address", "127.0.0.1", "`address` of this machine to listen on")
	return cmd
}

// forward is one port of this machine that leads to a server in a sandbox.
type forward struct {
	local           string // port of this machine; 0: any
	network, target string // network and address of the server
}

// takesForwards accepts a sandbox and one or more forwards.
func takesForwards(cmd *cobra.Command, args []string) error {
	if len(args) < 2 {
		return counts(cmd, args, "SANDBOX", "PORT")
	}
	return protocol.ValidateID("SANDBOX", args[0])
}

func parseForwards(args []string) (all []forward, err error) {
	for _, arg := range args {
		f, err := parseForward(arg)
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return all, nil
}

func parseForward(arg string) (forward, error) {
	local, target, given := strings.Cut(arg, ":")
	if !given {
		target = local
	}
	if given && strings.HasPrefix(target, "/") {
		if err := protocol.ValidateFilePath("PORT", target); err != nil {
			return forward{}, err
		}
		return forward{local, "unix", target}, checkPort(arg, local, 0)
	}
	if err := checkPort(arg, target, 1); err != nil {
		return forward{}, err
	}
	return forward{local, "tcp", net.JoinHostPort("localhost", target)}, checkPort(arg, local, 0)
}

func checkPort(arg, port string, least uint64) error {
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n < least {
		return usage("%.100q: must be PORT, LOCAL:PORT or LOCAL:/path, with ports from %d to 65535", arg, least)
	}
	return nil
}

// forwarder forwards the connections of one `boxfleet forward`.
type forwarder struct {
	*console
	box  *sdk.Sandbox
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu      sync.Mutex // held while a line is printed
	serving sync.WaitGroup
}

// forwardLine is what `boxfleet forward -o json` prints for each port.
type forwardLine struct {
	Listen  string `json:"listen"` // address and port on this machine
	Network string `json:"network"`
	Target  string `json:"target"` // address of the server in the sandbox
}

// run listens on all ports, and forwards until ctx ends. It returns nil if only an interruption ended it.
func (f *forwarder) run(ctx context.Context, address string, forwards []forward) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer f.serving.Wait()
	defer cancel()
	var listeners []net.Listener
	defer func() {
		for _, l := range listeners {
			l.Close()
		}
	}()
	for _, each := range forwards {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(address, each.local))
		if err != nil {
			return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonPortTaken,
				"listen on port %s of %s: %v; choose another local port with LOCAL:PORT", each.local, address, errors.Unwrap(err))
		}
		listeners = append(listeners, l)
	}
	for i, each := range forwards {
		at := listeners[i].Addr().String()
		if err := f.announce(at, each); err != nil {
			return err
		}
		f.serving.Go(func() { f.accept(ctx, listeners[i], each) })
	}
	<-ctx.Done()
	return nil
}

func (f *forwarder) announce(at string, each forward) error {
	if f.json() {
		return f.line(forwardLine{Listen: at, Network: each.network, Target: each.target})
	}
	target := each.target
	if _, port, err := net.SplitHostPort(target); err == nil && each.network == "tcp" {
		target = "port " + port
	}
	_, err := fmt.Fprintf(f.stdout, "%s -> %s of sandbox %s\n", at, target, f.box.ID())
	return err
}

const (
	acceptPause = 10 * time.Millisecond // shortest pause after a failed accept, for example without free descriptors
	acceptMost  = time.Second
	// dialWithin limits how long a server in the sandbox may take to accept a connection.
	dialWithin = 15 * time.Second
)

func (f *forwarder) accept(ctx context.Context, l net.Listener, to forward) {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	pause := backoff.New(acceptPause, acceptMost)
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
			pause.Reset()
			f.serving.Go(func() { f.forward(ctx, conn.(*net.TCPConn), to) })
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return
		default:
			f.warn("could not accept a connection: %v", err)
			if !pause.Wait(ctx) {
				return
			}
		}
	}
}

// forward joins a local connection with a new connection to the server.
func (f *forwarder) forward(ctx context.Context, local *net.TCPConn, to forward) {
	defer local.Close()
	dialling, cancel := context.WithTimeout(ctx, dialWithin)
	defer cancel()
	remote, err := f.dial(dialling, to.network, to.target)
	if err != nil {
		// The local program then sees a reset, not an empty answer. It fails if that program has closed the connection.
		_ = local.SetLinger(0)
		if ctx.Err() == nil {
			f.warn("%v", err)
		}
		return
	}
	defer remote.Close()
	stop := context.AfterFunc(ctx, func() { local.Close(); remote.Close() })
	defer stop()
	t := &forwarded{forwarder: f, local: local, remote: remote}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		t.copy(remote, local)
	}()
	t.copy(local, remote)
	<-sent
	if t.err != nil && ctx.Err() == nil {
		f.warn("%v", t.err)
	}
}

// forwarded is one connection that is forwarded.
type forwarded struct {
	*forwarder
	local  *net.TCPConn
	remote net.Conn

	once sync.Once
	err  error // why the sandbox's side failed; nil: it did not
}

// copy copies the bytes of one direction, and then passes the end of the input on. If it fails, it closes both
// connections.
func (t *forwarded) copy(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if err == nil {
		err = to.(interface{ CloseWrite() error }).CloseWrite()
	}
	if err == nil {
		return
	}
	t.once.Do(func() {
		var ended *sdk.Error
		if errors.As(err, &ended) {
			t.err = ended
		}
		// The local program then sees a reset, not a proper end. It fails if that program has closed the connection.
		_ = t.local.SetLinger(0)
		t.local.Close()
		t.remote.Close()
	})
}

func (f *forwarder) warn(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note(format, args...)
}
