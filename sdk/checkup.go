package sdk

import (
	"context"

	"github.com/boxfleet/boxfleet/protocol"
)

// Checkup is what a coordinator knows about the state of the fleet, in addition to [Ping] and the hosts.
type Checkup = protocol.Checkup

// Owed is something that the fleet should have done for a sandbox by now.
type Owed = protocol.Owed

// SealedTo says how much is sealed to a fleet key.
type SealedTo = protocol.SealedTo

// CoordinatorInfo is the name and the version of a coordinator that runs.
type CoordinatorInfo = protocol.CoordinatorInfo

// Checkup asks one coordinator for the late work of the fleet, and about its NATS server. A user or viewer of a tenant
// learns only of that tenant's late work. Checkup does not retry. Errors: unavailable if no coordinator is running, or
// if the coordinator is of an older version.
func (c *Client) Checkup(ctx context.Context) (*Checkup, error) {
	reply, err := c.query(ctx, protocol.EndpointCheckup, protocol.Query{})
	if err != nil {
		return nil, err
	}
	if reply.Checkup == nil {
		return nil, protocol.Errorf(protocol.Unavailable, "", "the coordinator sent no checkup; try again")
	}
	return reply.Checkup, nil
}

// Coordinators asks all coordinators for their names and versions, and returns those that answer, sorted by name. It
// takes half a second. Only operators may ask. Errors: permission_denied; unavailable if no coordinator answers within
// 2 s.
func (c *Client) Coordinators(ctx context.Context) ([]CoordinatorInfo, error) {
	found, err := c.conn.Coordinators(ctx)
	return found, failed(ctx, err, "ask the coordinators")
}
