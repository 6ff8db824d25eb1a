package main

import (
	"context"
	"crypto/rand"
	"errors"
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

// endWithin is the time limit for a local fleet to finish its current work.
const endWithin = 20 * time.Second

// local is a complete fleet in this process: NATS, one coordinator, and one worker on the local engine.
type local struct {
	server *embedded.Keeper
	token  string
	conns  []*jetstream.Conn

	stopWorking context.CancelFunc
	roles       *errgroup.Group
	ended       chan struct{} // closed when both roles have ended
	err         error         // the error that ended the roles; valid once ended is closed
}

// startLocal starts a fleet on a data directory and returns when the fleet accepts work. server is the configuration of
// NATS. If listens is not nil, startLocal calls it once NATS listens. The data of an ephemeral fleet is never used
// again. The parts of the fleet report their health to h.
func (srv *servers) startLocal(ctx context.Context, server embedded.Config, listens func(connection) error,
	ephemeral bool, h *health) (_ *local, err error) {
	f := &local{token: server.Token, ended: make(chan struct{})}
	if f.server, err = embedded.Keep(server, int64(srv.config.Ballast), nil); err != nil {
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
	kConfig, err := srv.config.forCoordinator()
	wConfig, wErr := srv.config.forWorker()
	kConfig.Conn, wConfig.Conn = kConn, wConn
	h.connection(kConn)
	kConfig.OnState, wConfig.OnState = h.part("coordinator"), h.part("worker")
	if err = errors.Join(err, wErr); err != nil {
		f.close()
		return nil, err
	}
	kConn.SetDisk(f.server.Disk)
	kConfig.RestartStore = f.server.Restart
	f.roles.Go(func() error { f.server.Watch(working, kConn.SetWorkMustWait); return nil })
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

// run runs the coordinator and the worker until ctx ends. The worker starts when the coordinator has created the
// streams. On shutdown the worker ends first: the coordinator can then still decide its reports. If one of the two
// fails, the other ends too.
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

// end shuts the fleet down: it stops taking work, finishes current work within endWithin, and closes the connections
// and NATS.
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

// connection returns how clients reach the fleet.
func (f *local) connection() connection { return connection{f.server.ClientURL(), f.token} }

// lockDir locks a data directory for this process.
func lockDir(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, protocol.Errorf(protocol.Internal, "", "create the data directory: %v", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, protocol.Errorf(protocol.Internal, "", "open the lock file of the data directory: %v", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, protocol.Errorf(protocol.FailedPrecondition, "", "another `boxfleet up` is using %s", dir)
	}
	return func() { f.Close() }, nil
}

// keptToken returns the token in a data directory. On first use it creates the token.
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
