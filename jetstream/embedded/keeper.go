package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
)

// DefaultBallast is how many bytes of the disk a [Keeper] normally reserves.
const DefaultBallast = 64 << 20

const (
	ballastFile = "ballast" // name of the ballast in the store's directory
	// ballastPart limits the ballast on a small disk: the ballast is at most 1/ballastPart of the disk.
	ballastPart = 20
	diskPeriod  = 200 * time.Millisecond
)

// Keeper runs a server and keeps it able to write. A file, the ballast, reserves room on the server's disk. When the
// disk is full, the Keeper removes the ballast, so that the server can still store the ends and the deletions of
// sandboxes. When there is room again, the Keeper makes the ballast again.
//
// After a failed write, a server's store refuses all further writes until the server is restarted, which
// [Keeper.Restart] does. Clients reconnect by themselves.
type Keeper struct {
	log     *slog.Logger
	ballast int64
	file    string

	mu      sync.Mutex
	server  *Server
	stopped bool
	held    bool // the ballast exists
}

// Keep starts a server. ballast is the number of bytes to reserve; 0 reserves none. Keep reserves at most a twentieth
// of the disk. logger may be nil.
func Keep(cfg Config, ballast int64, logger *slog.Logger) (*Keeper, error) {
	if logger == nil {
		logger = slog.Default()
	}
	if cfg.Dir == "" {
		return nil, protocol.Invalid("dir", "must not be empty")
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, protocol.Errorf(protocol.Internal, "", "make the directory of the embedded NATS server's store: %v", err)
	}
	k := &Keeper{log: logger, ballast: ballast, file: filepath.Join(cfg.Dir, ballastFile)}
	_, err := os.Stat(k.file)
	k.held = err == nil
	if free, size := disk(cfg.Dir); free < k.unit(size)/4 {
		k.release()
	}
	if k.server, err = Start(cfg); err != nil {
		return nil, err
	}
	return k, nil
}

// InProcessConn connects to the running server.
func (k *Keeper) InProcessConn() (net.Conn, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.server.InProcessConn()
}

// ClientURL returns the server's URL, which survives restarts.
func (k *Keeper) ClientURL() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.server.ClientURL()
}

// SetAccount is [Server.SetAccount] of the running server.
func (k *Keeper) SetAccount(text string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.server.SetAccount(text)
}

// Disk returns how many bytes are free on the store's disk, and the disk's size. The ballast does not count as free.
func (k *Keeper) Disk() (free, size int64) { return disk(filepath.Dir(k.file)) }

// Restart stops the server and starts it again. Error: resource_exhausted with reason log_full if the disk still has no
// room.
func (k *Keeper) Restart(context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stopped {
		return nil
	}
	free, size := k.Disk()
	if free < k.unit(size)/4 {
		k.release()
		if free, _ = k.Disk(); free < k.unit(size)/4 { // the disk's size is already known
			return protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonLogFull,
				"the disk of %s has only %s left: free some space", filepath.Dir(k.file), protocol.Bytes(free))
		}
	}
	k.server.Stop()
	again, err := k.server.Restart()
	if err != nil {
		return err
	}
	k.server = again
	return nil
}

// Stop stops the server and waits until its store is closed.
func (k *Keeper) Stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopped = true
	k.server.Stop()
}

// Watch checks the disk until ctx ends. After each check that finds too little room for new work, it calls the function
// short with the reason. When there is enough room again, Watch calls short once with an empty text.
func (k *Keeper) Watch(ctx context.Context, short func(why string)) {
	tick := time.NewTicker(diskPeriod)
	defer tick.Stop()
	was := false
	for {
		free, size := k.Disk()
		is := k.adjust(free, size, was)
		if is {
			short(fmt.Sprintf("the disk of %s has only %s of %s left: free some space",
				filepath.Dir(k.file), protocol.Bytes(free), protocol.Bytes(size)))
		} else if was {
			short("")
		}
		if is != was {
			event := "the disk of the NATS store has too little room for new work"
			if was {
				event = "the disk of the NATS store has room for new work again"
			}
			k.log.Warn(event, "short", is, "free", protocol.Bytes(free))
		}
		was = is
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// adjust removes or makes the ballast depending on the disk's free space, and reports whether new work must wait. The
// parameter was is the result of the previous call. The wait begins at one level of free space and ends at a higher
// level, so that small changes do not begin and end it repeatedly.
func (k *Keeper) adjust(free, size int64, was bool) (short bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	unit := k.unit(size)
	switch {
	case free < unit/4:
		k.release()
	case !k.held && k.ballast > 0 && free > 4*unit:
		k.hold(min(k.ballast, unit))
	}
	if was {
		return free < 2*unit || !k.held && k.ballast > 0
	}
	return free < unit
}

// unit is the free space below which a disk of this size has too little room for new work.
func (k *Keeper) unit(size int64) int64 {
	unit := k.ballast
	if unit == 0 {
		unit = DefaultBallast
	}
	return min(unit, size/ballastPart)
}

func (k *Keeper) hold(bytes int64) {
	f, err := os.OpenFile(k.file, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err == nil {
		err = errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, bytes), f.Close())
	}
	if err != nil {
		k.log.Warn("could not reserve room on the disk of the NATS store", "error", err)
		k.release()
		return
	}
	k.held = true
}

func (k *Keeper) release() {
	if err := os.Remove(k.file); err != nil && !os.IsNotExist(err) {
		k.log.Warn("could not remove the file that reserves room on the disk of the NATS store", "error", err)
	}
	k.held = false
}

// disk returns the free bytes and the size of the disk that a directory is on, or large values if they cannot be read.
func disk(dir string) (free, size int64) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 1 << 50, 1 << 50
	}
	return int64(s.Bavail) * s.Bsize, int64(s.Blocks) * s.Bsize
}
