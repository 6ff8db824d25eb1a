package jetstream

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/nats-io/nats.go/micro"

	"github.com/boxfleet/boxfleet/protocol"
)

// A coordinator that runs answers within answersWithin. After the first answer, the others come within answersQuiet.
const (
	answersWithin = 2 * time.Second
	answersQuiet  = 500 * time.Millisecond
)

// Coordinators asks all coordinators for their names and versions, and returns those that answer, by name. It takes
// half a second. Only operators may ask. Errors: permission_denied; unavailable if no coordinator answers within 2 s.
func (r *Queries) Coordinators(ctx context.Context) (found []protocol.CoordinatorInfo, err error) {
	infos, err := r.describe(ctx)
	for _, info := range infos {
		found = append(found, protocol.CoordinatorInfo{Name: cmp.Or(info.Metadata[metadataCoordinator], info.ID),
			Version: info.Version, FleetKey: info.Metadata[metadataFleetKey]})
	}
	slices.SortFunc(found, func(a, b protocol.CoordinatorInfo) int { return cmp.Compare(a.Name, b.Name) })
	return found, err
}

// describe asks all coordinators for the descriptions of their read services. Its errors are those of Coordinators.
func (r *Queries) describe(ctx context.Context) (found []micro.Info, err error) {
	subject := micro.APIPrefix + "." + micro.InfoVerb.String() + "." + protocol.ServiceName
	ctx, end := r.await(ctx, subject)
	defer end()
	inbox := r.nc.NewRespInbox()
	sub, err := r.nc.SubscribeSync(inbox)
	if err != nil {
		return nil, translate(err, "ask the coordinators")
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is closed
	if err := r.nc.PublishRequest(subject, inbox, nil); err != nil {
		return nil, translate(err, "ask the coordinators")
	}
	for within := answersWithin; ; within = answersQuiet {
		next, stop := context.WithTimeout(ctx, within)
		m, err := sub.NextMsgWithContext(next)
		stop()
		if isForbidden(ctx) {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			break // the others do not answer
		}
		var info micro.Info
		if json.Unmarshal(m.Data, &info) == nil && info.Name == protocol.ServiceName {
			found = append(found, info)
		}
	}
	if len(found) == 0 {
		return nil, protocol.Errorf(protocol.Unavailable, "", "no coordinator answers")
	}
	return found, nil
}
