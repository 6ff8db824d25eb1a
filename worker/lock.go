package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
	"github.com/boxfleet/boxfleet/worker/hosterr"
)

// hostLock is the lock of the host. It consists of two locks. The lease, kept in NATS, decides who holds the host.
// There is one lease for each Docker engine, so the lease also excludes workers on other machines that use the same
// engine. The lock on a local file lets the next worker on the same machine take over at once: a process that can lock
// the file knows that the previous holder's process is gone, and need not wait for the previous lease to end.
type hostLock struct {
	w     *worker
	place string // identity of the local lock file, on this boot of this machine
	lease atomic.Pointer[jetstream.Lease]
}

// lockFile locks the local lock file, and reads or creates the identity of that file.
func (l *hostLock) lockFile() (unlock func(), err error) {
	w := l.w
	if err := os.MkdirAll(w.dir, 0o700); err != nil {
		return nil, hosterr.Wrap(err, "make the state directory")
	}
	f, err := os.OpenFile(filepath.Join(w.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, hosterr.Wrap(err, "open the lock file")
	}
	data := make([]byte, 256)
	n, _ := f.ReadAt(data, 0) // a short read is expected; a file that cannot be read gets a new identity below
	id, holder, _ := strings.Cut(string(data[:n]), "\n")
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonHostHeld,
			"the Docker host %s is already held by worker %s on this machine", w.hostID, strings.TrimSpace(holder))
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		f.Close()
		return nil, hosterr.Wrap(err, "read the machine's boot id")
	}
	if id == "" {
		id = rand.Text()
	}
	text := fmt.Sprintf("%s\n%s (process %d)\n", id, w.cfg.Name, os.Getpid())
	if err := errors.Join(f.Truncate(0), writeAt(f, text)); err != nil {
		f.Close()
		return nil, hosterr.Wrap(err, "write the lock file")
	}
	// A cloned machine has a copy of the file, but another boot id.
	l.place = id + "." + strings.TrimSpace(string(boot))
	return func() { f.Close() }, nil
}

func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// acquire takes the host's lease. If the local lock proves that the lease's holder is gone, acquire takes the lease
// over at once. Otherwise acquire waits until the lease ends. It fails if the holder is alive and renews the lease.
func (l *hostLock) acquire(ctx context.Context) (*jetstream.Lease, error) {
	w := l.w
	machine, _ := os.Hostname() // after an error, the name is empty; the name is only displayed
	holder := jetstream.Holder{
		Name: w.cfg.Name, Instance: w.instance, Place: l.place,
		Detail: fmt.Sprintf("machine %s, process %d, engine %s", machine, os.Getpid(), w.address),
	}
	var last *jetstream.HeldError
	takeOver := uint64(0)
	for {
		lease, err := w.conn.AcquireHost(ctx, w.hostID, holder, takeOver)
		if err == nil {
			return lease, nil
		}
		takeOver = 0
		var held *jetstream.HeldError
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case !errors.As(err, &held):
			w.log.Warn("could not take the host's lock; retrying", "error", err)
			w.cfg.OnState(false, "waits for the lock of host "+w.hostID+": "+err.Error())
		case held.Holder.Place == l.place:
			takeOver = held.Revision
			continue
		case last != nil && held.Holder.Instance == last.Holder.Instance && held.Revision != last.Revision:
			return nil, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonHostHeld,
				"the Docker host %s is %v", w.hostID, held)
		case last == nil || held.Holder.Instance != last.Holder.Instance:
			last = held
			w.log.Info("another worker holds the host's lock; waiting to see whether the holder renews the lock",
				"holder", held.Error())
			w.cfg.OnState(false, "waits for the lock of host "+w.hostID+", "+held.Error())
		}
		if !backoff.Sleep(ctx, 250*time.Millisecond) {
			return nil, ctx.Err()
		}
	}
}

// fence fails unless the lock is held and may be trusted. Every change on the host must pass the fence first.
func (l *hostLock) fence() error {
	_, err := l.trusted()
	return err
}

// trusted returns the time until which the fence allows changes, by [control.Clock]. A renewal of the lease makes that
// time later. The error means that the fence allows no changes now.
func (l *hostLock) trusted() (until time.Duration, err error) {
	lease := l.lease.Load()
	if lease == nil {
		return control.Clock(), protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonLeaseLost,
			"the host's lock is not held")
	}
	return lease.Trusted()
}

// token returns the fencing token of the lock, or 0 if the lock is not held.
func (l *hostLock) token() uint64 {
	if lease := l.lease.Load(); lease != nil {
		return lease.Token()
	}
	return 0
}

// ttl returns how long the lock lasts without renewal, or 0 if the lock is not held.
func (l *hostLock) ttl() protocol.Duration {
	if lease := l.lease.Load(); lease != nil {
		return protocol.Duration(lease.TTL())
	}
	return 0
}

// lowMargin returns how long the lock may still be trusted without a renewal if that is less than a third of its time
// to live, else nil. The worker renews the lock when half of its time to live is left, so a low margin means that
// renewals failed.
func (l *hostLock) lowMargin() *protocol.Duration {
	lease := l.lease.Load()
	if lease == nil {
		return nil
	}
	margin := protocol.Duration(lease.Margin().Round(100 * time.Millisecond))
	if margin.Std() >= lease.TTL()/3 {
		return nil
	}
	return &margin
}

// release gives the lease up. It waits at most three seconds for NATS.
func (l *hostLock) release(ctx context.Context, lease *jetstream.Lease) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if err := lease.Release(ctx); err != nil {
		l.w.log.Warn("could not release the host's lock; the lock expires by itself", "error", err)
	}
}
