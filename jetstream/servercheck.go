package jetstream

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxfleet/boxfleet/backoff"
	"github.com/boxfleet/boxfleet/protocol"
)

// needPayload is the largest message that a server must accept. Boxfleet's largest messages are batches of events (768
// KiB and one more event) and answers (a page of 512 KiB and one more row).
const needPayload = 1 << 20

const awaitPause = 5 * time.Second

// checkServer reports server settings that prevent Boxfleet from working. Error: failed_precondition with reason
// server_settings.
func (c *connection) checkServer(ctx context.Context) error {
	if err := c.checkPayload(); err != nil {
		return err
	}
	if here, _ := c.nc.ConnectedServerJetStream(); here || c.withoutStreams {
		return nil
	}
	if err := c.askAccount(ctx); isWithoutJetStream(err) { // another server of the cluster may have JetStream
		return settings("%s", whyNoJetStream(err))
	}
	return nil
}

// accountWithin is how long servers have to set up the account before its lack of JetStream is an error.
const accountWithin = 3 * time.Second

// askAccount asks once whether JetStream serves the account, and returns the error. While a server answers that the
// account has no JetStream, it asks again: the server that leads JetStream gives this answer until it has set up a new
// account.
func (c *connection) askAccount(ctx context.Context) error {
	for began := time.Now(); ; {
		try, end := c.awaitOnce(ctx, "")
		_, err := c.js.AccountInfo(try)
		end()
		if !errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) || time.Since(began) > accountWithin {
			return err
		}
		c.log.Warn("waiting for NATS to enable JetStream for the account", "error", err)
		if !backoff.Sleep(ctx, 100*time.Millisecond) {
			return err
		}
	}
}

// awaitServer is like checkServer, but waits for JetStream if wait is set. A server whose disk was full has JetStream
// disabled until it is restarted.
func (c *connection) awaitServer(ctx context.Context, wait bool) error {
	for {
		err := c.checkServer(ctx)
		if err == nil || !wait || c.checkPayload() != nil {
			return err
		}
		c.log.Error("waiting for JetStream on the NATS server", "error", err)
		if !backoff.Sleep(ctx, awaitPause) {
			return err
		}
	}
}

func (c *connection) checkPayload() error {
	if most := c.nc.MaxPayload(); most < needPayload {
		return settings("the server's max_payload (%s) is too small for Boxfleet's messages of up to %s: "+
			"set max_payload: 1MB on each server",
			protocol.Bytes(most), protocol.Bytes(needPayload))
	}
	return nil
}

func settings(format string, args ...any) *protocol.Error {
	return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonServerSettings, "NATS: "+format, args...)
}

// isWithoutJetStream reports whether no server has JetStream, at least for this account.
func isWithoutJetStream(err error) bool {
	return errors.Is(err, jetstream.ErrJetStreamNotEnabled) ||
		errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) ||
		errors.Is(err, nats.ErrNoResponders)
}
