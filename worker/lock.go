package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/hosterr"
)

// The host's lock is two locks. The lease in the log's own store decides: it is on the Docker
// Engine, whoever asks from wherever. A lock on a local file lets the next worker on the same
// machine in at once: who holds the file knows that the process which held it before is gone, and
// need not wait for the end of its lease.

// lockPlace takes the local lock, and reads the identity of the file that it is on.
func (w *worker) lockPlace() (unlock func(), err error) {
	if err := os.MkdirAll(w.dir, 0o700); err != nil {
		return nil, hosterr.Wrap(err, "make the state directory")
	}
	f, err := os.OpenFile(filepath.Join(w.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, hosterr.Wrap(err, "open the lock file")
	}
	data := make([]byte, 256)
	n, _ := f.ReadAt(data, 0) // an empty file has no identity yet
	id, holder, _ := strings.Cut(string(data[:n]), "\n")
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonHostHeld,
			"the Docker host %s is held by worker %s on this machine", w.hostID, strings.TrimSpace(holder))
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
	// A copy of the file on a cloned machine has another boot id.
	w.place = id + "." + strings.TrimSpace(string(boot))
	return func() { f.Close() }, nil
}

func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// takeLock takes the host's lease. Held by a process that the local lock proves to be gone, it is
// taken over at once. Held by somebody else, it is waited for until they are seen to be alive,
// because they renew it, or until it ends.
func (w *worker) takeLock(ctx context.Context) (*jetstream.Lease, error) {
	machine, _ := os.Hostname() // for people only
	holder := jetstream.Holder{
		Name: w.cfg.Name, Instance: w.instance, Place: w.place,
		Detail: fmt.Sprintf("machine %s, process %d, engine %s", machine, os.Getpid(), w.address),
	}
	var seen *jetstream.HeldError
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
			w.log.Warn("the host's lock is not to be had yet", "error", err)
			w.cfg.OnState(false, "waits for the lock of host "+w.hostID+": "+err.Error())
		case held.Holder.Place == w.place:
			takeOver = held.Revision
			continue
		case seen != nil && held.Holder.Instance == seen.Holder.Instance && held.Revision != seen.Revision:
			return nil, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonHostHeld, "the Docker host %s is %v", w.hostID, held)
		case seen == nil || held.Holder.Instance != seen.Holder.Instance:
			seen = held
			w.log.Info("the host is held; waiting for a sign of life or the end of the lock", "holder", held.Error())
			w.cfg.OnState(false, "waits for the lock of host "+w.hostID+", "+held.Error())
		}
		if !backoff.Sleep(ctx, 250*time.Millisecond) {
			return nil, ctx.Err()
		}
	}
}
