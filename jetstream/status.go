package jetstream

import (
	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
)

// TellStatus says to everybody what keeps a coordinator from deciding, or that nothing does. It may
// be lost. Error: unavailable.
func (c *Conn) TellStatus(s *protocol.Status) error {
	m := nats.NewMsg(protocol.StatusSubject)
	m.Header.Set(protocol.HeaderContentType, protocol.ContentMsgpack)
	m.Data = protocol.Encode(s)
	return translate(c.nc.PublishMsg(m), "say what requests wait for")
}

// HearStatus calls handle with what coordinators say keeps them from deciding, until stop is called.
// handle must not block. Error: unavailable where the connection is closed.
func (c *Conn) HearStatus(handle func(*protocol.Status)) (stop func(), err error) {
	sub, err := c.nc.Subscribe(protocol.StatusSubject, func(m *nats.Msg) {
		s := &protocol.Status{}
		if err := protocol.DecodeAs(m.Header.Get(protocol.HeaderContentType), m.Data, s); err != nil || protocol.CheckVersion(s.Version) != nil {
			c.log.Warn("a status cannot be read", "error", err)
			return
		}
		handle(s)
	})
	if err != nil {
		return nil, translate(err, "listen for the coordinators' status")
	}
	return func() { _ = sub.Unsubscribe() }, nil // fails only when the connection is closed
}
