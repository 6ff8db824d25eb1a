package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// notifyPause is the time between two notifications. The watchdog of the service manager must allow much more.
const notifyPause = 2 * time.Second

// notify tells the service manager the state of this process. The manager's address is in NOTIFY_SOCKET, as in a unit
// of systemd with Type=notify. Without a service manager, notify does nothing.
func notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		slog.Warn("could not tell the service manager the state of this process; it may restart the process", "error", err)
	}
}

// notifyHealth tells the service manager what the process does or waits for. It confirms to the manager's watchdog that
// the process is alive only while the main loops turn. When ctx ends, it tells the manager that the process is
// stopping. stop must be called, and returns when no more notifications follow.
func notifyHealth(ctx context.Context, h *health) (stop func()) {
	stopping, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(notifyPause)
		defer tick.Stop()
		for {
			_, ready := h.readiness()
			if alive, stuck := h.liveness(); alive {
				notify("STATUS=" + ready + "\n" + daemon.SdNotifyWatchdog)
			} else {
				notify("STATUS=" + stuck)
			}
			select {
			case <-ctx.Done():
				notify(daemon.SdNotifyStopping)
				return
			case <-stopping:
				return
			case <-tick.C:
			}
		}
	}()
	return func() {
		close(stopping)
		<-ended
	}
}
