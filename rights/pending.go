package rights

import (
	"github.com/boxfleet/boxfleet/protocol"
)

// PendingRow is a right that the table does not grant although the present code uses it.
type PendingRow struct {
	Row         // Why says what the code does with it
	Code string // the function that uses it, as FILE:FUNCTION
}

// Pending returns what the present code uses beyond [Table]. Until that code has changed, it works only without
// permissions.
func Pending() []PendingRow {
	return []PendingRow{
		{Row{Worker, Publish, []string{protocol.LogSubject("*", "*", "*")}, "publish output, without its name"},
			"jetstream/output.go:PublishOutput"},
		{Row{Worker, Publish, follow(kv(protocol.BucketImages), keys(protocol.BucketImages, "want.>")...),
			"follow the wanted images through a consumer, which could deliver them to any subject"},
			"jetstream/follower.go:open"},
		{Row{Worker, Publish, api("STREAM.INFO", kv(protocol.BucketImages)),
			"check whether the table of images was made again"}, "jetstream/rewind.go:lastSequence"},
	}
}
