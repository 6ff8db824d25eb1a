package jetstream

import (
	"github.com/nats-io/nats.go"

	"github.com/boxfleet/boxfleet/protocol"
)

// PublishStatus publishes whether a coordinator can decide requests now and, if it cannot, the reason. The message may
// be lost. Error: unavailable.
func (n *Notifications) PublishStatus(s *protocol.Status) error {
	m := nats.NewMsg(protocol.StatusSubject)
	m.Header.Set(protocol.HeaderContentType, protocol.ContentMsgpack)
	m.Data = protocol.Encode(s)
	return translate(n.nc.PublishMsg(m), "publish the coordinator's status")
}

// FollowStatus calls handle with the status that coordinators publish, until stop is called. handle must not block.
// Error: unavailable if the connection is closed.
func (n *Notifications) FollowStatus(handle func(*protocol.Status)) (stop func(), err error) {
	sub, err := n.nc.Subscribe(protocol.StatusSubject, func(m *nats.Msg) {
		s := &protocol.Status{}
		err := protocol.DecodeAs(m.Header.Get(protocol.HeaderContentType), m.Data, s)
		if err == nil {
			err = protocol.CheckVersion(s.Version)
		}
		if err != nil {
			n.log.Warn("could not decode a coordinator's status", "error", err)
			return
		}
		handle(s)
	})
	if err != nil {
		return nil, translate(err, "listen for the coordinators' status")
	}
	return func() { _ = sub.Unsubscribe() }, nil // fails only when the connection is closed
}
