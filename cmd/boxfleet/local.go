package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/coordinator"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/jetstream/embedded"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker"
)

// endWithin is how long a local fleet may take to end what it has in hand.
const endWithin = 20 * time.Second

// local is a whole fleet in this process: NATS, one coordinator, and one worker on the local engine.
type local struct {
	server *embedded.Keeper
	token  string
	conns  []*jetstream.Conn

	stopWorking context.CancelFunc
	roles       *errgroup.Group
	ended       chan struct{} // closed when the roles have ended
	err         error         // why
}

// startLocal starts a fleet on a data directory and returns when it takes work. server says where
// NATS listens; listens, where there is one, is called once it does; ephemeral fleets do not come back. h gets to know how
// its parts are.
func (p *program) startLocal(ctx context.Context, server embedded.Config, listens func(connection) error,
	ephemeral bool, h *health) (_ *local, err error) {
	f := &local{token: server.Token, ended: make(chan struct{})}
	if f.server, err = embedded.Keep(server, int64(p.config.Ballast), nil); err != nil {
		return nil, err
	}
	if listens != nil {
		if err := listens(f.connection()); err != nil {
			f.server.Stop()
			return nil, err
		}
	}
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	f.stopWorking = stop
	f.roles, working = errgroup.WithContext(working)
	kConn, wConn, err := f.connect(ctx)
	if err != nil {
		f.close()
		return nil, err
	}
	kConfig, err := p.coordinator()
	wConfig, wErr := p.worker()
	kConfig.Conn, wConfig.Conn = kConn, wConn
	h.connection(kConn)
	kConfig.OnState, wConfig.OnState = h.part("coordinator"), h.part("worker")
	if err = errors.Join(err, wErr); err != nil {
		f.close()
		return nil, err
	}
	kConn.SetDisk(f.server.Disk)
	kConfig.RestartStore = f.server.Restart
	f.roles.Go(func() error { f.server.Watch(working, kConn.SetShort); return nil })
	kReady, wReady := make(chan struct{}), make(chan struct{})
	kConfig.SyncAlways, kConfig.OnReady = true, func() { close(kReady) }
	wConfig.Ephemeral, wConfig.OnReady = ephemeral, func() { close(wReady) }
	f.run(working, kConfig, wConfig, kReady)
	select {
	case <-wReady:
		return f, nil
	case <-f.ended:
		f.close()
		return nil, f.err
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), f.end())
	}
}

func (f *local) connect(ctx context.Context) (k, w *jetstream.Conn, err error) {
	open := func(name string) (*jetstream.Conn, error) {
		c, err := jetstream.Connect(ctx, jetstream.Config{InProcess: f.server, Token: f.token, Name: name})
		if err == nil {
			f.conns = append(f.conns, c)
		}
		return c, err
	}
	if k, err = open("boxfleet-coordinator"); err == nil {
		w, err = open("boxfleet-worker")
	}
	return k, w, err
}

// run runs the roles until ctx ends: then the worker ends first, while the coordinator still
// decides what it reports. The worker begins when the coordinator has made the streams. One role's
// failure ends the other.
func (f *local) run(ctx context.Context, k coordinator.Config, w worker.Config, ready <-chan struct{}) {
	deciding, stopDeciding := context.WithCancel(context.WithoutCancel(ctx))
	f.roles.Go(func() error {
		defer stopDeciding()
		select {
		case <-ready:
			return worker.Run(ctx, w)
		case <-ctx.Done():
			return nil
		}
	})
	f.roles.Go(func() error { return coordinator.Run(deciding, k) })
	go func() {
		f.err = f.roles.Wait()
		close(f.ended)
	}()
}

// end ends the fleet: it takes no more work, ends what it has in hand, within endWithin, and then
// closes its connections and NATS.
func (f *local) end() error {
	f.stopWorking()
	defer f.close()
	select {
	case <-f.ended:
		return f.err
	case <-time.After(endWithin):
		return protocol.Errorf(protocol.DeadlineExceeded, "", "the fleet did not end within %s", endWithin)
	}
}

func (f *local) close() {
	f.stopWorking()
	for _, c := range f.conns {
		c.Close()
	}
	f.server.Stop()
}

// connection is how clients reach the fleet.
func (f *local) connection() connection { return connection{f.server.ClientURL(), f.token} }

// lockDir takes a data directory for this process.
func lockDir(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, protocol.Errorf(protocol.Internal, "", "make the data directory: %v", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, protocol.Errorf(protocol.Internal, "", "open the lock of the data directory: %v", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, protocol.Errorf(protocol.FailedPrecondition, "", "another `boxfleet up` uses %s", dir)
	}
	return func() { f.Close() }, nil
}

// keptToken is the token of a data directory, made when it is first asked for.
func keptToken(dir string) (string, error) {
	file := filepath.Join(dir, "token")
	data, err := os.ReadFile(file)
	if err == nil && len(strings.TrimSpace(string(data))) > 0 {
		return strings.TrimSpace(string(data)), nil
	}
	if err != nil && !os.IsNotExist(err) {
		return "", protocol.Errorf(protocol.Internal, "", "read the token: %v", err)
	}
	token := rand.Text()
	if err := writePrivate(file, []byte(token+"\n")); err != nil {
		return "", protocol.Errorf(protocol.Internal, "", "write the token: %v", err)
	}
	return token, nil
}

// say prints a line about the server for people.
func (p *program) say(format string, args ...any) {
	fmt.Fprintf(p.plain(p.stdout), format+"\n", args...)
}
