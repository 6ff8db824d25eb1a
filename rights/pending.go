package rights

import (
	"slices"

	"github.com/boxfleet/boxfleet/protocol"
)

// PendingRow is a right that the table does not grant although the present code uses it.
type PendingRow struct {
	Row         // Why says what the code does with it
	Code string // the function that uses it, as FILE:FUNCTION
}

// Pending returns what the present code uses beyond [Table]. Until that code has changed, it works with these rights in
// addition, or without permissions.
func Pending() []PendingRow {
	all := []PendingRow{
		{Row{Worker, Publish, []string{protocol.LogSubject("*", "*", "*")}, "publish output, without its name"},
			"jetstream/output.go:PublishOutput"},
		{Row{Worker, Publish, follow(kv(protocol.BucketImages), keys(protocol.BucketImages, "want.>")...),
			"follow the wanted images through a consumer, which could deliver them to any subject"},
			"jetstream/follower.go:open"},
		{Row{Worker, Publish, api("STREAM.INFO", kv(protocol.BucketImages)),
			"check whether the table of images was made again"}, "jetstream/rewind.go:lastSequence"},
		{Row{Worker, Publish, []string{protocol.APISubject(protocol.DefaultTenant, protocol.EndpointAwaited)},
			"ask which images sandboxes wait for, without its name"}, "jetstream/service.go:Query"},
	}
	for _, role := range Roles() {
		all = append(all, PendingRow{Row{role, Subscribe, []string{"_INBOX.>"}, "receive answers on inboxes of any name"},
			"jetstream/conn.go:options"})
	}
	for _, role := range []Role{User, Viewer, FleetViewer, Operator} {
		tenant := "*"
		if role.HasTenant() {
			tenant = "{tenant}"
		}
		all = append(all, PendingRow{Row{role, Publish, []string{protocol.APISubject(tenant, "*")},
			"read, without its name"}, "jetstream/service.go:Query"})
		if role == User || role == Operator {
			all = append(all, PendingRow{Row{role, Publish, []string{protocol.RequestSubject(tenant, "*", "*")},
				"send requests, without its name"}, "jetstream/requests.go:Submit"})
		}
	}
	for _, role := range []Role{User, Viewer, FleetViewer} {
		all = append(all, pendingReads(role)...)
	}
	return append(all, pendingUploads()...)
}

// pendingReads are the rights with which clients read the streams themselves, which contain all tenants.
func pendingReads(role Role) []PendingRow {
	segments := objects(protocol.BucketSegments)
	return []PendingRow{
		{Row{role, Publish, api("STREAM.INFO", protocol.StreamEvents),
			"read the deployment's id and the store's clock"}, "jetstream/room.go:readStream"},
		{Row{role, Publish, []string{"$JS.API.INFO"}, "check that JetStream is available"},
			"jetstream/servercheck.go:checkServer"},
		{Row{role, Subscribe, leaders, "read again what a new leader may not have published"},
			"jetstream/conn.go:hearElections"},
		{Row{role, Publish, slices.Concat(
			api("STREAM.MSG.GET", protocol.StreamEvents, kv(protocol.BucketHistories), segments),
			api("DIRECT.GET", protocol.StreamEvents, segments)), "read histories from the streams"},
			"jetstream/history.go:ReadHistory"},
		{Row{role, Publish, slices.Concat(
			api("STREAM.MSG.GET", protocol.StreamLogs), api("DIRECT.GET", protocol.StreamLogs)),
			"read output from its stream"}, "jetstream/output.go:ReadOutput"},
	}
}

// pendingUploads are the rights with which clients store uploads themselves.
func pendingUploads() []PendingRow {
	blobs := objects(protocol.BucketBlobs)
	store := slices.Concat(content(protocol.BucketBlobs), api("STREAM.PURGE", blobs))
	look := slices.Concat(api("STREAM.INFO", blobs), api("STREAM.MSG.GET", blobs))
	const why, code = "store uploads in the object store", "jetstream/blobs.go:PutBlob"
	return []PendingRow{
		{Row{User, Publish, append(look, store...), why}, code},
		{Row{Operator, Publish, store, why}, code},
	}
}
