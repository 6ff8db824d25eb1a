package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
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
	token  string       // empty if rights is not nil
	rights *localRights // nil: one token permits everything
	conns  []*jetstream.Conn

	stopWorking context.CancelFunc
	roles       *errgroup.Group
	ended       chan struct{} // closed when both roles have ended
	err         error         // the error that ended the roles; valid once ended is closed
}

// startLocal starts a fleet on a data directory and returns when the fleet accepts work. server is the configuration of
// NATS without its access control, which startLocal adds. If listens is not nil, startLocal calls it once NATS listens.
// The data of an ephemeral fleet is never used again. The parts of the fleet report their health to h.
func (srv *servers) startLocal(ctx context.Context, dir string, server embedded.Config, listens func(connection) error,
	ephemeral bool, h *health) (_ *local, err error) {
	kConfig, wConfig, err := srv.localRoles()
	if err != nil {
		return nil, err
	}
	f := &local{ended: make(chan struct{})}
	if err := f.protect(&server, dir, srv.config.Insecure, kConfig.Name, wConfig.Name); err != nil {
		return nil, err
	}
	if f.rights != nil {
		if kConfig.SecretsKeys, err = f.rights.secretsKeys(); err != nil {
			return nil, err
		}
	}
	server.Dir = filepath.Join(dir, natsDir)
	if f.server, err = embedded.Keep(server, int64(srv.config.Ballast), nil); err != nil {
		return nil, err
	}
	if f.rights != nil {
		f.rights.server = f.server
		wConfig.OnHost = func(ctx context.Context, host string) error { return f.rights.onHost(ctx, wConfig.Conn, host) }
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
	kConfig.Conn, wConfig.Conn = kConn, wConn
	h.connection(kConn)
	k, w := h.part("coordinator"), h.part("worker")
	kConfig.OnState, kConfig.OnTurn, wConfig.OnState, wConfig.OnTurn = k.say, k.turn, w.say, w.turn
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

// localRoles returns the configurations of the coordinator and the worker. With credentials, both roles get the same
// names at every start, because their credentials contain the names. The names are in lower case, as in credentials.
func (srv *servers) localRoles() (coordinator.Config, worker.Config, error) {
	if !srv.config.Insecure {
		machine := strings.ToLower(machineName())
		srv.config.Coordinator.Name = cmp.Or(srv.config.Coordinator.Name, machine+"-up")
		srv.config.Worker.Name = cmp.Or(srv.config.Worker.Name, machine)
	}
	k, err := srv.config.forCoordinator()
	w, wErr := srv.config.forWorker()
	return k, w, errors.Join(err, wErr)
}

// protect makes the server require credentials, or only a token if insecure is set.
func (f *local) protect(server *embedded.Config, dir string, insecure bool, coordinator, worker string) (err error) {
	if !insecure {
		if f.rights, err = openRights(dir, coordinator, worker); err == nil {
			server.Operators = f.rights.operators()
		}
		return err
	}
	if err := refuseInsecure(dir); err != nil {
		return err
	}
	slog.Warn("up runs without credentials: the token alone gives a client all rights in every tenant and on every host",
		"do", "omit --insecure, and make credentials for others with boxfleet auth add")
	f.token, err = keptToken(dir)
	server.Token = f.token
	return err
}

// refuseInsecure refuses to run a fleet without credentials if the fleet had credentials before. It must run before the
// server starts: without credentials, the server moves the streams to another account, and then nothing shows that they
// belonged to an operator.
func refuseInsecure(dir string) error {
	in := filepath.Join(dir, natsDir)
	owned, err := embedded.HasOperator(in)
	if err == nil && owned {
		err = protocol.Errorf(protocol.FailedPrecondition, "", "the streams in %s belong to a deployment with credentials, "+
			"which requires signatures, and up --insecure has no key to sign with: omit --insecure (%s)", in, insecureKey)
	}
	return err
}

func (f *local) connect(ctx context.Context) (k, w *jetstream.Conn, err error) {
	open := func(role, creds string) (*jetstream.Conn, error) {
		c, err := jetstream.Connect(ctx, jetstream.Config{InProcess: f.server, Token: f.token, Creds: creds,
			Name: "boxfleet-" + role})
		if err == nil {
			f.conns = append(f.conns, c)
		}
		return c, err
	}
	var forCoordinator, forWorker string
	if f.rights != nil {
		forCoordinator, forWorker = f.rights.coordinatorIn, f.rights.workerIn
	}
	if k, err = open("coordinator", forCoordinator); err == nil {
		w, err = open("worker", forWorker)
	}
	return k, w, err
}

// run runs the coordinator and the worker until ctx ends. The worker starts when the coordinator has created the
// streams. On shutdown the worker ends first, so that the coordinator can still act on the worker's last events. If one
// role fails, the other ends too.
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

// connection returns the address and the credentials with which clients reach the fleet.
func (f *local) connection() connection {
	where := connection{URL: f.server.ClientURL(), Token: f.token}
	if f.rights != nil {
		where.Creds = f.rights.userIn
	}
	return where
}

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
